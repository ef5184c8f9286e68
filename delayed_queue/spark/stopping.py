"""How a command is stopped: by Ctrl-C and SIGTERM, at once or gently."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stopping:
    """Ctrl-C and SIGTERM: an event for who looks at it, an exception for everybody else."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.is_gentle = False

    def __call__(self, number: int, frame: Any) -> None:
        is_first = not self.event.is_set()
        self.event.set()
        if not (self.is_gentle and is_first):
            raise KeyboardInterrupt

    @contextmanager
    def gently(self) -> Iterator[threading.Event]:
        """Let the block end by itself when the event is set; a second signal does not wait."""
        self.is_gentle = True
        if threading.current_thread() is threading.main_thread():
            # Spark's session has put a handler of its own over ours, which cancels everything.
            signal.signal(signal.SIGINT, self)
        try:
            yield self.event
        finally:
            self.is_gentle = False


@contextmanager
def signals(stopping: Stopping) -> Iterator[None]:
    """Have the signals answered by ``stopping`` in the block; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stopping) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
