"""Unfinished batches: how many, how old, and which members are left."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, rows_of
from delayed_queue.messages import from_milliseconds
from delayed_queue.observe.overview import Count

# At most this many batches are measured, and members counted, in one statement.
MAX_COUNTED: Final = 10_000
# Members counted of each batch, however many batches there are.
_MIN_CAP: Final = 100

# The oldest unfinished batches by queue and state, with the age of the oldest in seconds.
# Reads: delayed_queue_batch_pkey.
UNFINISHED_BATCHES: Final[LiteralString] = f"""{CLOCK}
SELECT
    "pKind", "closedAt" IS NULL, count(*),
    GREATEST((SELECT now FROM clock) - min("createdAt"), 0) / 1000.0::float8
FROM (
    SELECT "pKind", "closedAt", "createdAt"
    FROM delayed_queue_batch
    ORDER BY id
    LIMIT %(limit)s::integer
) AS oldest
GROUP BY 1, 2
"""


def _number_in(table: LiteralString) -> LiteralString:
    """Return a count of a batch's rows in the table, up to a cap.

    BETWEEN keeps the order by two columns, which only the index of members gives. With equality the
    planner would order by the id alone, and might walk the primary key.
    """
    return f"""(
        SELECT count(*)
        FROM (
            SELECT id
            FROM {table}
            WHERE "batchId" BETWEEN batch AND batch
            ORDER BY "batchId" DESC, id DESC
            LIMIT %(cap)s::integer
        ) AS members
    )"""


# The members left of each batch, and the dead letters for which it waits.
# Reads: message_of_batch, dead_letter_of_batch.
COUNT_LEFT: Final[LiteralString] = f"""
SELECT batch, {_number_in("delayed_queue")}, {_number_in("delayed_queue_dead_letter")}
FROM unnest(%(batches)b::bigint[]) AS wanted (batch)
"""

# The first members left of a batch: dead letters, which only an operator removes, then messages by
# age, each with the worker that holds its lease. BETWEEN as above.
# Reads: dead_letter_of_batch, message_of_batch, worker_holder.
FIRST_LEFT: Final[LiteralString] = f"""{CLOCK}
(
    SELECT id, "pKind", "pKey", 'dead', "diedAt", attempts, '', left(reason, 200)
    FROM delayed_queue_dead_letter
    WHERE "batchId" BETWEEN %(batch)s::bigint AND %(batch)s::bigint
    ORDER BY "batchId", id
    LIMIT %(limit)s::integer
)
UNION ALL
(
    SELECT
        id, "pKind", "pKey",
        CASE
            WHEN "scheduledAt" > (SELECT now FROM clock)
            THEN CASE WHEN "lockUuid" IS NULL THEN 'scheduled' ELSE 'leased' END
            ELSE CASE WHEN "lockUuid" IS NULL THEN 'due' ELSE 'expired' END
        END,
        "scheduledAt", attempts,
        COALESCE((
            SELECT name
            FROM delayed_queue_worker
            WHERE holder = left(stored."lockUuid", 8)
            ORDER BY holder DESC, id DESC
            LIMIT 1
        ), ''),
        ''
    FROM delayed_queue AS stored
    WHERE "batchId" BETWEEN %(batch)s::bigint AND %(batch)s::bigint
    ORDER BY "batchId", id
    LIMIT %(limit)s::integer
)
LIMIT %(limit)s::integer
"""


class Unfinished(NamedTuple):
    """The unfinished batches of a queue in a state, and the age of the oldest."""

    kind: str
    is_open: bool
    number: int
    seconds: float


class MemberLeft(NamedTuple):
    """A member that keeps its batch from finishing, and why.

    ``state`` is that of a message, or ``dead``. ``at`` is its due time, the end of its lease or its
    death, in milliseconds. ``worker`` holds the lease; ``reason`` is that of a dead letter.
    """

    id: int
    kind: str
    key: str
    state: str
    at: int
    attempts: int
    worker: str
    reason: str

    @property
    def time(self) -> datetime:
        return from_milliseconds(self.at)


def unfinished(*, using: str = db.DEFAULT_ALIAS) -> list[Unfinished]:
    """Measure the oldest unfinished batches."""
    params = {"limit": MAX_COUNTED, "now": None}
    return rows_of(Unfinished, db.fetch(using, UNFINISHED_BATCHES, params))


def count_left(batches: Sequence[int], *, using: str = db.DEFAULT_ALIAS) -> dict[int, Count]:
    """Count the members left of each batch, up to a cap that falls with their number."""
    cap = max(MAX_COUNTED // max(len(batches), 1), _MIN_CAP)
    rows = db.fetch(using, COUNT_LEFT, {"batches": list(batches), "cap": cap})
    return {
        batch: Count(messages + letters, cap in (messages, letters))
        for batch, messages, letters in rows
    }


def first_left(batch: int, limit: int, *, using: str = db.DEFAULT_ALIAS) -> list[MemberLeft]:
    """Return the first members left of a batch."""
    params = {"batch": batch, "limit": limit, "now": None}
    return rows_of(MemberLeft, db.fetch(using, FIRST_LEFT, params))
