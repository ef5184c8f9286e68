"""The intake of notifications by each entry point: ``python -m benchmarks.intake``.

Beside a bare INSERT of the same row: one to a commit, and 1,000. HTTP is uvicorn in a process of
its own, with the load from another.
"""

from __future__ import annotations

import os
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any, Final

import django
import psycopg
from django.core.management import call_command

from benchmarks.shared.database import (
    Connection,
    embedded_server,
    example_environment,
    new_database,
)
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.serving import UVICORN, load, serving
from benchmarks.webapp.load import BULK
from benchmarks.webapp.rows import NOTIFICATION, notification_row

BATCH: Final = BULK
BODY: Final = "Dear Ada, thank you for your order. " * 6


def main() -> None:
    """Measure notifications a second by each entry point."""
    options = Options(".intake", __doc__).size("seconds", 10.0, 2.0, "seconds of each measure")
    parsed = options.size("connections", 8, 8, "HTTP callers at a time").parse()
    table = Table("Intake of notifications", ("entry point", "per second", "to a commit"))
    with new_database(parsed.database_url or embedded_server()) as conninfo:
        os.environ |= example_environment(conninfo)
        django.setup()
        call_command("migrate", verbosity=0)
        call_command("setupnotifications", verbosity=0)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            report = Report(describe(connection), [table])
            for name, count, rate in _measured(parsed, connection):
                table.add(name, f"{rate:,.0f}", f"{count:,}")
    report.write(parsed)


def _measured(options: Namespace, connection: Connection) -> Iterator[tuple[str, int, float]]:
    seconds, callers = options.seconds, options.connections
    for count in (1, BATCH):
        yield "bare INSERT", count, _repeated(lambda: _insert(connection, count), count, seconds)  # noqa: B023
    for count in (1, BATCH):
        yield "`accept()`", count, _repeated(lambda: _accept(count), count, seconds)  # noqa: B023
    with serving(*UVICORN, "example_project.asgi:application", environment=os.environ) as (_, url):
        for path, count in (("", 1), ("/bulk", BATCH)):
            called = load(f"{url}/v1/notifications{path}", _token(), callers, seconds)
            yield f"`POST` notifications{path}", count, len(called) * count / seconds


def _request(number: int) -> dict[str, Any]:
    """Return what most services send: a template, a context, a deduplication key."""
    lines = [{"what": "mug", "count": 2}]
    context = {"name": "Ada", "order": f"SALE-{number}", "total": "12.90 EUR", "lines": lines}
    return {
        "channel": "email", "to": f"customer-{number}@example.org", "template": "order",
        "context": context, "dedupeKey": str(uuid.uuid4()),
    }  # fmt: skip


def _repeated(call: Callable[[], None], count: int, seconds: float) -> float:
    call()
    began_at, done = time.perf_counter(), 0
    while (passed := time.perf_counter() - began_at) < seconds:
        call()
        done += count
    return done / passed


def _insert(connection: Connection, count: int) -> None:
    asked = {"channel": "email", "to": "ada@example.org", "subject": "Your order",
             "body": BODY, "dedupeKey": ""}  # fmt: skip
    rows = [notification_row(uuid.uuid4(), asked) for _ in range(count)]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(NOTIFICATION, rows)


def _accept(count: int) -> None:
    from delayed_queue.notifications import intake

    requests = [_request(each) for each in range(count)]
    outcomes = intake.accept(requests, tenant="bench")
    if not all(isinstance(each, intake.Accepted) for each in outcomes):
        raise RuntimeError(f"Not all were accepted: {outcomes[:3]}")


def _token() -> str:
    from delayed_queue.http.tokens import create_token

    return create_token(f"bench/{uuid.uuid4()}", verbs=["add"], topics=["notifications"])


if __name__ == "__main__":
    main()
