"""Many dead letters redriven, and listed by cause: ``python -m benchmarks.dead_letters``."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.database import benchmark_database, embedded_server
from benchmarks.figures import Report, Table, parser_for, say
from benchmarks.machine import describe

KIND: Final = "benchmark|json"
LISTINGS: Final = 5
# Died one by one, as the groups come by turns; a traceback is what makes a letter large.
FILL: Final = """
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "lastError", "scheduledAtInitially", "createdAt",
    "diedAt", fingerprint
)
SELECT
    %(kind)s, 'key-' || n, convert_to(repeat('x', 100), 'UTF8'), 3, 'attempts exhausted',
    repeat('Traceback ', 40), 0, 0, 1700000000000 + n, md5((n %% %(groups)s)::text)::varchar(16)
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""
_AT_ONCE: Final = 1_000_000


def main() -> None:
    """Measure a redrive of all letters of a queue, then the list of what many more died of."""
    options = _options()
    with benchmark_database(options.database_url or embedded_server()) as connection:
        report = Report(describe(connection))
        redrive = _redrive(connection, options.letters)
        listing = _list(connection, options.listed, options.groups)
    report.data = {"redrive": redrive, "listing": listing}
    report.tables += [_told("A redrive without a pace, by one worker's thread", redrive),
                      _told("Groups by cause", listing)]  # fmt: skip
    report.write(options)


def _options() -> Namespace:
    parser = parser_for("dead_letters", __doc__)
    parser.add_argument("--letters", type=int, help="redriven (1,000,000; quick 100,000)")
    parser.add_argument("--listed", type=int, help="listed (10,000,000; quick 1,000,000)")
    parser.add_argument("--groups", type=int, default=5_000, help="of those listed (5,000)")
    options = parser.parse_args()
    options.letters = options.letters or (100_000 if options.quick else 1_000_000)
    options.listed = options.listed or (1_000_000 if options.quick else 10_000_000)
    return options


def _fill(connection: psycopg.Connection[Any], letters: int, groups: int) -> None:
    connection.execute("TRUNCATE delayed_queue_dead_letter, delayed_queue")
    for first in range(0, letters, _AT_ONCE):
        last = min(first + _AT_ONCE, letters) - 1
        bounds = {"kind": KIND, "groups": groups, "first": first, "last": last}
        connection.execute(FILL, bounds)
    connection.execute("VACUUM ANALYZE delayed_queue_dead_letter")
    say(f"{letters:,} letters in {groups:,} groups are there.")


def _redrive(connection: psycopg.Connection[Any], letters: int) -> dict[str, float]:
    from delayed_queue.models import BulkRun
    from delayed_queue.queue.bulk import BulkPlan, step

    _fill(connection, letters, 3)
    run_id = BulkPlan("redrive", KIND).start()
    began, cpu, server = time.perf_counter(), sum(os.times()[:2]), _server_seconds()
    while step():
        pass
    seconds = time.perf_counter() - began
    run = BulkRun.objects.get(pk=run_id)
    return {
        "letters": run.done, "seconds": seconds, "letters a second": run.done / seconds,
        "client's CPU seconds": sum(os.times()[:2]) - cpu,
        "server's": _server_seconds() - server,
    }  # fmt: skip


def _list(connection: psycopg.Connection[Any], letters: int, groups: int) -> dict[str, float]:
    from delayed_queue.models import DeadLetter

    _fill(connection, letters, groups)
    spent, server = [], _server_seconds()
    for _ in range(LISTINGS):
        began = time.perf_counter()
        found = DeadLetter.objects.groups()
        spent.append((time.perf_counter() - began) * 1000)
    return {
        "letters": letters, "groups": found[0].groups, "first, ms": spent[0],
        "median, ms": sorted(spent)[LISTINGS // 2],
        "server's CPU, ms": (_server_seconds() - server) * 1000 / LISTINGS,
    }  # fmt: skip


def _server_seconds() -> float:
    """Return the CPU that our session has had: what a busy machine cannot skew."""
    from django.db import connection

    connection.ensure_connection()
    spent = Path(f"/proc/{connection.connection.info.backend_pid}/stat").read_text()
    return sum(map(int, spent.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def _told(title: str, figures: dict[str, float]) -> Table:
    return Table(title, tuple(figures), [[f"{each:,.4g}" if isinstance(each, float) else
                                          f"{each:,}" for each in figures.values()]])  # fmt: skip


if __name__ == "__main__":
    main()
