"""Jobs and notifications over HTTP, against bare views: ``python -m benchmarks.http``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.database import benchmark_database, embedded_server
from benchmarks.figures import Report, Table, parser_for, percentile, say
from benchmarks.machine import describe

WARM_UP_SECONDS: Final = 1.0
PATHS: Final = {
    "bare": "bare", "bare async": "bare-async", "one INSERT": "one-insert",
    "POST /v1/jobs": "queue/v1/jobs", "bulk INSERT": "bare-bulk",
    "POST /v1/jobs/bulk": "queue/v1/jobs/bulk", "a row and an offer": "row-and-offer",
    "POST /v1/notifications": "notify/v1/notifications",
}  # fmt: skip
BARE_TABLE: Final = """
CREATE TABLE bare_job (
    id bigserial PRIMARY KEY,
    key text UNIQUE,
    kind text,
    payload bytea,
    due_at timestamptz
)
"""
SERVERS: Final = {
    "uvicorn": ("uvicorn", "benchmarks.webapp.asgi:application", "--port", "0", "--no-access-log"),
    "uvicorn, no wrapper": (
        "uvicorn", "benchmarks.webapp.asgi:plain", "--port", "0", "--no-access-log",
    ),
    "gunicorn, 8 threads": (
        "gunicorn", "benchmarks.webapp.wsgi:application", "--bind", "127.0.0.1:0", "--threads", "8",
        "--worker-class", "gthread", "--keep-alive", "30",
    ),
}  # fmt: skip
_URL: Final = re.compile(r"http://127\.0\.0\.1:\d+")


@dataclass(slots=True)
class Side:
    """One kind of request at one server process; a rate and the CPU of each round.

    ``database_us`` is what PostgreSQL's processes for that server used.
    """

    server: str
    name: str
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    database_us: list[float] = field(default_factory=list)
    taken_ms: list[float] = field(default_factory=list)


def main() -> None:
    """Measure one process of each server, the kinds of requests taking turns."""
    options = _options()
    server = options.database_url or embedded_server()
    with benchmark_database(server, apps=["delayed_queue.notifications"]) as connection:
        from delayed_queue.http.tokens import VERBS, create_token

        report = Report(describe(connection))
        connection.execute(BARE_TABLE)
        conninfo = make_conninfo(server, dbname=connection.info.dbname)
        token = create_token("benchmark", verbs=VERBS, topics=["*"])
        sides = [
            side
            for middleware in options.middleware
            for name in options.servers
            for side in _measured(options, connection, conninfo, token, name, middleware)
        ]
    _tell(report, sides, options)
    report.write(options)


def _options() -> Namespace:
    parser = parser_for("http", __doc__)
    parser.add_argument("--seconds", type=float, help="of each turn (3; quick 1)")
    parser.add_argument("--rounds", type=int, help="turns of each kind (5; quick 2)")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--no-middleware", action="store_true", help="only without any")
    options = parser.parse_args()
    options.middleware = (False,) if options.no_middleware else (False, True)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    options.rounds = options.rounds or (2 if options.quick else 5)
    return options


def _measured(
    options: Namespace,
    connection: psycopg.Connection[Any],
    conninfo: str,
    token: str,
    server: str,
    middleware: bool,
) -> list[Side]:
    title = f"{server}{', seven middlewares' if middleware else ''}"
    paths = {name: PATHS[name] for name in options.paths}
    sides = {name: Side(title, name) for name in paths}
    with _serving(SERVERS[server], conninfo, middleware) as (process, url):
        for path in paths.values():
            _load(f"{url}/{path}", token, options.connections, WARM_UP_SECONDS)
        for _ in range(options.rounds):
            for name, path in paths.items():
                _turn(sides[name], process, connection, f"{url}/{path}", token, options)
    for each in sides.values():
        say(
            f"{title}: {each.name}: {median(each.rates):,.0f}/s, {median(each.cpu_us):.0f} µs, "
            f"PostgreSQL {median(each.database_us):.0f} µs"
        )
    return list(sides.values())


def _turn(
    side: Side,
    process: psutil.Process,
    connection: psycopg.Connection[Any],
    url: str,
    token: str,
    options: Namespace,
) -> None:
    before, database_before = _cpu_seconds(process), _database_seconds(connection)
    taken = _load(url, token, options.connections, options.seconds)
    side.rates.append(len(taken) / options.seconds)
    side.cpu_us.append((_cpu_seconds(process) - before) / len(taken) * 1e6)
    used = _database_seconds(connection) - database_before
    side.database_us.append(used / len(taken) * 1e6)
    side.taken_ms += taken


def _cpu_seconds(process: psutil.Process) -> float:
    """Return what the server's processes have used; gunicorn has one that only watches."""
    used = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in used)


def _database_seconds(connection: psycopg.Connection[Any]) -> float:
    """Return what the sessions of the measured server have used; they stay connected."""
    pids = connection.execute(
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend'"
        " AND pid <> pg_backend_pid()"
    ).fetchall()
    used = [psutil.Process(pid).cpu_times() for (pid,) in pids]
    return sum(each.user + each.system for each in used)


def _load(url: str, token: str, connections: int, seconds: float) -> list[float]:
    command = ["-m", "benchmarks.webapp.load", url, token, str(connections), str(seconds)]
    done = subprocess.run(  # noqa: S603
        [sys.executable, *command], check=True, capture_output=True, text=True, timeout=120
    )
    found: list[float] = json.loads(done.stdout)
    return found


@contextmanager
def _serving(
    command: tuple[str, ...], conninfo: str, middleware: bool
) -> Iterator[tuple[psutil.Process, str]]:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "benchmarks.webapp.settings",
        "BENCHMARK_CONNINFO": conninfo,
        **({"BENCHMARK_MIDDLEWARE": "1"} if middleware else {}),
    }
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", *command], env=environment, stdout=log, stderr=log
        )
        try:
            yield psutil.Process(process.pid), _wait_for_url(process, log)
        finally:
            process.terminate()
            process.wait(30)


def _wait_for_url(process: subprocess.Popen[bytes], log: Any) -> str:
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        text = os.pread(log.fileno(), 100_000, 0).decode(errors="replace")
        if found := _URL.search(text):
            return found[0]
        time.sleep(0.1)
    raise SystemExit(os.pread(log.fileno(), 100_000, 0).decode(errors="replace"))


def _tell(report: Report, sides: list[Side], options: Namespace) -> None:
    table = Table(
        f"One server process, {options.connections} connections, {options.rounds} turns of "
        f"{options.seconds:g} s each",
        ("server", "request", "per second", "per core and second", "CPU of the server, µs",
         "of PostgreSQL, µs", "p50, ms", "p99, ms"),
    )  # fmt: skip
    for each in sides:
        cpu = median(each.cpu_us)
        figures = [f"{median(each.rates):,.0f}", f"{1e6 / cpu:,.0f}", f"{cpu:.0f}"]
        figures.append(f"{median(each.database_us):.0f}")
        figures += [f"{percentile(each.taken_ms, percent):.1f}" for percent in (50, 99)]
        table.rows.append((each.server, each.name, *figures))
    report.tables.append(table)
    report.data = {"http": [{**asdict(each), "taken_ms": []} for each in sides]}


if __name__ == "__main__":
    main()
