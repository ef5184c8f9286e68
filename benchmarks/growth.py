"""Polls while the table grows: ``python -m benchmarks.growth``.

A poll with its acknowledgement, of 1 and of 500 messages, on backlogs from 10,000 to 10 million
messages: due in about the order of their offers; due in random order (*shuffled*); and a small
backlog before millions that are scheduled for later. The aim is flat within 20 %.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final, LiteralString

from benchmarks.shared.database import Connection, benchmark_database, empty
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.rounds import percentile

SIZES: Final = (10_000, 100_000, 1_000_000, 10_000_000)
# Polls of a round by batch size; together they take less than the smallest backlog.
POLLS: Final = {500: 15, 1: 300}
ROUNDS: Final = 3
MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
# In about the order of due times (within a minute), or in random order.
WRITE: Final[LiteralString] = """
WITH clock AS MATERIALIZED (SELECT extract(epoch FROM clock_timestamp())::numeric AS now)
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT
    %(prefix)s || n, 'benchmark|json', convert_to(now::text, 'UTF8'), due, due,
    (now * 1000)::bigint
FROM clock, generate_series(1, %(count)s) AS n,
    LATERAL (
        SELECT (now * 1000)::bigint + %(from)s + (random() * 60000)::bigint + (
            CASE WHEN %(shuffled)s THEN random() ELSE n::float8 / %(count)s END * %(spread)s
        )::bigint
    ) AS spread (due)
"""
# The planner has no statistics, and autovacuum adds none during a measurement.
FORGET: Final[LiteralString] = """
ALTER TABLE delayed_queue SET (autovacuum_enabled = false);
DELETE FROM pg_statistic WHERE starelid = 'delayed_queue'::regclass
"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages that are due, and messages scheduled for the next month."""

    due: int
    scheduled: int = 0
    is_shuffled: bool = False

    def __str__(self) -> str:
        later = f" before {self.scheduled:,} scheduled" if self.scheduled else ""
        return f"{self.due:,} due{later}{', shuffled' if self.is_shuffled else ''}"

    def write(self, connection: Connection) -> None:
        """Leave exactly these messages in a table that was never analyzed."""
        empty(connection)
        connection.execute(FORGET)
        self.add_due(connection, self.due, "due-")
        later = {"prefix": "later-", "from": MINUTE_MS, "spread": 30 * DAY_MS, "shuffled": True}
        connection.execute(WRITE, {"count": self.scheduled, **later})
        # Or the server writes gigabytes while we measure.
        connection.execute("CHECKPOINT")

    def add_due(self, connection: Connection, count: int, prefix: str) -> None:
        """Add messages that fell due within the last day."""
        params = {"count": count, "prefix": prefix, "from": -DAY_MS - 2 * MINUTE_MS}
        connection.execute(WRITE, {**params, "spread": DAY_MS, "shuffled": self.is_shuffled})


def main() -> None:
    """Measure polls on growing backlogs."""
    options = _options()
    with benchmark_database(options.database_url) as connection:
        report = Report(describe(connection))
        report.tables = [_polls(connection, options.sizes)]
    report.write(options)


def _options() -> Namespace:
    options = Options(".growth", __doc__)
    options.parser.add_argument("--sizes", nargs="+", type=int, metavar="MESSAGES")
    parsed = options.parse()
    parsed.sizes = parsed.sizes or (SIZES[:2] if parsed.quick else SIZES)
    return parsed


def _polls(connection: Connection, sizes: list[int]) -> Table:
    heads = [
        head for batch in POLLS for head in (f"poll of {batch}, ms: p50", "p90", "of the smallest")
    ]
    table = Table("A poll and its acknowledgement", ("backlog", "statistics", *heads))
    smallest: dict[tuple[str, int], float] = {}
    for backlog in _backlogs(sizes):
        backlog.write(connection)
        for state, polls in _measured(connection, backlog):
            cells = []
            for batch, spent in polls.items():
                middle = median(spent)
                least = smallest.setdefault((state, batch), middle)
                cells += [f"{middle:.2f}", f"{percentile(spent, 90):.2f}", f"{middle / least:.2f}"]
            table.add(str(backlog), state, *cells)
    return table


def _backlogs(sizes: list[int]) -> Iterator[Backlog]:
    yield from map(Backlog, sizes)
    yield Backlog(sizes[-1], is_shuffled=True)
    yield Backlog(sizes[0], scheduled=sizes[-1])


def _measured(
    connection: Connection, backlog: Backlog
) -> Iterator[tuple[str, dict[int, list[float]]]]:
    """Yield the milliseconds of polls by batch size, without statistics and after VACUUM."""
    yield "never analyzed", {batch: _poll(batch, count) for batch, count in POLLS.items()}
    spent: dict[int, list[float]] = {batch: [] for batch in POLLS}
    for number in range(ROUNDS):
        taken = sum(batch * (count + 1) for batch, count in POLLS.items())
        backlog.add_due(connection, taken, f"{number}-")
        _vacuum(connection)
        for batch, count in POLLS.items():
            spent[batch] += _poll(batch, count)
    yield "VACUUM (ANALYZE)", spent


def _poll(batch: int, count: int) -> list[float]:
    """Poll and acknowledge; return the milliseconds of each but the first, which connects."""
    from django.db import connections

    from delayed_queue import DelayedQueue

    # The plans of the previous connection were for another table.
    connections["default"].close()
    queue, spent = DelayedQueue("benchmark"), []
    for _ in range(count + 1):
        started_at = time.perf_counter()
        taken = queue.try_poll_many(batch).acknowledge()
        spent.append((time.perf_counter() - started_at) * 1000)
        if taken != batch:
            raise RuntimeError(f"{taken} messages were taken, not {batch}.")
    return spent[1:]


def _vacuum(connection: Connection) -> None:
    connection.execute("VACUUM (ANALYZE) delayed_queue")
    connection.execute("CHECKPOINT")


if __name__ == "__main__":
    main()
