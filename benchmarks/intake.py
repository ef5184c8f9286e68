"""The intake of notifications, by each way in: ``python -m benchmarks.intake``.

Beside a bare INSERT of the same row: one commit each, and 1,000 to a commit. HTTP is uvicorn in a
process of its own, called over kept connections by threads of this one, which takes its share of
the cores; the broker is RabbitMQ by ``AMQP_URL``, where that is set.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.database import embedded_server
from benchmarks.figures import Report, Table, parser_for, say
from benchmarks.machine import describe
from example_project.postgres import database_url

ROOT: Final = Path(__file__).resolve().parent.parent
BATCH: Final = 1000
BARE: Final[LiteralString] = """
INSERT INTO delayed_queue_notification (
    id, tenant, source, channel, priority, category, recipient, recipient_hash, template,
    subject, body, html, send_at, dedupe_key, callback_url, status, attempts, provider,
    provider_id, outcome, error_class
)
VALUES (
    %s, 'bench', 'rest', 'email', 'normal', '', 'ada@example.org', '0123456789abcdef', 'order',
    'Your order', %s, '', now(), '', '', 'ENQUEUED', 0, '', '', '', ''
)
"""
BODY: Final = "Dear Ada, thank you for your order. " * 6


def request(number: int) -> dict[str, Any]:
    """Return what most upstream services send: a template, a context, a dedupe key."""
    return {
        "channel": "email",
        "to": f"customer-{number}@example.org",
        "template": "order",
        "context": {
            "name": "Ada", "order": f"SALE-{number}", "total": "12.90 EUR",
            "lines": [{"what": "mug", "count": 2}],
        },
        "dedupeKey": str(uuid.uuid4()),
    }  # fmt: skip


def main() -> None:
    parser = parser_for("intake", __doc__)
    parser.add_argument("--seconds", type=float, help="for each measure (10; quick 2)")
    parser.add_argument("--connections", type=int, default=8, help="HTTP callers at a time")
    options = parser.parse_args()
    options.seconds = options.seconds or (2.0 if options.quick else 10.0)
    server = options.database_url or embedded_server()
    with _database(server) as conninfo, psycopg.connect(conninfo, autocommit=True) as own:
        table = Table("Intake of notifications", ("way in", "per second", "commits of"))
        for name, count, measure in _measures(options, own):
            say(name)
            table.rows.append((name, f"{measure():,.0f}", f"{count:,}"))
        Report(describe(own), [table]).write(options)


def _measures(
    options: Namespace, own: psycopg.Connection[Any]
) -> Iterator[tuple[str, int, Callable[[], float]]]:
    seconds = options.seconds
    yield "bare INSERT", 1, lambda: _repeated(lambda: _bare(own, 1), seconds)
    yield "bare INSERT", BATCH, lambda: _repeated(lambda: _bare(own, BATCH), seconds)
    yield "accept()", 1, lambda: _repeated(lambda: _accept(1), seconds)
    yield "accept()", BATCH, lambda: _repeated(lambda: _accept(BATCH), seconds)
    with _served() as port:
        many = options.connections
        yield f"POST, {many} connections", 1, lambda: _posted(port, many, 1, seconds)
        yield (
            f"POST of lines, {many} connections",
            BATCH,
            lambda: _posted(port, many, BATCH, seconds),
        )
    if url := os.environ.get("AMQP_URL", ""):
        yield "RabbitMQ", 200, lambda: _consumed(url, int(500 * seconds))


def _repeated(call: Callable[[], int], seconds: float) -> float:
    call()
    began_at, done = time.perf_counter(), 0
    while (passed := time.perf_counter() - began_at) < seconds:
        done += call()
    return done / passed


def _bare(connection: psycopg.Connection[Any], count: int) -> int:
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(BARE, [(uuid.uuid4(), BODY) for _ in range(count)])
    return count


def _accept(count: int) -> int:
    from delayed_queue.notifications import intake
    from delayed_queue.notifications.models import Source

    raws = [request(each) for each in range(count)]
    answers = intake.accept(raws, tenant="bench", source=Source.REST)
    assert all(isinstance(each, intake.Accepted) for each in answers)  # noqa: S101
    return count


def _posted(port: int, connections: int, count: int, seconds: float) -> float:
    """Call from as many threads for that long; return the notifications a second."""
    from delayed_queue.http.tokens import create_token

    token = create_token(f"bench/{uuid.uuid4()}", verbs=["add"], topics=["notifications"])
    ends_at = time.perf_counter() + seconds
    done: list[int] = []

    def call() -> None:
        done.append(_calls(port, token, count, ends_at))

    threads = [threading.Thread(target=call) for _ in range(connections)]
    began_at = time.perf_counter()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(done) / (time.perf_counter() - began_at)


def _calls(port: int, token: str, count: int, ends_at: float) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    path = "/v1/notifications" + ("" if count == 1 else "/bulk")
    kind = "application/json" if count == 1 else "application/x-ndjson"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    done = 0
    while time.perf_counter() < ends_at:
        body = "\n".join(json.dumps(request(each)) for each in range(count))
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        told = answer.read()
        if answer.status != 202:
            raise SystemExit(f"{answer.status} {told!r}")
        done += count
    return done


def _consumed(url: str, count: int) -> float:
    from delayed_queue.notifications.broker import Consumer, publish

    queue = f"bench-{uuid.uuid4()}"
    publish((request(each) for each in range(count)), url, queue)
    consumer = Consumer(url, queue, "bench")
    thread = threading.Thread(target=consumer.run)
    began_at = time.perf_counter()
    thread.start()
    while consumer.tally.accepted < count and thread.is_alive():
        time.sleep(0.01)
    took = time.perf_counter() - began_at
    consumer.stop()
    thread.join()
    _delete(url, queue)
    return count / took


def _delete(url: str, queue: str) -> None:
    from kombu import Connection

    with Connection(url) as connection:
        connection.default_channel.queue_delete(queue)


@contextmanager
def _served() -> Iterator[int]:
    """Run the service under uvicorn, one process, on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    command = [
        sys.executable, "-m", "uvicorn", "example_project.asgi:application", "--port", str(port),
        "--log-level", "warning",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: S603 - our own
        try:
            _wait_for(port)
            yield port
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit("the service did not start")


@contextmanager
def _database(server: str) -> Iterator[str]:
    """A database of its own with the tables and templates, for this process and its children."""
    name = f"intake_benchmark_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as maintenance:
        maintenance.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            conninfo = make_conninfo(server, dbname=name)
            _set_up(conninfo)
            yield conninfo
        finally:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
            maintenance.execute(drop)


def _set_up(conninfo: str) -> None:
    parts = conninfo_to_dict(conninfo)
    url = database_url(
        user=str(parts.get("user", "")), password=str(parts.get("password", "")),
        host=str(parts.get("host", "")), port=str(parts.get("port", 5432)),
        name=str(parts["dbname"]),
    )  # fmt: skip
    os.environ |= {
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "DEBUG": "0",
        "SECRET_KEY": "of a benchmark",
        "ALLOWED_HOSTS": "127.0.0.1",
        "LOG_LEVEL": "WARNING",
    }
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    call_command("setupnotifications", verbosity=0)


if __name__ == "__main__":
    main()
