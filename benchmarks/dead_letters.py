"""Many dead letters redriven, and listed by cause: ``python -m benchmarks.dead_letters``."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable
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
    %(kind)s::text, %(kind)s::text || n, convert_to(repeat('x', 100), 'UTF8'), 3, 'exhausted',
    repeat('Traceback ', 40), 0, 0, 1700000000000 + n, md5((n %% %(groups)s)::text)::varchar(16)
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""
# A redrive as one would write it by hand: the next thousand, in the order of their deaths.
BARE_KIND: Final = "bare|json"
BARE: Final = """
WITH next AS (
    SELECT id
    FROM delayed_queue_dead_letter
    WHERE "pKind" = %(kind)s AND ("diedAt", id) > (%(at)s, %(id)s)
    ORDER BY "diedAt", id
    LIMIT 1000
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM delayed_queue_dead_letter AS letter
    USING next
    WHERE letter.id = next.id
    RETURNING letter.id, "diedAt", "pKey", "pKind", payload, headers
),
offered AS (
    INSERT INTO delayed_queue (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
    )
    SELECT "pKey", "pKind", payload, %(at)s, %(at)s, %(at)s, headers
    FROM gone
    ORDER BY "pKey" COLLATE "C"
    ON CONFLICT DO NOTHING
)
SELECT "diedAt", id FROM gone ORDER BY "diedAt" DESC, id DESC LIMIT 1
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
    title = "A redrive without a pace, by one worker's thread, and by bare SQL in turns"
    report.tables += [_told(title, redrive), _told("Groups by cause", listing)]
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


def _fill(connection: psycopg.Connection[Any], letters: int, groups: int, *kinds: str) -> None:
    connection.execute("TRUNCATE delayed_queue_dead_letter, delayed_queue")
    for first in range(0, letters, _AT_ONCE):
        last = min(first + _AT_ONCE, letters) - 1
        for kind in kinds:
            bounds = {"kind": kind, "groups": groups, "first": first, "last": last}
            connection.execute(FILL, bounds)
    connection.execute("VACUUM ANALYZE delayed_queue_dead_letter")
    say(f"{letters:,} letters in {groups:,} groups are there.")


class Side:
    """One of the two that take turns, batch by batch: its time, and the CPU of both ends."""

    def __init__(self, take: Callable[[], bool], pid: int) -> None:
        self.take, self.pid = take, pid
        self.seconds = self.client = self.server = 0.0

    def turn(self) -> bool:
        began, client, server = time.perf_counter(), sum(os.times()[:2]), _server_seconds(self.pid)
        is_on = self.take()
        self.seconds += time.perf_counter() - began
        self.client += sum(os.times()[:2]) - client
        self.server += _server_seconds(self.pid) - server
        return is_on


def _bare(connection: psycopg.Connection[Any]) -> Callable[[], bool]:
    """Return what redrives the next batch by bare SQL, prepared, a transaction each."""
    place = (0, 0)

    def take() -> bool:
        nonlocal place
        params = {"kind": BARE_KIND, "at": place[0], "id": place[1]}
        row = connection.execute(BARE, params, prepare=True).fetchone()
        place = row or place
        return row is not None

    return take


def _redrive(connection: psycopg.Connection[Any], letters: int) -> dict[str, float]:
    from delayed_queue.models import BulkRun
    from delayed_queue.queue.bulk import BulkPlan, step

    _fill(connection, letters, 3, KIND, BARE_KIND)
    run_id = BulkPlan("redrive", KIND).start()
    ours = Side(step, _our_session())
    bare = Side(_bare(connection), connection.info.backend_pid)
    while ours.turn() | bare.turn():
        pass
    done = BulkRun.objects.get(pk=run_id).done
    found = connection.execute('SELECT "pKind", count(*) FROM delayed_queue GROUP BY 1').fetchall()
    if dict(found) != {KIND: done, BARE_KIND: done}:
        raise RuntimeError(f"{done} redriven, and there are {found}.")
    spent, least = ours.client + ours.server, bare.client + bare.server
    return {
        "letters": done, "letters a second": done / ours.seconds,
        "by CPU": done / spent, "bare SQL": done / bare.seconds, "bare, by CPU": done / least,
        "ratio": bare.seconds / ours.seconds, "ratio by CPU": least / spent,
        "client's CPU, µs a letter": ours.client / done * 1e6,
        "server's": ours.server / done * 1e6,
    }  # fmt: skip


def _list(connection: psycopg.Connection[Any], letters: int, groups: int) -> dict[str, float]:
    from delayed_queue.models import DeadLetter

    _fill(connection, letters, groups, KIND)
    spent, server = [], _server_seconds(_our_session())
    for _ in range(LISTINGS):
        began = time.perf_counter()
        found = DeadLetter.objects.groups()
        spent.append((time.perf_counter() - began) * 1000)
    return {
        "letters": letters, "groups": found[0].groups, "first, ms": spent[0],
        "median, ms": sorted(spent)[LISTINGS // 2],
        "server's CPU, ms": (_server_seconds(_our_session()) - server) * 1000 / LISTINGS,
    }  # fmt: skip


def _our_session() -> int:
    from django.db import connection

    connection.ensure_connection()
    pid: int = connection.connection.info.backend_pid
    return pid


def _server_seconds(pid: int) -> float:
    """Return the CPU that a session has had: what a busy machine cannot skew."""
    spent = Path(f"/proc/{pid}/stat").read_text()
    return sum(map(int, spent.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def _told(title: str, figures: dict[str, float]) -> Table:
    return Table(title, tuple(figures), [[f"{each:,.4g}" if isinstance(each, float) else
                                          f"{each:,}" for each in figures.values()]])  # fmt: skip


if __name__ == "__main__":
    main()
