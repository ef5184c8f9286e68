"""Callbacks as a worker sends them: ``python -m benchmarks.callbacks``.

Throughput of one ``runqueueworker``: claim, send, log the attempt, delete. The receiver is a
process of its own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

from benchmarks.shared.database import Connection, benchmark_database, conninfo_of
from benchmarks.shared.machine import describe
from benchmarks.shared.processes import cpu_seconds, running
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.workers import worker_environment
from delayed_queue.codecs import channel_of
from delayed_queue.http.jobs.kinds import Way, topic_kind

DELAYS_MS: Final = (0, 100)
BODY: Final = b'{"orderId": "4711", "state": "unpaid", "note": "' + b"x" * 200 + b'"}'
RESPONSE: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
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


class Receiver(asyncio.Protocol):
    """Responds to each POST after a delay; does no more than it must, to be no limit."""

    delay = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
        if end and len(body) >= int(length):
            self._buffer = b""
            loop = asyncio.get_running_loop()
            loop.call_later(self.delay, self._transport.write, RESPONSE)


def _receive(ports: Pipe) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for delay in DELAYS_MS:
            kind = type("Delayed", (Receiver,), {"delay": delay / 1000})
            server = await loop.create_server(kind, "127.0.0.1", 0, backlog=1024)
            ports.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(main())


@contextmanager
def receiving() -> Iterator[dict[int, int]]:
    """Run a receiver in a process of its own; yield its port for each delay."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_receive, args=(theirs,), daemon=True)
    process.start()
    try:
        yield {delay: ours.recv() for delay in DELAYS_MS}
    finally:
        process.kill()
        process.join()


def main() -> None:
    """Measure a worker with each delay of the receiver."""
    options = Options(".callbacks", __doc__).size("count", 20_000, 2_000, "callbacks")
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
