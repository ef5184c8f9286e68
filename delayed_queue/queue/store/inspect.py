"""Read, count and drop messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, column_of, first_row, row_of, rows_of, value_of
from delayed_queue.queue.store.finishing import COUNT_KEY, COUNT_KIND, finish_step
from delayed_queue.queue.store.fragments import (
    ALL_TIMES,
    ATTEMPTS,
    EXPIRES_AT,
    HEADERS,
    LAST_ERROR,
    TELL_HOLDER,
    first_rows,
)

# One message without a lease, with the instant by which its state is judged.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
READ: Final[LiteralString] = f"""{CLOCK}
SELECT
    "scheduledAt", "scheduledAtInitially", "createdAt", "lockUuid", {ATTEMPTS},
    ({HEADERS})::text, {LAST_ERROR}, payload, now, "group", {EXPIRES_AT}
FROM delayed_queue
CROSS JOIN clock
WHERE "pKey" = %(key)s
    AND "pKind" = %(kind)s
"""

# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
CONTAINS: Final[LiteralString] = """
SELECT EXISTS (
    SELECT 1
    FROM delayed_queue
    WHERE "pKey" = %(key)s
        AND "pKind" = %(kind)s
)
"""


def _drop(condition: LiteralString) -> LiteralString:
    return f"""
DELETE FROM delayed_queue AS stored
WHERE "pKey" = %(key)s
    AND "pKind" = %(kind)s
    AND {condition}
RETURNING {TELL_HOLDER}
"""


# Delete by key in any state; the holder of a lease is notified, and its settlement finds nothing.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
DROP: Final[LiteralString] = _drop('"batchId" IS NULL')

# As DROP, for members of batches, which COUNT_KEY has counted. Reads: as DROP.
DROP_MEMBER: Final[LiteralString] = _drop("""COALESCE("batchId" > 0, false)""")

# Reads: delayed_queue__KindPlusScheduledAtIndex, or the table when the kind fills most of it.
DROP_ALL: Final[LiteralString] = f"""
WITH dropped AS (
    DELETE FROM delayed_queue AS stored
    WHERE "pKind" = %(kind)s
        AND {ALL_TIMES}
    RETURNING {TELL_HOLDER}
)
SELECT count(*)
FROM dropped
"""


def _messages(
    columns: LiteralString, kind: LiteralString, is_due: LiteralString, hidden: LiteralString = ""
) -> LiteralString:
    where: LiteralString = f""""pKind" = {kind}
            AND "scheduledAt" {is_due} (SELECT now FROM clock)"""
    return first_rows(columns, "delayed_queue", where, '"scheduledAt", id', hidden=hidden)


def _leases(limit: LiteralString) -> LiteralString:
    columns, where = '"pKind", "scheduledAt"', '"lockUuid" IS NOT NULL'
    return first_rows(columns, "delayed_queue", where, '"lockUuid", id', limit=limit)


def _letters(kind: LiteralString, hidden: LiteralString = "") -> LiteralString:
    table, where = "delayed_queue_dead_letter", f'"pKind" = {kind}'
    return first_rows("id", table, where, '"diedAt", id', hidden=hidden)


# Counts that each stop at the cap, so the cost is bounded however full the queue is (Q32). Leases
# are counted among the first messages that are not due, and in the lock index, which has those of
# all queues: the larger count is right, or it has reached the cap.
# Reads: delayed_queue__KindPlusScheduledAtIndex, delayed_queue__LockUuidPlusIdIndex,
# dead_letter_kind_died.
STATS: Final[LiteralString] = f"""{CLOCK},
due (number, oldest_at) AS MATERIALIZED (
    SELECT count(*), min("scheduledAt")
    FROM ({_messages('"scheduledAt"', "%(kind)s", "<=")}) AS capped
),
later (scheduled, leased) AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE "lockUuid" IS NULL), count("lockUuid")
    FROM ({_messages('"lockUuid"', "%(kind)s", ">")}) AS capped
),
held (number) AS MATERIALIZED (
    SELECT count(*)
    FROM ({_leases("%(cap)s::integer")}) AS of_all_queues
    WHERE "pKind" = %(kind)s
        AND "scheduledAt" > (SELECT now FROM clock)
),
dead (number) AS MATERIALIZED (
    SELECT count(*)
    FROM ({_letters("%(kind)s")}) AS capped
)
SELECT
    due.number, later.scheduled, GREATEST(later.leased, held.number), dead.number,
    clock.now - due.oldest_at
FROM clock
CROSS JOIN due
CROSS JOIN later
CROSS JOIN held
CROSS JOIN dead
"""


_WALK: Final[LiteralString] = """
WITH RECURSIVE walked (value, position) AS (
    (
        SELECT {column}, 1
        FROM {table}
        WHERE {told}
        ORDER BY {order}
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT {column}
            FROM {table}
            WHERE {told}
                AND {column} > walked.value
            ORDER BY {order}
            LIMIT 1
        ),
        position + 1
    FROM walked
    WHERE value IS NOT NULL
        AND position < %(limit)s::integer
)
SELECT value
FROM walked
WHERE value IS NOT NULL
"""


def distinct_values(
    table: LiteralString, column: LiteralString, *then: LiteralString, told: LiteralString = "true"
) -> LiteralString:
    """Return the statement of a column's distinct values, at most %(limit)s, by a loose index scan.

    It needs one descent for each value; DISTINCT would read all rows. ``then`` are the other
    columns of the index. ``told`` is true of every row, and shows the planner that a partial index
    has them all.
    """
    order = ", ".join((column, *then))
    return _WALK.format(table=table, column=column, order=order, told=told)


# Reads: delayed_queue__KindPlusScheduledAtIndex.
KINDS: Final[LiteralString] = distinct_values(
    "delayed_queue", '"pKind"', '"scheduledAt"', "id", told=ALL_TIMES
)

# STATS for many kinds, each count with a cap of its own, none above %(cap)s. At most %(lease_cap)s
# leases of all kinds are read: when "held" has reached it, each "leased" may be too small and
# "scheduled" too large. "read" counts messages that are not due, leased ones too, so that the index
# suffices: when it has reached its cap, more may be scheduled. The oldest due message is always
# read.
# Reads: delayed_queue__KindPlusScheduledAtIndex, delayed_queue__LockUuidPlusIdIndex,
# dead_letter_kind_died.
OVERVIEW: Final[LiteralString] = f"""{CLOCK},
held AS MATERIALIZED (
    SELECT
        "pKind" AS kind,
        count(*) AS number,
        count(*) FILTER (WHERE "scheduledAt" > (SELECT now FROM clock)) AS leased
    FROM ({_leases("%(lease_cap)s::integer")}) AS capped
    GROUP BY "pKind"
)
SELECT
    queue.kind, due.number, GREATEST(later.read - seen.leased, 0), later.read, seen.leased,
    dead.number, clock.now - due.oldest_at, seen.number
FROM unnest(
    %(kinds)s::text[], %(due_caps)s::integer[], %(later_caps)s::integer[], %(dead_caps)s::integer[]
) AS queue (kind, due_cap, later_cap, dead_cap)
CROSS JOIN clock
CROSS JOIN LATERAL (
    SELECT count(*) AS number, min("scheduledAt") AS oldest_at
    FROM ({_messages('"scheduledAt"', "queue.kind", "<=", "GREATEST(queue.due_cap, 1)")}) AS capped
) AS due
CROSS JOIN LATERAL (
    SELECT count(*) AS read
    FROM ({_messages("1", "queue.kind", ">", "queue.later_cap")}) AS capped
) AS later
CROSS JOIN LATERAL (
    SELECT
        COALESCE(sum(number), 0)::bigint AS number,
        COALESCE(sum(leased) FILTER (WHERE kind = queue.kind), 0)::bigint AS leased
    FROM held
) AS seen
CROSS JOIN LATERAL (
    SELECT count(*) AS number
    FROM ({_letters("queue.kind", "queue.dead_cap")}) AS capped
) AS dead
"""


class StoredRow(NamedTuple):
    """A row as READ returns it, with the instant by which its state is judged."""

    scheduled_at: int
    scheduled_at_initially: int
    created_at: int
    lease_id: str | None
    attempts: int
    headers: str | None
    last_error: str | None
    payload: bytes
    now: int
    group: str | None
    expires_at: int | None


class StatsRow(NamedTuple):
    """The counts of a queue, each at most the cap, and the age of the oldest due message."""

    due: int
    scheduled: int
    leased: int
    dead: int
    oldest_due_age: int | None


class Caps(NamedTuple):
    """The cap of each count of a queue; ``later`` is for scheduled and leased messages."""

    due: int
    later: int
    dead: int


class OverviewRow(NamedTuple):
    """The counts of one queue among many; ``read`` and ``held`` show whether one was cut off."""

    kind: str
    due: int
    scheduled: int
    read: int
    leased: int
    dead: int
    oldest_due_age: int | None
    held: int


class InspectStore:
    """The statements that read, count and drop messages."""

    def read(
        self, kind: str, key: str, *, now: int | None = None, using: str = db.DEFAULT_ALIAS
    ) -> StoredRow | None:
        rows = db.fetch(using, READ, {"kind": kind, "key": key, "now": now})
        return first_row(StoredRow, rows)

    def has_key(self, kind: str, key: str, *, using: str = db.DEFAULT_ALIAS) -> bool:
        return bool(value_of(db.fetch(using, CONTAINS, {"kind": kind, "key": key})))

    def drop(self, kind: str, key: str, *, using: str = db.DEFAULT_ALIAS) -> bool:
        """Delete the message in any state; True if there was one."""
        params = {"kind": kind, "key": key}
        if db.execute(using, DROP, params) == 1:
            return True
        steps = [(COUNT_KEY, params), (DROP_MEMBER, params), finish_step(None)]
        return bool(db.run(using, steps)[1])

    def drop_all(self, kind: str, *, using: str = db.DEFAULT_ALIAS) -> int:
        steps = [(COUNT_KIND, {"kind": kind}), (DROP_ALL, {"kind": kind}), finish_step(None)]
        dropped: int = value_of(db.run(using, steps)[1])
        return dropped

    def stats(
        self, kind: str, cap: int, *, now: int | None = None, using: str = db.DEFAULT_ALIAS
    ) -> StatsRow:
        return row_of(StatsRow, db.fetch(using, STATS, {"kind": kind, "cap": cap, "now": now}))

    def kinds(self, limit: int, *, using: str = db.DEFAULT_ALIAS) -> list[str]:
        """Return the kinds that have messages, at most ``limit``, in the index's order."""
        return column_of(db.fetch(using, KINDS, {"limit": limit}))

    def overview(
        self,
        kinds: Sequence[str],
        cap: int,
        *,
        lease_cap: int,
        caps: Sequence[Caps] | None = None,
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> list[OverviewRow]:
        """Count the messages of each kind, up to ``cap`` or a cap of its own, in any order."""
        own = caps if caps is not None else [Caps(cap, cap, cap)] * len(kinds)
        params: dict[str, Any] = {
            "kinds": list(kinds), "cap": cap, "lease_cap": lease_cap, "now": now,
            "due_caps": [each.due for each in own], "later_caps": [each.later for each in own],
            "dead_caps": [each.dead for each in own],
        }  # fmt: skip
        return rows_of(OverviewRow, db.fetch(using, OVERVIEW, params))

    def notify(self, channel: str, *, using: str = db.DEFAULT_ALIAS) -> None:
        """Wake the listeners of a channel, at the commit of the open transaction if any."""
        db.notify(using, channel)
