"""Report a worker's health: in a file, at an address, on a terminal."""

from __future__ import annotations

import json
import logging
import os
import socket
import socketserver
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TextIO

from django.db import connections

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.instruments import add_instrument
from delayed_queue.logs import described, log
from delayed_queue.worker.board import Board, limit_of
from delayed_queue.worker.engine.settling import Counts

# The directory in which prometheus-client shares metrics between processes.
_MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"
# Seconds between two reports in the file and on the terminal.
TELL_SECONDS: Final = 1.0
# Held by the supervisor's reporting threads, so that it does not fork meanwhile. A process forked
# while such a thread holds a lock would wait for that lock forever.
TELLING: Final = threading.Lock()
# Like TELLING, for threads that may wait for the database, so that health reports do not wait.
SCRAPING: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """One process; ``turned_seconds_ago`` is the age of its last loop iteration."""

    process: int
    pid: int
    turned_seconds_ago: float
    in_flight: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class HealthReport:
    """A worker's health, judged by the progress of its claim loops."""

    worker: str
    healthy: bool
    processes: tuple[ProcessHealth, ...]

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(eq=False)
class Place:
    """A process slot of a worker; ``pid`` is 0 while no process runs."""

    index: int
    board: Board
    pid: int = 0
    started_at: float = 0.0
    is_finished: bool = False

    @property
    def turned_seconds_ago(self) -> float:
        return time.monotonic() - max(self.board.turned_at, self.started_at)

    @property
    def is_healthy(self) -> bool:
        # An idle loop iterates at least every quarter of the watchdog's timeout.
        limit = limit_of(self.board) / 2
        return self.is_finished or (self.pid != 0 and self.turned_seconds_ago < limit)

    def health(self) -> ProcessHealth:
        counters = self.board.counters()
        return ProcessHealth(
            self.index, self.pid, round(self.turned_seconds_ago, 3),
            counters["in_flight"], counters["done"], counters["failed"],
        )  # fmt: skip


def report_on(worker: Any, places: Sequence[Place]) -> HealthReport:
    """Return a worker's health: healthy if all its processes are. May run in any thread."""
    healthy = all(each.is_healthy for each in places)
    return HealthReport(str(worker), healthy, tuple(each.health() for each in places))


def write_health_file(path: Path, report: HealthReport) -> None:
    """Replace the file atomically; raise OSError if that fails.

    Probes that run a command read it. Its age is the age of the report.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(report.as_json())
        Path(name).chmod(0o644)  # the probe may be another user
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def problems_of_file(path: str | Path, max_age: timedelta) -> list[str]:
    """Return the problems in a worker's health file; empty if healthy."""
    try:
        age = time.time() - Path(path).stat().st_mtime
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        is_healthy = found["healthy"] is True
    except OSError as error:
        return [f"the health file cannot be read: {error}"]
    except (ValueError, KeyError, TypeError):
        return [f"{path} is not a health file of a worker"]
    problems = (
        [] if is_healthy else [f"the worker {found.get('worker')} reports that it is unhealthy"]
    )
    if age > max_age.total_seconds():
        problems.append(f"the health file is {age:.0f} s old; at most {max_age} is allowed")
    return problems


class HealthServer(ThreadingHTTPServer):
    """Serves ``GET /healthz`` and, with prometheus-client, ``GET /metrics``.

    200 means healthy, 503 unhealthy. The constructor binds the address, so an address in use is
    an error at start-up; port 0 selects a free one.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, report: Callable[[], HealthReport]) -> None:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.address_family, *_, address = found[0]
        self.report = report
        self.metrics = _metrics()
        self._thread = threading.Thread(target=self.serve_forever, name="health", daemon=True)
        super().__init__((str(address[0]), int(address[1])), _Request)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.socket.getsockname()[:2]
        return host, port

    def start(self) -> None:
        # Otherwise a worker process would keep the address after its supervisor ends.
        os.register_at_fork(after_in_child=self.server_close)
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        # HTTPServer would resolve the host's name, which may block.
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Close without a reply; log errors that the client did not cause."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log(logging.ERROR, "health_request_failed", error)


class _Request(BaseHTTPRequestHandler):
    """One request; the connection is closed after it, or after five seconds of silence."""

    server: HealthServer
    timeout = 5.0

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            report = self.server.report()
            status = HTTPStatus.OK if report.healthy else HTTPStatus.SERVICE_UNAVAILABLE
            self._reply(status, report.as_json().encode(), "application/json")
        elif path == "/metrics" and self.server.metrics is not None:
            self._reply(HTTPStatus.OK, *self._exposition(self.server.metrics))
        else:
            self._reply(HTTPStatus.NOT_FOUND, b"", "text/plain")

    def _exposition(self, metrics: Any) -> tuple[bytes, str]:
        with SCRAPING:
            try:
                body, content_type = metrics.exposition(accept=self.headers.get("Accept", ""))
            finally:
                # A collector may have connected to the database in this thread, which ends now.
                connections.close_all()
        return body, content_type

    def _reply(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "delayed_queue"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # the name it has
        """Write nothing: probes come every few seconds."""


class ProgressLine:
    """The totals of a worker on one line of a terminal, overwritten by each ``write``."""

    def __init__(self, counts: Callable[[], Counts], stream: TextIO) -> None:
        self._counts = counts
        self._stream = stream
        self._written_at, self._total = time.monotonic(), counts().total

    def write(self, in_flight: int, end: str = "\r") -> None:
        """Write the line; a terminal that was closed is ignored."""
        now, counts = time.monotonic(), self._counts()
        rate = (counts.total - self._total) / max(now - self._written_at, 1e-3)
        self._written_at, self._total = now, counts.total
        line = (
            f"{counts.done:,} done · {counts.failed:,} failed · {counts.dead:,} dead · "
            f"{in_flight:,} in flight · {rate:,.0f}/s"
        )
        with suppress(OSError):
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80
            # Erase to the end of the line. A log line overwrites this one.
            self._stream.write(f"\r{line[: columns - 1]}\x1b[K{end}")
            self._stream.flush()


class HealthReporter:
    """Reports health to a file, an address and the terminal while the block runs.

    An address in use, or a file that cannot be written, is an error at the start.
    """

    def __init__(
        self,
        report: Callable[[], HealthReport],
        counts: Callable[[], Counts],
        *,
        file: Path | None = None,
        address: tuple[str, int] | None = None,
    ) -> None:
        self._report = report
        self._file = file
        self._progress = ProgressLine(counts, sys.stderr) if sys.stderr.isatty() else None
        self._server = None if address is None else _server(address, report)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health-file", daemon=True)

    def __enter__(self) -> None:
        if self._file is not None:
            try:
                write_health_file(self._file, self._report())
            except OSError as error:
                raise InvalidConfiguration(f"The health file: {error}.") from error
        if self._server is not None:
            self._server.start()
        if self._file is not None or self._progress is not None:
            self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        if self._server is not None:
            self._server.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        if self._file is not None:  # a worker that has stopped is not healthy
            self._file.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._stopped.wait(TELL_SECONDS):
            self._tell()
        self._tell("\n")

    def _tell(self, end: str = "\r") -> None:
        with TELLING:
            report = self._report()
            if self._progress is not None:
                self._progress.write(sum(each.in_flight for each in report.processes), end)
            try:
                if self._file is not None:
                    write_health_file(self._file, report)
            except OSError as error:
                # Readers detect it by the age of the file.
                log(logging.WARNING, "health_file_failed", error=described(error))


def _server(address: tuple[str, int], report: Callable[[], HealthReport]) -> HealthServer:
    try:
        return HealthServer(*address, report)
    except OSError as error:
        where = f"{address[0]}:{address[1]}"
        raise InvalidConfiguration(f"The health address {where}: {error}.") from error


def _metrics() -> Any:
    """Return the module of metrics, None without prometheus-client."""
    has_client = find_spec("prometheus_client") is not None
    return import_module("delayed_queue.observe.metrics") if has_client else None


def _shared_metrics() -> Any:
    """Return the module of metrics if the processes share them."""
    return _metrics() if _MULTIPROCESS in os.environ else None


def measure_if_served(address: tuple[str, int] | None) -> None:
    """Collect metrics if they are served, regardless of the settings."""
    if address is not None and (metrics := _metrics()) is not None:
        add_instrument(metrics.PrometheusInstrument())


@contextmanager
def sharing_metrics(address: tuple[str, int] | None) -> Iterator[None]:
    """Share the metrics of all processes in a temporary directory.

    No action without an address or prometheus-client, or if the operator has set a directory.
    """
    metrics = None if address is None or _MULTIPROCESS in os.environ else _metrics()
    with ExitStack() as stack:
        if metrics is not None:
            try:
                directory = TemporaryDirectory(prefix="delayed_queue-metrics-")
                metrics.share_metrics(stack.enter_context(directory))
            except OSError as error:
                log(logging.WARNING, "metrics_not_shared", error=described(error))
        yield


def number_metrics(process: int) -> None:
    """Number a forked process if metrics are shared."""
    if (metrics := _shared_metrics()) is not None:
        metrics.number_process(process)


def forget_metrics(pid: int, process: int) -> None:
    """Remove the gauges of an ended process from the sums."""
    if (metrics := _shared_metrics()) is not None:
        metrics.forget_child(pid, process)
