"""Callbacks as a worker sends them: ``python -m benchmarks.callback_workers``.

Throughput of one worker process at several answer times, the lateness of jobs that fall due over a
while, and what a dead host beside a healthy one costs. The receiver is a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Final

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.callbacks import BODY, receiving
from benchmarks.database import benchmark_database, embedded_server
from benchmarks.figures import Report, Table, parser_for, percentile, say
from delayed_queue.codecs import channel_of
from delayed_queue.db.sql import NOTIFY
from delayed_queue.http.jobs.kinds import OWN_SHARDS, Way, topic_kind

TOPIC: Final = "orders"
# Where the jobs to the other host are: in a shard of the topic that is theirs, among the first
# ones in a shard that hosts share, and in a topic of their own.
KIND: Final = topic_kind(TOPIC, 0, Way.CALLBACK)
SHARED: Final = topic_kind(TOPIC, OWN_SHARDS, Way.CALLBACK)
OTHER_KINDS: Final = (
    (KIND, topic_kind(TOPIC, 1, Way.CALLBACK)), (SHARED, SHARED),
    (KIND, topic_kind("others", 0, Way.CALLBACK)),
)  # fmt: skip
# Receives nothing, answers nothing: connections are accepted by the kernel alone.
ADD: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
)
SELECT %(prefix)s || n, %(kind)s, %(body)s, due, due, due, jsonb_build_object('url', %(url)s::text)
FROM (
    SELECT n, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
        + (%(first)s + n * %(spread)s / %(count)s)::bigint AS due
    FROM generate_series(1, %(count)s) AS n
) AS numbered
"""
LEFT: Final = """
SELECT count(*)
FROM (SELECT 1 FROM delayed_queue WHERE "pKey" LIKE %s LIMIT %s) AS jobs
"""
WORKER: Final = """
import sys
import django
from django.conf import settings
settings.configure(**__import__("json").loads(sys.argv[1]))
django.setup()
from datetime import timedelta
from delayed_queue.management.commands.runqueueworker import Command
from delayed_queue.worker import Worker, WorkerOptions
worker = Worker(WorkerOptions(
    cron=False, only_sourced=True, async_concurrency=int(sys.argv[2]),
    shutdown_timeout=timedelta(seconds=1),
))
__import__("signal").signal(15, lambda *_: worker.stop())
Command()._spare_the_collector()
worker.run()
"""


def main() -> None:
    """Measure throughput, lateness, and a dead host; each on an empty table."""
    options = _options()
    server = options.database_url or embedded_server()
    report = Report({"cores": str(os.cpu_count()), "Python": platform.python_version()})
    with receiving() as ports, silent() as hole, benchmark_database(server) as connection:
        _make_topics(connection)
        works = {
            "throughput": lambda: _throughput(connection, ports, options),
            "lateness": lambda: _lateness(connection, ports[0], options),
            "dead": lambda: _beside_a_dead_host(connection, ports[0], hole, options),
        }
        report.tables += [work() for name, work in works.items() if name in options.only]
    report.write(options)


def _options() -> Namespace:
    parser = parser_for("callback_workers", __doc__)
    parser.add_argument("--count", type=int, help="jobs of a throughput run (20000; quick 2000)")
    parser.add_argument("--seconds", type=float, help="over which jobs fall due (60; quick 5)")
    parser.add_argument("--dead", type=int, help="jobs to the dead host (50000; quick 2000)")
    parser.add_argument("--rounds", type=int, help="with a dead host, the median (3; quick 1)")
    parser.add_argument("--only", choices=("throughput", "lateness", "dead"), nargs="+")
    parser.add_argument("--concurrency", type=int, default=100, help="callbacks at a time (100)")
    options = parser.parse_args()
    options.only = options.only or ["throughput", "lateness", "dead"]
    options.count = options.count or (2_000 if options.quick else 20_000)
    options.seconds = options.seconds or (5.0 if options.quick else 60.0)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.dead = options.dead or (2_000 if options.quick else 50_000)
    return options


def _hold(ports: Any) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=4096) as server:
        ports.send(server.getsockname()[1])
        time.sleep(3600)


@contextmanager
def silent() -> Iterator[int]:
    """Have a port that accepts connections and never answers."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_hold, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def _make_topics(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        'INSERT INTO delayed_queue_topic (name, hosts, "createdAt") '
        "VALUES (%s, %s, 0), ('others', '', 0)",
        [TOPIC, " ".join(f"host-{n}:80" for n in range(OWN_SHARDS))],
    )


def _add(
    connection: psycopg.Connection[Any], count: int, port: int, *, prefix: str = "k",
    first: float = 0, spread: float = 0, kind: str = KIND,
) -> None:  # fmt: skip
    params = {
        "prefix": prefix, "kind": kind, "body": BODY, "first": first,
        "url": f"http://127.0.0.1:{port}/hook", "spread": spread, "count": count,
    }  # fmt: skip
    connection.execute(ADD, params)
    connection.execute(NOTIFY, {"channel": channel_of(kind)})


@contextmanager
def _worker(
    connection: psycopg.Connection[Any], ports: list[int], concurrency: int
) -> Iterator[psutil.Process]:
    import json

    parts = conninfo_to_dict(connection.info.dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"],
        "USER": parts.get("user", ""), "PASSWORD": connection.info.password,
        "HOST": parts.get("host", ""), "PORT": parts.get("port", ""),
    }  # fmt: skip
    callbacks = {"ENABLED": True, "ALLOWED_NETWORKS": ["127.0.0.1"], "ALLOWED_PORTS": ports}
    configured = {
        "INSTALLED_APPS": ["delayed_queue", "delayed_queue.http"],
        "DATABASES": {"default": database}, "USE_TZ": True,
        "SECRET_KEY": "benchmark" * 5, "DELAYED_QUEUE": {"CALLBACKS": callbacks},
        "LOGGING_CONFIG": None,
    }  # fmt: skip
    # One topic alone leaves a ninth of the slots to others.
    slots = concurrency * 9 // 8 + 1
    process = subprocess.Popen(  # noqa: S603 # our own interpreter
        [sys.executable, "-c", WORKER, json.dumps(configured), str(slots)]
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)
        connection.execute("TRUNCATE delayed_queue, delayed_queue_callback_attempt")


def _wait(connection: psycopg.Connection[Any], like: str = "%", least: int = 0) -> float:
    """Return when no more than so many such jobs are left."""
    while True:
        # No more of them than must be: the worker wants the processors.
        row = connection.execute(LEFT, [like, least + 1]).fetchone()
        if row is not None and row[0] <= least:
            return time.perf_counter()
        time.sleep(0.02)


def _throughput(
    connection: psycopg.Connection[Any], ports: dict[int, int], options: Namespace
) -> Table:
    table = Table("One worker process", ("answers after", "callbacks a second", "CPU µs each"))
    for delay, port in ports.items():
        count = options.count if not delay else options.count // 5
        with _worker(connection, list(ports.values()), options.concurrency) as worker:
            _add(connection, 200, port, prefix="warm")
            _wait(connection)
            began, cpu_began = time.perf_counter(), _cpu_seconds(worker)
            _add(connection, count, port)
            rate = count / (_wait(connection) - began)
            cpu_us = (_cpu_seconds(worker) - cpu_began) / count * 1e6
        table.rows.append([f"{delay} ms", f"{rate:,.0f}", f"{cpu_us:.0f}"])
        say(" ".join(table.rows[-1]))
    return table


def _cpu_seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


def _lateness(connection: psycopg.Connection[Any], port: int, options: Namespace) -> Table:
    count = round(10_000 * options.seconds / 60)
    with _worker(connection, [port], options.concurrency):
        _add(connection, 200, port, prefix="warm")
        _wait(connection)
        spread = options.seconds * 1000
        _add(connection, count, port, first=2000, spread=spread)
        starts = 'SELECT min("scheduledAt"), count(*) FROM delayed_queue'
        row = connection.execute(starts).fetchone()
        assert row is not None  # noqa: S101 - an aggregate
        first = row[0] - spread / count
        _wait(connection)
        time.sleep(1)
        late = connection.execute(
            """SELECT "startedAt" - (%s + substr(key, 2)::integer * %s::float8 / %s)
            FROM delayed_queue_callback_attempt WHERE key LIKE 'k%%'""",
            [first, spread, count],
        ).fetchall()
    found = sorted(float(each[0]) for each in late)
    title = f"Lateness of {count:,} jobs over {options.seconds:g} s, in ms"
    table = Table(title, ("jobs", "p50", "p99", "most"))
    shown = (percentile(found, 50), percentile(found, 99), found[-1])
    table.rows.append([f"{len(found):,}", *(f"{each:.0f}" for each in shown)])
    say(" ".join(table.rows[-1]))
    return table


def _beside_a_dead_host(
    connection: psycopg.Connection[Any], port: int, hole: int, options: Namespace
) -> Table:
    title = f"Seconds until 1,000 jobs were sent, {options.dead:,} to a dead host before them"
    table = Table(
        title, ("dead host", "in one topic", "in one shared shard", "in topics of their own")
    )
    for name, dead in (("none", None), ("refuses", 9), ("answers nothing", hole)):
        seconds = [
            median(
                _seconds_beside(connection, port, dead, kinds, options)
                for _ in range(options.rounds)
            )
            for kinds in OTHER_KINDS
        ]
        table.rows.append([name, *(f"{each:.2f}" for each in seconds)])
        say(" ".join(table.rows[-1]))
    return table


def _seconds_beside(
    connection: psycopg.Connection[Any], port: int, dead: int | None, kinds: tuple[str, str],
    options: Namespace,
) -> float:  # fmt: skip
    """Return the seconds from the commit that offers all until the healthy ones were sent."""
    ports = [port, *([] if dead is None else [dead])]
    with _worker(connection, ports, options.concurrency):
        _add(connection, 200, port, prefix="warm", kind=kinds[0])
        _wait(connection)
        with connection.transaction():
            if dead is not None:
                _add(connection, options.dead, dead, prefix="dead", first=-1000, kind=kinds[1])
            _add(connection, 1000, port, prefix="good", kind=kinds[0])
        began = time.perf_counter()
        seconds = _wait(connection, "good%") - began
    connection.execute("TRUNCATE delayed_queue_host")
    return seconds


if __name__ == "__main__":
    main()
