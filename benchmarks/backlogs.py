"""Backlogs of millions, written by the server itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg

from benchmarks.database import OURS, empty

JSON_KIND: Final = "benchmark|json"

# A backlog is offered in about the order of its due times, within the last day and a minute
# about; what is scheduled, and a shuffled backlog, in none. The payload is the time of the offer.
WRITE: Final[LiteralString] = """
WITH clock AS MATERIALIZED (SELECT extract(epoch FROM clock_timestamp())::numeric AS now)
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT
    %(prefix)s || n, %(kind)s, convert_to(now::text, 'UTF8'), due, due, (now * 1000)::bigint
FROM clock, generate_series(1, %(count)s) AS n,
    LATERAL (
        SELECT (now * 1000)::bigint + %(from)s + (random() * 60000)::bigint + (
            CASE WHEN %(shuffled)s THEN random() ELSE n::float8 / %(count)s END * %(spread)s
        )::bigint
    ) AS spread (due)
"""
MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
# The planner knows nothing of the table, and nobody comes to tell it during a measurement.
FORGET: Final[LiteralString] = """
ALTER TABLE delayed_queue SET (autovacuum_enabled = false);
DELETE FROM pg_statistic WHERE starelid = 'delayed_queue'::regclass
"""
ANALYZED: Final = "VACUUM (ANALYZE)"
NEVER_ANALYZED: Final = "never analyzed"


@dataclass(frozen=True, slots=True)
class Backlog:
    """So many messages that are due, and so many that are not yet."""

    due: int
    scheduled: int = 0
    is_shuffled: bool = False

    def __str__(self) -> str:
        later = f" before {self.scheduled:,} scheduled" if self.scheduled else ""
        return f"{self.due:,} due{later}{', shuffled' if self.is_shuffled else ''}"

    def write(self, connection: psycopg.Connection[Any]) -> None:
        """Leave exactly this in the table, unknown to the planner."""
        empty(connection, OURS)
        connection.execute(FORGET)
        self.add_due(connection, self.due, "due-")
        later = {"from": MINUTE_MS, "spread": 30 * DAY_MS, "shuffled": True}
        _write(connection, self.scheduled, "later-", later)
        checkpoint(connection)

    def add_due(self, connection: psycopg.Connection[Any], count: int, prefix: str) -> None:
        """Add messages that fell due within the last day."""
        since = -DAY_MS - 2 * MINUTE_MS
        due = {"from": since, "spread": DAY_MS, "shuffled": self.is_shuffled}
        _write(connection, count, prefix, due)


def _write(
    connection: psycopg.Connection[Any], count: int, prefix: str, parameters: dict[str, Any]
) -> None:
    whole = {"prefix": prefix, "kind": JSON_KIND, "count": count, **parameters}
    connection.execute(WRITE, whole)


def vacuum(connection: psycopg.Connection[Any]) -> None:
    connection.execute("VACUUM (ANALYZE) delayed_queue")
    checkpoint(connection)


def checkpoint(connection: psycopg.Connection[Any]) -> None:
    """Have what was written on the disk, or the server writes gigabytes while we measure."""
    connection.execute("CHECKPOINT")
