"""Callbacks as a worker sends them: ``python -m benchmarks.callback_workers``.

Throughput of one ``runqueueworker``: claim, send, log the attempt, delete. The receiver is a
process of its own.
"""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Final

from benchmarks.callbacks import BODY, receiving
from benchmarks.shared.database import Connection, benchmark_database, conninfo_of
from benchmarks.shared.machine import describe
from benchmarks.shared.processes import cpu_seconds, running
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.workers import worker_environment
from delayed_queue.codecs import channel_of
from delayed_queue.http.jobs.kinds import Way, topic_kind

KIND: Final = topic_kind("orders", 0, Way.CALLBACK)
TOPIC: Final = """
INSERT INTO delayed_queue_topic (name, hosts, "createdAt")
VALUES ('orders', %s, 0)
"""
ADD: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
)
SELECT %(prefix)s || n, %(kind)s, %(body)s, n, n, n, jsonb_build_object('url', %(url)s::text)
FROM generate_series(1, %(count)s) AS n
"""
LEFT: Final = "SELECT FROM delayed_queue LIMIT 1"


def main() -> None:
    """Measure a worker with each delay of the receiver."""
    options = Options(".callback_workers", __doc__).size("count", 20_000, 2_000, "callbacks")
    parsed = options.size("concurrency", 100, 100, "callbacks at a time").parse()
    header = ("response after", "callbacks a second", "CPU each, µs")
    table = Table(f"One worker process, {parsed.concurrency} at a time", header)
    apps = ("delayed_queue.http", "delayed_queue.notifications")
    with receiving() as ports, benchmark_database(parsed.database_url, apps) as connection:
        report = Report(describe(connection), [table])
        for delay, port in ports.items():
            count = parsed.count // (5 if delay else 1)
            rate, cpu_us = _measured(connection, port, count, parsed)
            table.add(f"{delay} ms", f"{rate:,.0f}", f"{cpu_us:.0f}")
    report.write(parsed)


def _measured(
    connection: Connection, port: int, count: int, options: Namespace
) -> tuple[float, float]:
    """Return the callbacks a second and the CPU of each, in µs, after some to warm up."""
    connection.execute("TRUNCATE delayed_queue, delayed_queue_topic")
    connection.execute(TOPIC, [f"127.0.0.1:{port}"])
    callbacks = {"ENABLED": True, "ALLOWED_NETWORKS": ["127.0.0.1"], "ALLOWED_PORTS": [port]}
    environment = worker_environment(conninfo_of(connection), Path(), CALLBACKS=callbacks)
    environment["DJANGO_SETTINGS_MODULE"] = "benchmarks.webapp.settings"
    # One topic alone leaves a ninth of the slots to others.
    slots = str(options.concurrency * 9 // 8 + 1)
    command = ("-m", "django", "runqueueworker", "--async-concurrency", slots)
    with running(*command, environment=environment) as process:
        _send(connection, 200, port, "warm")
        began, cpu_began = time.perf_counter(), cpu_seconds(process.pid)
        _send(connection, count, port, "k")
        seconds = time.perf_counter() - began
        return count / seconds, (cpu_seconds(process.pid) - cpu_began) / count * 1e6


def _send(connection: Connection, count: int, port: int, prefix: str) -> None:
    """Add jobs that are due; return when none is left."""
    url = f"http://127.0.0.1:{port}/hook"
    params = {"prefix": prefix, "kind": KIND, "body": BODY, "url": url, "count": count}
    connection.execute(ADD, params)
    connection.execute("SELECT pg_notify(%s, '')", [channel_of(KIND)])
    while connection.execute(LEFT).fetchone() is not None:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
