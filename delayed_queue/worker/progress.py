"""The progress line: one line on a terminal, overwritten each second."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple, TextIO

logger = logging.getLogger("delayed_queue")

# Erase to the end of the line; then back to its start, so that a log line overwrites this one.
_ERASE: Final = "\x1b[K"


class Totals(NamedTuple):
    """What a worker has done since its start, and what it is at."""

    done: int
    failed: int
    dead: int
    in_flight: int

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.dead


class ProgressLine:
    """Writes the totals every second from a thread of its own; nothing where no terminal is."""

    def __init__(
        self, totals: Callable[[], Totals], stream: TextIO | None = None, interval: float = 1.0
    ) -> None:
        self._totals = totals
        self._stream = sys.stderr if stream is None else stream
        self._interval = interval
        self._before = (time.monotonic(), 0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        if self._stream.isatty():
            self._before = (time.monotonic(), self._totals().ended)
            self._thread.start()

    def stop(self) -> None:
        """Leave the last totals on a line of their own."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def __enter__(self) -> ProgressLine:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._interval):
                self._write("\r")
            self._write("\n")
        except OSError as error:
            # The terminal was closed; the work goes on without it.
            logger.debug("event=progress_ended error=%s", type(error).__name__)

    def _write(self, end: str) -> None:
        line = self._line()[: self._columns() - 1]
        self._stream.write(f"\r{line}{_ERASE}{end}")
        self._stream.flush()

    def _line(self) -> str:
        now, totals = time.monotonic(), self._totals()
        then, ended = self._before
        self._before = (now, totals.ended)
        rate = (totals.ended - ended) / max(now - then, 1e-3)
        return (
            f"{totals.done:,} done · {totals.failed:,} failed · {totals.dead:,} dead · "
            f"{totals.in_flight:,} in flight · {rate:,.0f}/s"
        )

    def _columns(self) -> int:
        return os.get_terminal_size(self._stream.fileno()).columns or 80
