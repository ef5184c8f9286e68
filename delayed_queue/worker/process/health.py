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
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from django.db import connections

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.instruments import add_instrument
from delayed_queue.logs import described, log
from delayed_queue.worker.board import Board, limit_of
from delayed_queue.worker.engine.heartbeat import TELLING, ProgressLine, Totals

Exposition = Callable[..., tuple[bytes, str]]
_JSON: Final = "application/json"
# The directory in which prometheus-client shares metrics between processes.
_MULTIPROCESS: Final = "PROMETHEUS_MULTIPROC_DIR"


TELL_SECONDS: Final = 1.0
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


class HealthFile:
    """A file with the last report, for probes that run a command.

    It is replaced atomically, at most once per ``interval`` seconds unless the health has changed.
    Its age is the age of the report.
    """

    def __init__(self, path: str | Path, *, interval: float = 1.0) -> None:
        self._path = Path(path)
        self._interval = interval
        self._written_at = -float("inf")
        self._was_healthy: bool | None = None

    def write(self, report: HealthReport) -> None:
        """Replace the file if it is due; raise OSError if that fails."""
        now = time.monotonic()
        if report.healthy is self._was_healthy and now - self._written_at < self._interval:
            return
        self._replace(report.as_json())
        self._written_at, self._was_healthy = now, report.healthy

    def remove(self) -> None:
        """Delete the file: a worker that has stopped is not healthy."""
        self._path.unlink(missing_ok=True)

    def _replace(self, text: str) -> None:
        handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).chmod(0o644)  # the probe may be another user
            Path(name).replace(self._path)
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


class HealthServer:
    """Serves ``GET /healthz`` and, with prometheus-client, ``GET /metrics``, from threads.

    200 means healthy, 503 unhealthy. The constructor binds the address, so an address in use is
    an error at start-up; port 0 selects a free one. A connection lasts at most ``time_limit``
    seconds.
    """

    def __init__(
        self, host: str, port: int, report: Callable[[], HealthReport], *, time_limit: float = 5.0
    ) -> None:
        self._server = _Server(host, port, report, time_limit)
        self._thread = threading.Thread(
            target=partial(self._server.serve_forever, poll_interval=min(0.5, time_limit)),
            name="health-server",
            daemon=True,
        )

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.socket.getsockname()[:2]
        return host, port

    def start(self) -> None:
        # Otherwise a worker process would keep the address after its supervisor ends.
        os.register_at_fork(after_in_child=self._server.server_close)
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """An HTTP server that limits the duration of each connection."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, host: str, port: int, report: Callable[[], HealthReport], time_limit: float
    ) -> None:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.address_family, *_, address = found[0]
        self.report = report
        self.exposition = _exposition()
        self.time_limit = time_limit
        self._opened: dict[socket.socket, float] = {}
        super().__init__((str(address[0]), int(address[1])), _Request)

    def server_bind(self) -> None:
        # HTTPServer would resolve the host's name, which may block.
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._opened[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._opened.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close expired connections; a timeout per read would not stop slow clients."""
        latest = time.monotonic() - self.time_limit
        for request, opened_at in list(self._opened.items()):
            if opened_at < latest:
                self._opened.pop(request, None)
                _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Close without a reply; log errors that the client did not cause."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log(logging.ERROR, "health_request_failed", error)


def _end(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself


class _Request(BaseHTTPRequestHandler):
    """One request; the connection is closed after it."""

    server: _Server

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.command == "GET":
            return True
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"", "text/plain", Allow="GET")
        return False

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._healthz()
        elif path == "/metrics" and self.server.exposition is not None:
            self._metrics(self.server.exposition)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"", "text/plain")

    def _healthz(self) -> None:
        report = self.server.report()
        status = HTTPStatus.OK if report.healthy else HTTPStatus.SERVICE_UNAVAILABLE
        self._answer(status, report.as_json().encode(), _JSON)

    def _metrics(self, exposition: Exposition) -> None:
        with SCRAPING:
            try:
                body, content_type = exposition(accept=self.headers.get("Accept", ""))
            finally:
                # A collector may have connected to the database in this thread, which ends now.
                connections.close_all()
        self._answer(HTTPStatus.OK, body, content_type)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "delayed_queue"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # the name it has
        """Write nothing: probes come every few seconds."""


def _exposition() -> Exposition | None:
    if find_spec("prometheus_client") is None:
        return None
    found: Exposition = import_module("delayed_queue.observe.metrics").exposition
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """A process slot of a worker; ``pid`` is 0 while no process runs."""

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
    """Return a worker's health: healthy if all its processes are."""
    return HealthReport(
        str(worker),
        all(each.is_healthy for each in places),
        tuple(each.health() for each in places),
    )


def totals_of(counters: Sequence[dict[str, int]]) -> Totals:
    return Totals(*(sum(each[name] for each in counters) for name in Totals._fields))


class HealthReporter(AbstractContextManager[None]):
    """Reports health to a file, an address and the terminal while the block runs.

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
                with TELLING:
                    self._file.write(self._report())
            except OSError as error:
                # Readers detect it by the age of the file.
                log(logging.WARNING, "health_file_failed", error=described(error))


def _server(address: tuple[str, int], report: Callable[[], HealthReport]) -> HealthServer:
    try:
        return HealthServer(*address, report)
    except OSError as error:
        where = f"{address[0]}:{address[1]}"
        raise InvalidConfiguration(f"The health address {where}: {error}.") from error


def measure_if_served(address: tuple[str, int] | None) -> None:
    """Collect metrics if they are served, regardless of the settings."""
    if address is not None and find_spec("prometheus_client") is not None:
        add_instrument(import_module("delayed_queue.observe.metrics").PrometheusInstrument())


@contextmanager
def sharing_metrics(address: tuple[str, int] | None) -> Iterator[None]:
    """Share the metrics of all processes in a temporary directory.

    No action without an address or prometheus-client, or if the operator has set a directory.
    """
    if address is None or _MULTIPROCESS in os.environ or find_spec("prometheus_client") is None:
        yield
        return
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(TemporaryDirectory(prefix="delayed_queue-metrics-"))
            import_module("delayed_queue.observe.metrics").share_metrics(directory)
        except OSError as error:
            log(logging.WARNING, "metrics_not_shared", error=described(error))
        yield


def number_metrics(process: int) -> None:
    """Number a forked process if metrics are shared."""
    if _MULTIPROCESS in os.environ and find_spec("prometheus_client") is not None:
        import_module("delayed_queue.observe.metrics").number_process(process)


def forget_metrics(pid: int, process: int) -> None:
    """Remove the gauges of an ended process from the sums."""
    if _MULTIPROCESS in os.environ and find_spec("prometheus_client") is not None:
        import_module("delayed_queue.observe.metrics").forget_child(pid, process)


def own_place(board: Board) -> Callable[[], Place]:
    """Return a function that describes this process, for a lone worker."""
    started_at = time.monotonic()
    return lambda: Place(0, os.getpid(), board, started_at)
