"""Read, count and drop messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, column_of, first_row, row_of, rows_of, value_of
from delayed_queue.queue.store.fragments import (
    ALL_TIMES,
    ATTEMPTS,
    HEADERS,
    LAST_ERROR,
    TELL_HOLDER,
)

# Report one message without leasing it, with the instant that its state is judged by.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
READ: Final[LiteralString] = f"""{CLOCK}
SELECT
    "scheduledAt", "scheduledAtInitially", "createdAt", "lockUuid", {ATTEMPTS},
    ({HEADERS})::text, {LAST_ERROR}, payload, now, "group"
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

# Delete by key whatever its state; the holder of a leased one is told, and can settle nothing.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
DROP: Final[LiteralString] = f"""
DELETE FROM delayed_queue AS stored
WHERE "pKey" = %(key)s
    AND "pKind" = %(kind)s
RETURNING {TELL_HOLDER}
"""

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


# Counts that each stop at the cap, so that they cost no more however full the queue is (Q32). Their
# limits are doubled as in select_due. Leases are counted among the first
# messages that are not due, and in the lock index, which holds the rows in flight of all queues:
# the larger count is right or, like "scheduled" plus "leased", has reached the cap.
# Reads: delayed_queue__KindPlusScheduledAtIndex, delayed_queue__LockUuidPlusIdIndex,
# dead_letter_kind_died.
STATS: Final[LiteralString] = f"""{CLOCK},
due (number, oldest_at) AS MATERIALIZED (
    SELECT count(*), min("scheduledAt")
    FROM (
        SELECT "scheduledAt"
        FROM (
            SELECT "scheduledAt"
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "scheduledAt" <= (SELECT now FROM clock)
            ORDER BY "scheduledAt", id
            LIMIT (SELECT %(cap)s::integer)
        ) AS first
        LIMIT %(cap)s::integer
    ) AS capped
),
later (scheduled, leased) AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE "lockUuid" IS NULL), count("lockUuid")
    FROM (
        SELECT "lockUuid"
        FROM (
            SELECT "lockUuid"
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "scheduledAt" > (SELECT now FROM clock)
            ORDER BY "scheduledAt", id
            LIMIT (SELECT %(cap)s::integer)
        ) AS first
        LIMIT %(cap)s::integer
    ) AS capped
),
held (number) AS MATERIALIZED (
    SELECT count(*)
    FROM (
        SELECT "pKind", "scheduledAt"
        FROM (
            SELECT "pKind", "scheduledAt"
            FROM delayed_queue
            WHERE "lockUuid" IS NOT NULL
            ORDER BY "lockUuid", id
            LIMIT (SELECT %(cap)s::integer)
        ) AS first
        LIMIT %(cap)s::integer
    ) AS of_all_queues
    WHERE "pKind" = %(kind)s
        AND "scheduledAt" > (SELECT now FROM clock)
),
dead (number) AS MATERIALIZED (
    SELECT count(*)
    FROM (
        SELECT id
        FROM (
            SELECT id
            FROM delayed_queue_dead_letter
            WHERE "pKind" = %(kind)s
            ORDER BY "diedAt", id
            LIMIT (SELECT %(cap)s::integer)
        ) AS first
        LIMIT %(cap)s::integer
    ) AS capped
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


def walking(
    table: LiteralString, column: LiteralString, *then: LiteralString, told: LiteralString = "true"
) -> LiteralString:
    """Return the statement of a column's distinct values, at most %(limit)s, by a loose index scan.

    One descent for each, however many rows it has, where DISTINCT would read all of them. ``then``
    are the other columns of the index: the inner selects name its order in full. ``told`` is
    true of every row, and tells the planner that a partial index has them all.
    """
    order = ", ".join((column, *then))
    return _WALK.format(table=table, column=column, order=order, told=told)


# Reads: delayed_queue__KindPlusScheduledAtIndex.
KINDS: Final[LiteralString] = walking(
    "delayed_queue", '"pKind"', '"scheduledAt"', "id", told=ALL_TIMES
)

# STATS for many kinds at once. The leases are read once for all of them, in an order that does
# not follow the kind: %(lease_cap)s bounds their sum, so when "held" has reached it, every
# count of leases may be too small. "read" is how many messages that are not yet due were looked
# at, leased ones too: when it has reached the cap, there may be more scheduled ones behind. Of
# these the index alone is read, and the leases are taken off: where not all leases were seen,
# "scheduled" may be too large. Each count of each kind has a cap of its own, none above %(cap)s; of
# what is due the oldest is read whatever the cap, since its age is told.
# Reads: delayed_queue__KindPlusScheduledAtIndex, delayed_queue__LockUuidPlusIdIndex,
# dead_letter_kind_died.
OVERVIEW: Final[LiteralString] = f"""{CLOCK},
held AS MATERIALIZED (
    SELECT
        kind,
        count(*) AS number,
        count(*) FILTER (WHERE leased_until > (SELECT now FROM clock)) AS leased
    FROM (
        SELECT kind, leased_until
        FROM (
            SELECT "pKind" AS kind, "scheduledAt" AS leased_until
            FROM delayed_queue
            WHERE "lockUuid" IS NOT NULL
            ORDER BY "lockUuid", id
            LIMIT (SELECT %(lease_cap)s::integer)
        ) AS first
        LIMIT %(lease_cap)s::integer
    ) AS capped
    GROUP BY kind
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
    FROM (
        SELECT "scheduledAt"
        FROM (
            SELECT "scheduledAt"
            FROM delayed_queue
            WHERE "pKind" = queue.kind
                AND "scheduledAt" <= (SELECT now FROM clock)
            ORDER BY "scheduledAt", id
            LIMIT (SELECT GREATEST(queue.due_cap, 1))
        ) AS first
        LIMIT %(cap)s::integer
    ) AS capped
) AS due
CROSS JOIN LATERAL (
    SELECT count(*) AS read
    FROM (
        SELECT 1
        FROM (
            SELECT 1
            FROM delayed_queue
            WHERE "pKind" = queue.kind
                AND "scheduledAt" > (SELECT now FROM clock)
            ORDER BY "scheduledAt", id
            LIMIT (SELECT queue.later_cap)
        ) AS first
        LIMIT %(cap)s::integer
    ) AS capped
) AS later
CROSS JOIN LATERAL (
    SELECT
        COALESCE(sum(number), 0)::bigint AS number,
        COALESCE(sum(leased) FILTER (WHERE kind = queue.kind), 0)::bigint AS leased
    FROM held
) AS seen
CROSS JOIN LATERAL (
    SELECT count(*) AS number
    FROM (
        SELECT id
        FROM (
            SELECT id
            FROM delayed_queue_dead_letter
            WHERE "pKind" = queue.kind
            ORDER BY "diedAt", id
            LIMIT (SELECT queue.dead_cap)
        ) AS first
        LIMIT %(cap)s::integer
    ) AS capped
) AS dead
"""


class StoredRow(NamedTuple):
    """A row as READ returns it, with the instant to judge its state by."""

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


class StatsRow(NamedTuple):
    """The counts of a queue, each at most the cap, and the age of the oldest due message."""

    due: int
    scheduled: int
    leased: int
    dead: int
    oldest_due_age: int | None


class Caps(NamedTuple):
    """How far each count of a queue goes; of the later ones, those scheduled and those leased."""

    due: int
    later: int
    dead: int


class OverviewRow(NamedTuple):
    """The counts of one queue among many, and what tells whether a count was cut off."""

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
        """Delete the message whatever its state; return whether there was one."""
        return db.execute(using, DROP, {"kind": kind, "key": key}) == 1

    def drop_all(self, kind: str, *, using: str = db.DEFAULT_ALIAS) -> int:
        dropped: int = value_of(db.fetch(using, DROP_ALL, {"kind": kind}))
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
        """Count each kind's messages, each count at most ``cap`` or its own, in any order."""
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
