"""Jobs and notifications over HTTP beside bare views: ``python -m benchmarks.http``.

One process of each server; the kinds of requests take turns. The CPU of the server process counts
more than the rate, because PostgreSQL and the load need cores too.
"""

from __future__ import annotations

import os
from argparse import Namespace
from statistics import median
from typing import Final

from benchmarks.shared.database import Connection, benchmark_database, conninfo_of
from benchmarks.shared.machine import describe
from benchmarks.shared.processes import cpu_seconds, session_seconds
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.rounds import percentile
from benchmarks.shared.serving import GUNICORN, UVICORN, load, serving

WARM_UP_SECONDS: Final = 1.0
PATHS: Final = {
    "bare": "bare", "one INSERT": "one-insert", "POST /v1/jobs": "queue/v1/jobs",
    "a row and an offer": "row-and-offer", "POST /v1/notifications": "notify/v1/notifications",
}  # fmt: skip
SERVERS: Final = {
    "uvicorn": (*UVICORN, "benchmarks.webapp.asgi:application"),
    "uvicorn, no wrapper": (*UVICORN, "benchmarks.webapp.asgi:plain"),
    "gunicorn, 8 threads": (*GUNICORN, "benchmarks.webapp.wsgi:application"),
}
HEADER: Final = (
    "server", "request", "per second", "per core and second", "CPU of the server, µs",
    "of PostgreSQL, µs", "p50, ms", "p99, ms",
)  # fmt: skip


def main() -> None:
    """Measure each server without middleware, then with that of ``startproject``."""
    options = _options()
    apps = ("delayed_queue.http", "delayed_queue.notifications")
    with benchmark_database(options.database_url, apps) as connection:
        from benchmarks.webapp.urls import BARE_TABLE
        from delayed_queue.http.tokens import VERBS, create_token

        report = Report(describe(connection))
        connection.execute(BARE_TABLE.encode())
        token = create_token("benchmark", verbs=VERBS, topics=["*"])
        table = Table(f"One server process, {options.connections} connections", HEADER)
        for middleware in (False,) if options.no_middleware else (False, True):
            for server in options.servers:
                _measure(table, options, connection, token, server, middleware)
    report.tables.append(table)
    report.write(options)


def _options() -> Namespace:
    options = Options(".http", __doc__).size("seconds", 3.0, 1.0, "seconds of a turn")
    options.size("rounds", 5, 2, "turns of each request")
    add = options.parser.add_argument
    add("--connections", type=int, default=32)
    add("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    add("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    add("--no-middleware", action="store_true", help="only without middleware")
    return options.parse()


def _measure(
    table: Table, options: Namespace, connection: Connection, token: str, server: str,
    middleware: bool,
) -> None:  # fmt: skip
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "benchmarks.webapp.settings",
        "BENCHMARK_CONNINFO": conninfo_of(connection),
        **({"BENCHMARK_MIDDLEWARE": "1"} if middleware else {}),
    }  # fmt: skip
    turns: dict[str, list[tuple[float, float, list[float]]]] = {each: [] for each in options.paths}
    with serving(*SERVERS[server], environment=environment) as (pid, url):
        for number in range(options.rounds + 1):
            seconds = options.seconds if number else WARM_UP_SECONDS
            for name in options.paths:
                before = cpu_seconds(pid), session_seconds(connection)
                spent = load(f"{url}/{PATHS[name]}", token, options.connections, seconds)
                after = cpu_seconds(pid), session_seconds(connection)
                cpu = [(b - a) / len(spent) * 1e6 for a, b in zip(before, after, strict=True)]
                turns[name] += [(cpu[0], cpu[1], spent)] if number else []
    title = f"{server}{', seven middlewares' if middleware else ''}"
    for name, found in turns.items():
        rates = [len(spent) / options.seconds for *_, spent in found]
        cpu_us = median(cpu for cpu, _, _ in found)
        database_us = median(cpu for _, cpu, _ in found)
        every = [each for *_, spent in found for each in spent]
        figures = (median(rates), 1e6 / cpu_us, cpu_us, database_us)
        late = (f"{percentile(every, percent):.1f}" for percent in (50, 99))
        table.add(title, name, *(f"{each:,.0f}" for each in figures), *late)


if __name__ == "__main__":
    main()
