"""Where a worker tells how it is: a health file, a health address, a line on a terminal."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.observe.logs import described
from delayed_queue.worker.board import Board
from delayed_queue.worker.health import HealthFile, HealthReport, HealthServer, ProcessHealth
from delayed_queue.worker.progress import ProgressLine, Totals
from delayed_queue.worker.watchdog import limit_of

logger = logging.getLogger("delayed_queue")

TELL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """One process as its health is judged: ``pid`` is 0 while none runs there."""

    index: int
    pid: int
    board: Board
    started_at: float
    is_finished: bool = False

    @property
    def turned_seconds_ago(self) -> float:
        return time.monotonic() - max(self.board.turned_at, self.started_at)

    @property
    def is_healthy(self) -> bool:
        # A loop that sleeps turns at least each quarter of the watchdog's patience.
        limit = limit_of(self.board) / 2
        return self.is_finished or (self.pid != 0 and self.turned_seconds_ago < limit)

    def health(self) -> ProcessHealth:
        counters = self.board.counters()
        return ProcessHealth(
            self.index, self.pid, round(self.turned_seconds_ago, 3),
            counters["in_flight"], counters["done"], counters["failed"],
        )  # fmt: skip


def report_on(worker: Any, places: Sequence[Place]) -> HealthReport:
    """Return the health of a worker: it is as healthy as its worst process."""
    return HealthReport(
        str(worker),
        all(each.is_healthy for each in places),
        tuple(each.health() for each in places),
    )


def totals_of(counters: Sequence[dict[str, int]]) -> Totals:
    return Totals(*(sum(each[name] for each in counters) for name in Totals._fields))


class Outlets(AbstractContextManager[None]):
    """Tells the health from a thread, while the block runs, wherever it was asked to.

    An address in use, or a file that cannot be written, is an error at the start.
    """

    def __init__(
        self,
        report: Callable[[], HealthReport],
        totals: Callable[[], Totals],
        *,
        file: Path | None = None,
        address: tuple[str, int] | None = None,
    ) -> None:
        self._report = report
        self._progress = ProgressLine(totals)
        self._file = None if file is None else HealthFile(file)
        self._server = None if address is None else _server(address, report)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="health-file", daemon=True)

    def __enter__(self) -> None:
        if self._file is not None:
            try:
                self._file.write(self._report())
            except OSError as error:
                raise InvalidConfiguration(f"The health file: {error}.") from error
            self._thread.start()
        if self._server is not None:
            self._server.start()
        self._progress.start()

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()
        self._stopped.set()
        if self._server is not None:
            self._server.stop()
        if self._file is not None:
            self._thread.join(timeout=5)
            self._file.remove()

    def _tell(self) -> None:
        assert self._file is not None  # noqa: S101 - the thread is started for it
        while not self._stopped.wait(TELL_SECONDS):
            try:
                self._file.write(self._report())
            except OSError as error:
                # The file grows old, which is what its reader looks at.
                logger.warning("event=health_file_failed error=%s", described(error))


def _server(address: tuple[str, int], report: Callable[[], HealthReport]) -> HealthServer:
    try:
        return HealthServer(*address, report)
    except OSError as error:
        where = f"{address[0]}:{address[1]}"
        raise InvalidConfiguration(f"The health address {where}: {error}.") from error


def forget_metrics(pid: int) -> None:
    """Have the metrics of a process that ended no longer show what it was at."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ and find_spec("prometheus_client") is not None:
        import_module("delayed_queue.observe.metrics").forget_process(pid)


def own_place(board: Board) -> Callable[[], Place]:
    """Return what describes this very process, for a worker without a supervisor."""
    started_at = time.monotonic()
    return lambda: Place(0, os.getpid(), board, started_at)
