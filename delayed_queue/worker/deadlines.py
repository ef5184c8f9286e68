"""Stops on signals, and deadlines for what waits for an unresponsive database (W20)."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Final, TypeVar

from django.db import connections

from delayed_queue.logs import log

T = TypeVar("T")

# A stopped process ends at most N seconds after its shutdown timeout; 5 are promised.
# Processes end a little earlier than their supervisor, which waits for them.
LAST_EXIT_SECONDS: Final = 4.0
SUPERVISOR_EXIT_SECONDS: Final = 4.7
# Exit code of a process that did not stop by itself (EX_SOFTWARE).
EXIT_STUCK: Final = 70


Handler = Callable[[int, FrameType | None], None]


def exit_now(number: int, frame: FrameType | None) -> None:
    """End the process without waiting for handlers, as sys.exit() would; leases stay stored."""
    os._exit(128 + number)


def stop_on_signals(*calls: Callable[[], object], again: Handler | None = exit_now) -> None:
    """Make the calls on SIGTERM or SIGINT; ``again`` handles later signals, None as the first."""

    def stop(number: int, frame: FrameType | None) -> None:
        if again is not None:
            _on_signals(again)
        for call in calls:
            call()

    _on_signals(stop)


def _on_signals(handle: Handler) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, handle)


@contextmanager
def last_exit(seconds: float) -> Iterator[Callable[[], None]]:
    """Yield a call that limits the rest of the block to N seconds; for a signal handler."""
    is_over = threading.Event()
    arm = exit_after(seconds, is_over)
    try:
        yield arm
    finally:
        is_over.set()
        arm()


def exit_after(seconds: float, is_over: threading.Event | None = None) -> Callable[[], None]:
    """Return a call that ends the process N seconds later, unless ``is_over`` is set by then.

    A thread ends it, because the main thread may wait for an answer. The thread starts here,
    because a signal handler must not start one.
    """
    armed, over = threading.Event(), is_over or threading.Event()

    def end() -> None:
        armed.wait()
        if not over.wait(seconds):
            log(logging.ERROR, "stop_given_up", seconds=f"{seconds:.0f}")
            os._exit(EXIT_STUCK)

    threading.Thread(target=end, name="last-exit", daemon=True).start()
    return armed.set


def in_daemon(call: Callable[[], T]) -> Future[T]:
    """Run a call in a daemon thread, which closes its connections at its end."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            found = call()
        # The caller of the future gets every exception.
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(found)
        finally:
            connections.close_all()

    threading.Thread(target=run, name="deadline", daemon=True).start()
    return future


class SharedProbe:
    """A call that at most one thread makes at a time; callers wait at most N seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._pending: Future[None] | None = None

    def ask(self, call: Callable[[], None]) -> None:
        """Raise what the call raises, or TimeoutError.

        While an earlier call waits, this one waits for its result: an unresponsive database must
        not cost a thread per probe.
        """
        with self._lock:
            pending = self._pending
            if pending is None or pending.done():
                pending = self._pending = in_daemon(call)
        pending.result(self._seconds)
