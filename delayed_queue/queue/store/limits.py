"""Pause and limit queues and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, first_row, value_of

if TYPE_CHECKING:
    from delayed_queue.db.sql import Step

# The limits of a queue and the clock; no row for a queue without limits, which plain claims serve.
# The row of the queue comes first; a queue that has only rows of groups has no limits of its own.
# Reads: limit_kind_group.
RULES: Final[LiteralString] = f"""{CLOCK}
SELECT
    (SELECT now FROM clock), "pausedAt" IS NOT NULL AND "group" = '', "isOrdered", "isFair",
    "queueInterval", COALESCE("queueBurst", 1), CASE WHEN "group" = '' THEN "spentUntil" END
FROM delayed_queue_limit
WHERE "pKind" = %(kind)s
ORDER BY "group"
LIMIT 1
"""


# Pause unless paused: the first reason stands. Reads: limit_kind_group.
PAUSE: Final[LiteralString] = f"""{CLOCK}
INSERT INTO delayed_queue_limit AS stored ("pKind", "group", "pausedAt", "pausedBy", reason)
SELECT %(kind)s, %(group)s, now, %(by)s, %(reason)s
FROM clock
ON CONFLICT ("pKind", "group") DO UPDATE
SET "pausedAt" = EXCLUDED."pausedAt", "pausedBy" = EXCLUDED."pausedBy", reason = EXCLUDED.reason
WHERE stored."pausedAt" IS NULL
"""

# Reads: limit_kind_group.
RESUME: Final[LiteralString] = """
UPDATE delayed_queue_limit
SET "pausedAt" = NULL, "pausedBy" = '', reason = ''
WHERE "pKind" = %(kind)s
    AND "group" = %(group)s
    AND "pausedAt" IS NOT NULL
"""

# Reads: limit_kind_group.
IS_PAUSED: Final[LiteralString] = """
SELECT EXISTS (
    SELECT 1
    FROM delayed_queue_limit
    WHERE "pKind" = %(kind)s
        AND "group" = %(group)s
        AND "pausedAt" IS NOT NULL
)
"""

# The instant up to which the rule in force lets permits be spent; NULL without a rate. The clock is
# read with each row: a claim that held its lock may have spent permits meanwhile.
_MOST_SPENT: Final[LiteralString] = """(
        COALESCE(%(now)s::bigint, extract(epoch FROM clock_timestamp()) * 1000)
        + CASE
            WHEN "group" = '' THEN "queueInterval" * COALESCE("queueBurst", 1)
            ELSE COALESCE(interval, (SELECT interval FROM rule))
                * COALESCE(burst, (SELECT burst FROM rule), 1)
        END
    )"""

# Lower permits that an earlier rule let be spent ahead. A claim does so too, but maybe too late.
# Reads: limit_kind_group.
LOWER_SPENT: Final[LiteralString] = f"""
WITH rule AS MATERIALIZED (
    SELECT interval, burst
    FROM delayed_queue_limit
    WHERE "pKind" = %(kind)s
        AND "group" = ''
)
UPDATE delayed_queue_limit
SET "spentUntil" = {_MOST_SPENT}
WHERE "pKind" = %(kind)s
    AND "spentUntil" > {_MOST_SPENT}
"""

# Delete the rows without effect: no pause, no limit, no spent permits, and no dead letters that an
# operator passed over.
# Reads: limit_kind_group; dead_letter_of_group.
TIDY: Final[LiteralString] = f"""{CLOCK}
DELETE FROM delayed_queue_limit AS stored
WHERE "pKind" = %(kind)s
    AND "pausedAt" IS NULL
    AND declared IS NULL
    AND NOT "isOrdered"
    AND "isFair"
    AND NOT "blocksOnDead"
    AND COALESCE("queueInterval", concurrency, weight, interval, burst) IS NULL
    AND COALESCE("spentUntil", 0) <= (SELECT now FROM clock)
    AND (
        "resumedAt" IS NULL
        OR NOT EXISTS (
            SELECT 1
            FROM delayed_queue_dead_letter AS letter
            WHERE letter."pKind" = stored."pKind"
                AND letter."group" = stored."group"
        )
    )
"""


# Write what a handler declares if it differs from its last declaration, so that an operator's
# change stays; or write such a change. "declared" is empty where only an operator set the limits.
# Reads: limit_kind_group.
DECLARE: Final[LiteralString] = """
INSERT INTO delayed_queue_limit AS stored (
    "pKind", "group", declared, "isOrdered", "isFair", "blocksOnDead", concurrency, interval, burst,
    "queueInterval", "queueBurst"
)
SELECT
    %(kind)s::varchar, '', %(declared)s::text, %(is_ordered)s, %(is_fair)s, %(blocks_on_dead)s,
    %(concurrency)s::integer, %(interval)s::float8, %(burst)s::integer,
    %(queue_interval)s::float8, %(queue_burst)s::integer
WHERE %(declared)s::text IS NOT NULL
    OR %(is_change)s::boolean
    OR EXISTS (
        SELECT 1
        FROM delayed_queue_limit
        WHERE "pKind" = %(kind)s
            AND "group" = ''
            AND declared <> ''
    )
ON CONFLICT ("pKind", "group") DO UPDATE
SET declared = CASE
        WHEN %(is_change)s::boolean THEN COALESCE(NULLIF(stored.declared, ''), EXCLUDED.declared)
        ELSE EXCLUDED.declared
    END,
    "isOrdered" = EXCLUDED."isOrdered",
    "isFair" = EXCLUDED."isFair",
    "blocksOnDead" = EXCLUDED."blocksOnDead",
    concurrency = EXCLUDED.concurrency,
    interval = EXCLUDED.interval,
    burst = EXCLUDED.burst,
    "queueInterval" = EXCLUDED."queueInterval",
    "queueBurst" = EXCLUDED."queueBurst"
WHERE COALESCE(stored.declared, '') <> COALESCE(EXCLUDED.declared, '')
    OR %(is_change)s::boolean
"""

# Replace the limits of one group. Reads: limit_kind_group.
LIMIT_GROUP: Final[LiteralString] = """
INSERT INTO delayed_queue_limit ("pKind", "group", concurrency, weight, interval, burst)
VALUES (
    %(kind)s, %(group)s, %(concurrency)s::integer, %(weight)s::integer, %(interval)s::float8,
    %(burst)s::integer
)
ON CONFLICT ("pKind", "group") DO UPDATE
SET concurrency = EXCLUDED.concurrency,
    weight = EXCLUDED.weight,
    interval = EXCLUDED.interval,
    burst = EXCLUDED.burst
"""

# Unblock a group: dead letters until now do not hold it any more.
# Reads: limit_kind_group, dead_letter_of_group.
PASS_DEAD: Final[LiteralString] = f"""{CLOCK}
INSERT INTO delayed_queue_limit AS stored ("pKind", "group", "resumedAt")
SELECT %(kind)s::varchar, %(group)s::varchar, now
FROM clock
WHERE EXISTS (
    SELECT 1
    FROM delayed_queue_dead_letter
    WHERE "pKind" = %(kind)s
        AND "group" = %(group)s
        AND "diedAt" > COALESCE(
            (
                SELECT "resumedAt"
                FROM delayed_queue_limit
                WHERE "pKind" = %(kind)s
                    AND "group" = %(group)s
            ),
            -9223372036854775808
        )
)
ON CONFLICT ("pKind", "group") DO UPDATE
SET "resumedAt" = EXCLUDED."resumedAt"
"""


# Copy pauses and limits to other queues and their groups, where these have none.
# Reads: limit_kind_group.
COPY_LIMITS: Final[LiteralString] = """
INSERT INTO delayed_queue_limit (
    "pKind", "group", "pausedAt", "pausedBy", reason, declared, "isOrdered", "isFair",
    "blocksOnDead", concurrency, weight, interval, burst, "queueInterval", "queueBurst"
)
SELECT
    other.kind, "group", "pausedAt", "pausedBy", reason, declared, "isOrdered", "isFair",
    "blocksOnDead", concurrency, weight, interval, burst, "queueInterval", "queueBurst"
FROM unnest(%(kinds)b::text[]) AS other (kind)
CROSS JOIN delayed_queue_limit
WHERE "pKind" = %(kind)s
ON CONFLICT ("pKind", "group") DO NOTHING
"""


class RulesRow(NamedTuple):
    """The limits of a queue as a whole, and the clock."""

    now: int
    is_paused: bool
    is_ordered: bool
    is_fair: bool
    interval: float | None
    burst: int
    spent_until: float | None


def rules_step(kind: str, now: int | None = None) -> Step:
    """Return a ``RulesRow``, or no row for a queue without limits."""
    return RULES, {"kind": kind, "now": now}


class LimitStore:
    """The statements that pause and limit queues and groups."""

    def pause(
        self,
        kind: str,
        *,
        group: str = "",
        reason: str = "",
        by: str = "",
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> bool:
        """Pause the queue or a group; False if it is paused already."""
        params = {"kind": kind, "group": group, "reason": reason, "by": by, "now": now}
        return db.execute(using, PAUSE, params) > 0

    def resume(self, kind: str, *, group: str = "", using: str = db.DEFAULT_ALIAS) -> bool:
        """Resume the queue or a group; True if it was paused."""
        was_paused = db.execute(using, RESUME, {"kind": kind, "group": group}) > 0
        self.tidy(kind, using=using)
        return was_paused

    def is_paused(self, kind: str, *, group: str = "", using: str = db.DEFAULT_ALIAS) -> bool:
        """True if the queue or the group is paused."""
        found: bool = value_of(db.fetch(using, IS_PAUSED, {"kind": kind, "group": group}))
        return found

    def copy(self, kind: str, others: Sequence[str], *, using: str = db.DEFAULT_ALIAS) -> None:
        """Copy pauses and limits of the queue and its groups to other queues."""
        db.execute(using, COPY_LIMITS, {"kind": kind, "kinds": list(others)})

    def tidy(self, kind: str, *, now: int | None = None, using: str = db.DEFAULT_ALIAS) -> None:
        """Remove what earlier limits left: permits spent ahead, and rows without effect."""
        db.execute(using, LOWER_SPENT, {"kind": kind, "now": now})
        db.execute(using, TIDY, {"kind": kind, "now": now})

    def rules(
        self, kind: str, *, now: int | None = None, using: str = db.DEFAULT_ALIAS
    ) -> RulesRow | None:
        """Return the limits of the queue; None if it has none."""
        return first_row(RulesRow, db.fetch(using, *rules_step(kind, now)))

    def declare(
        self, kind: str, rules: Mapping[str, Any], *, using: str = db.DEFAULT_ALIAS
    ) -> bool:
        """Set the limits of a queue and its groups; True if they were written."""
        return db.execute(using, DECLARE, {"kind": kind, **rules}) > 0

    def limit_group(
        self, kind: str, group: str, limits: Mapping[str, Any], *, using: str = db.DEFAULT_ALIAS
    ) -> None:
        """Replace the limits of one group."""
        db.execute(using, LIMIT_GROUP, {"kind": kind, "group": group, **limits})

    def pass_dead(
        self, kind: str, group: str, *, now: int | None = None, using: str = db.DEFAULT_ALIAS
    ) -> bool:
        """Unblock the group; True if dead letters held it."""
        return db.execute(using, PASS_DEAD, {"kind": kind, "group": group, "now": now}) > 0
