"""Claim by group: read the groups, lease a share of each, save the spent permits.

One transaction runs the statements. ``delayed_queue.queue.dealing`` computes the shares in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, first_row, row_of, rows_of, value_of
from delayed_queue.queue.store.claim import LeasedRow, earliest_first, lease_due, limit_waits_step
from delayed_queue.queue.store.fragments import KIND_LOCK
from delayed_queue.queue.store.limits import RulesRow, rules_step

# Lock the claims by group of a kind until the transaction ends. It is a statement of its own, so
# that later ones see every lease committed before, at READ COMMITTED, which the caller checks.
# PostgreSQL ends the session after "idle" milliseconds without a statement: a suspended process
# must not keep the lock. Reads: nothing.
TAKE_TURN: Final[LiteralString] = f"""
SELECT
    current_setting('transaction_isolation'),
    CASE WHEN %(idle)s::integer IS NOT NULL
        THEN set_config('idle_in_transaction_session_timeout', %(idle)s::integer::text, true)
    END
WHERE pg_advisory_xact_lock({KIND_LOCK}) IS NOT NULL
"""


def _lap(name: LiteralString, first: LiteralString, rest: LiteralString) -> LiteralString:
    """Return the CTE that steps from group to group, within these conditions."""
    return f"""{name} (name, due_at, id, place) AS (
    (
        SELECT "group", "scheduledAt", id, 1
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND "lockUuid" IS NULL
            AND {first}
        ORDER BY "group", "scheduledAt", id
        LIMIT 1
    )
    UNION ALL
    SELECT next."group", next."scheduledAt", next.id, {name}.place + 1
    FROM {name}
    CROSS JOIN LATERAL (
        SELECT "group", "scheduledAt", id
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND "lockUuid" IS NULL
            AND "group" > {name}.name
        ORDER BY "group", "scheduledAt", id
        LIMIT 1
    ) AS next
    WHERE {rest}
)"""


_LEASES: Final[LiteralString] = """
        SELECT "group", NULL::bigint, NULL::bigint, 1, "scheduledAt"
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND "lockUuid" IS NOT NULL
            AND """

# The groups from the name "since" on and round to it. First those with a waiting message: a loose
# scan with one descent of the index per group. Then all leases of groups in the same range, because
# a group may have nothing else. Expired leases count: each keeps its slot until its message is
# leased again, so that a late extension finds it free.
# GROUP BY puts them together: the planner would join the CTEs row by row.
_FOUND: Final[LiteralString] = f"""{CLOCK.replace("WITH", "WITH RECURSIVE", 1)},
rule AS MATERIALIZED (
    SELECT
        "isOrdered" AS is_ordered, "blocksOnDead" AS blocks,
        CASE WHEN "group" = '' THEN concurrency END AS concurrency,
        CASE WHEN "group" = '' THEN interval END AS interval,
        CASE WHEN "group" = '' THEN burst END AS burst
    FROM delayed_queue_limit
    WHERE "pKind" = %(kind)s
    ORDER BY "group"
    LIMIT 1
),
own AS MATERIALIZED (
    SELECT EXISTS (
        SELECT
        FROM delayed_queue_limit
        WHERE "pKind" = %(kind)s
            AND "group" > ''
    ) AS are_there
),
{_lap("ahead", '''"group" >= %(since)s::varchar''', "ahead.place < %(groups)s::integer")},
lap AS MATERIALIZED (
    SELECT count(*) AS groups
    FROM ahead
),
{
    _lap(
        "behind",
        '''"group" < %(since)s::varchar
            AND (SELECT groups FROM lap) < %(groups)s::integer''',
        '''next."group" < %(since)s::varchar
        AND behind.place + (SELECT groups FROM lap) < %(groups)s::integer''',
    )
},
found AS (
    SELECT
        name, max(due_at) AS due_at, max(id) AS id, sum(lease) AS held,
        count(*) FILTER (WHERE leased_until > (SELECT now FROM clock)) AS live,
        min(leased_until) AS leased_until
    FROM (
        SELECT name, due_at, id, 0 AS lease, NULL::bigint AS leased_until
        FROM ahead
        UNION ALL
        SELECT name, due_at, id, 0, NULL
        FROM behind
        UNION ALL{_LEASES}"group" >= %(since)s::varchar
            AND "group" <= COALESCE(
                (SELECT name FROM ahead WHERE place = %(groups)s::integer),
                (
                    SELECT "group"
                    FROM delayed_queue
                    WHERE "pKind" = %(kind)s
                        AND "lockUuid" IS NOT NULL
                        AND "group" IS NOT NULL
                    ORDER BY "group" DESC, "scheduledAt" DESC, id DESC
                    LIMIT 1
                )
            )
        UNION ALL{_LEASES}"group" < %(since)s::varchar
            AND "group" <= COALESCE(
                (
                    SELECT name
                    FROM behind
                    WHERE place + (SELECT groups FROM lap) = %(groups)s::integer
                ),
                %(since)s::varchar
            )
            AND (SELECT groups FROM lap) < %(groups)s::integer
    ) AS each
    GROUP BY name
)"""

# The limits of each group, and which of its messages may be leased. "due" counts due messages
# without a lease, at most two, or one if only one may be leased. In a queue in order, "head" is the
# message to lease next, one that was begun first; "waits_until" is when the last retry is due.
# Reads: delayed_queue__GroupPlusScheduledAtIndex, delayed_queue__GroupPlusLeasedUntilIndex,
# delayed_queue__GroupPlusLockUuidIndex, limit_kind_group, dead_letter_of_group.
GROUPS_AHEAD: Final[LiteralString] = f"""{_FOUND}
SELECT
    found.name, LEAST(found.due_at, found.leased_until),
    LEAST(found.due_at, found.leased_until) <= (SELECT now FROM clock),
    COALESCE(rule.is_ordered, false),
    COALESCE(own.concurrency, rule.concurrency), COALESCE(own.weight, 1),
    COALESCE(own.interval, rule.interval), COALESCE(own.burst, rule.burst, 1), own."spentUntil",
    own."pausedAt" IS NOT NULL,
    COALESCE(rule.blocks, false) AND EXISTS (
        SELECT
        FROM delayed_queue_dead_letter
        WHERE "pKind" = %(kind)s
            AND "group" = found.name
            AND "diedAt" > COALESCE(own."resumedAt", -9223372036854775808)
    ),
    found.held, found.live, found.due_at IS NOT NULL,
    CASE
        WHEN found.due_at IS NULL OR found.due_at > (SELECT now FROM clock) THEN 0
        WHEN rule.is_ordered OR COALESCE(own.concurrency, rule.concurrency) - found.held <= 1
            OR NOT EXISTS (
                SELECT
                FROM delayed_queue
                WHERE "pKind" = %(kind)s
                    AND "group" = found.name
                    AND "lockUuid" IS NULL
                    AND ("scheduledAt", id) > (found.due_at, found.id)
                    AND "scheduledAt" <= (SELECT now FROM clock)
            ) THEN 1
        ELSE 2
    END,
    retry.waits_until,
    CASE WHEN rule.is_ordered AND found.live = 0 THEN COALESCE(
        CASE WHEN found.held > 0 THEN (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "group" = found.name
                AND "lockUuid" IS NOT NULL
            ORDER BY "group", "scheduledAt", id
            LIMIT 1
        ) END,
        CASE WHEN retry.waits_until IS NOT NULL THEN (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "group" = found.name
                AND "lockUuid" IS NULL
                AND "scheduledAt" > "scheduledAtInitially"
            ORDER BY "group", "lockUuid", "scheduledAt", id
            LIMIT 1
        ) END,
        found.id
    ) END,
    (SELECT now FROM clock)
FROM found
LEFT JOIN rule ON true
LEFT JOIN LATERAL (
    SELECT concurrency, weight, interval, burst, "spentUntil", "pausedAt", "resumedAt"
    FROM delayed_queue_limit
    WHERE "pKind" = %(kind)s
        AND "group" = found.name
        AND (SELECT are_there FROM own)
    OFFSET 0
) AS own ON true
LEFT JOIN LATERAL (
    SELECT "scheduledAt" AS waits_until
    FROM delayed_queue
    WHERE "pKind" = %(kind)s
        AND "group" = found.name
        AND "lockUuid" IS NULL
        AND "scheduledAt" > "scheduledAtInitially"
        AND rule.is_ordered
        AND found.live = 0
    ORDER BY "lockUuid" DESC, "scheduledAt" DESC
    LIMIT 1
) AS retry ON true
ORDER BY found.name < %(since)s::varchar, found.name
"""

# The messages without a group among the next %(rows)s due ones behind a position, the number read,
# and the last position. Any number of messages of groups may be in between.
# Reads: delayed_queue__KindPlusScheduledAtIndex.
UNGROUPED_AHEAD: Final[LiteralString] = f"""{CLOCK}
SELECT
    COALESCE(array_agg(id ORDER BY "scheduledAt", id) FILTER (WHERE "group" IS NULL), '{{}}'),
    count(*),
    COALESCE((array_agg("scheduledAt" ORDER BY "scheduledAt", id))[count(*)], %(at)s::bigint),
    COALESCE((array_agg(id ORDER BY "scheduledAt", id))[count(*)], %(id)s::bigint)
FROM (
    SELECT id, "scheduledAt", "group"
    FROM (
        SELECT id, "scheduledAt", "group"
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND ("scheduledAt", id) > (%(at)s::bigint, %(id)s::bigint)
            AND "scheduledAt" <= (SELECT now FROM clock)
        ORDER BY "scheduledAt", id
        LIMIT (SELECT %(rows)s::integer)
    ) AS due
    LIMIT %(rows)s::integer
) AS read
"""

_OF_GROUP: Final[LiteralString] = """
                    SELECT id
                    FROM delayed_queue
                    WHERE "pKind" = %(kind)s
                        AND "group" = asked.name
                        AND ("group", "scheduledAt") <= (asked.name, (SELECT now FROM clock))
                        AND "lockUuid" """

# Under the lock of TAKE_TURN, lease in this order, at most "limit": at most "number" of the
# messages "ungrouped"; the "heads" of a queue in order; of each other group at most "retaken" with
# an expired lease and "fresh" others. Locked rows are skipped. Rows are checked again in their
# newest version, because one that moved to another group counts there. Due times are compared
# together with the group, so that the planner does not read all due messages of the queue.
# Reads: the primary key, delayed_queue__GroupPlusLeasedUntilIndex,
# delayed_queue__GroupPlusScheduledAtIndex.
LEASE_GROUPS: Final[LiteralString] = CLOCK + lease_due(
    f"""
        (
            SELECT plain.id
            FROM unnest(%(ungrouped)b::bigint[]) AS asked (id)
            CROSS JOIN LATERAL (
                SELECT id
                FROM delayed_queue
                WHERE id = asked.id
                    AND "group" IS NULL
                    AND COALESCE("scheduledAt" <= (SELECT now FROM clock), false)
                FOR UPDATE SKIP LOCKED
            ) AS plain
            LIMIT %(number)s::integer
        )
        UNION ALL
        SELECT head.id
        FROM unnest(%(heads)b::bigint[], %(head_groups)s::text[]) AS asked (id, name)
        CROSS JOIN LATERAL (
            SELECT id
            FROM delayed_queue
            WHERE id = asked.id
                AND "group" = asked.name
                AND COALESCE("scheduledAt" <= (SELECT now FROM clock), false)
            FOR UPDATE SKIP LOCKED
        ) AS head
        UNION ALL
        SELECT taken.id
        FROM unnest(
            %(groups)s::text[], %(numbers)b::integer[], %(retaken)b::integer[],
            %(fresh)b::integer[]
        ) AS asked (name, number, retaken, fresh)
        CROSS JOIN LATERAL (
            SELECT id
            FROM (
                SELECT id
                FROM ({_OF_GROUP}IS NOT NULL
                    ORDER BY "group", "scheduledAt", id
                    LIMIT asked.retaken
                    FOR UPDATE SKIP LOCKED
                ) AS expired
                UNION ALL
                SELECT id
                FROM ({_OF_GROUP}IS NULL
                    ORDER BY "group", "scheduledAt", id
                    LIMIT asked.fresh
                    FOR UPDATE SKIP LOCKED
                ) AS due
            ) AS either
            LIMIT asked.number
        ) AS taken
        LIMIT %(limit)s::integer"""
)

# Save until when permits are spent, in the transaction of the lease: a rollback spends none.
# Reads: limit_kind_group.
SPEND: Final[LiteralString] = """
INSERT INTO delayed_queue_limit ("pKind", "group", "spentUntil")
SELECT %(kind)s::varchar, spent.name, spent.until
FROM unnest(%(groups)s::text[], %(until)b::float8[]) AS spent (name, until)
ORDER BY spent.name COLLATE "C"
ON CONFLICT ("pKind", "group") DO UPDATE
SET "spentUntil" = EXCLUDED."spentUntil"
"""


class GroupRow(NamedTuple):
    """A group that has messages: its limits, its leases (``held``, those not expired ``live``).

    ``has_waiting``: a message has no lease. ``due``: the number of these that are due, at most two.
    """

    name: str
    earliest: int
    is_due: bool
    is_ordered: bool
    concurrency: int | None
    weight: int
    interval: float | None
    burst: int
    spent_until: float | None
    is_paused: bool
    is_blocked: bool
    held: int
    live: int
    has_waiting: bool
    due: int
    waits_until: int | None
    head: int | None
    now: int


class UngroupedRow(NamedTuple):
    """Due messages without a group, and the position of the last message read."""

    ids: Sequence[int]
    read: int
    at: int
    id: int


class Look(NamedTuple):
    """The rows that a claim reads under its lock; ``rules`` is None if the queue has no limits."""

    isolation: str
    rules: RulesRow | None
    groups: Sequence[GroupRow]
    ungrouped: UngroupedRow


class Ahead(NamedTuple):
    """The extent of a claim: ``groups`` groups from the name ``since`` on and round to it.

    ``rest`` of its turn is left to that group. Messages without a group are searched among the next
    ``rows`` behind (``at``, ``id``). ``wait`` limits the wait for each lock, ``idle`` the time
    between statements, in milliseconds.
    """

    kind: str
    limit: int
    since: str
    rest: int
    groups: int
    at: int
    id: int
    rows: int
    wait: int | None = None
    idle: int | None = None
    now: int | None = None


class GroupLease(NamedTuple):
    """The lease ids of a claim: ``retaken_id`` is for messages with an expired lease."""

    lease_id: str
    retaken_id: str
    lease: int


class Share(NamedTuple):
    """The messages to lease of a group: at most ``number``, or the ``head`` of a queue in order."""

    name: str
    number: int
    retaken: int
    fresh: int
    head: int | None = None


class GroupStore:
    """The statements of a claim by group, in the order of its transaction."""

    def look(self, ahead: Ahead, *, using: str = db.DEFAULT_ALIAS) -> Look:
        """Lock claims of the kind, and return what the claim may lease."""
        params = ahead._asdict()
        waits = [] if ahead.wait is None else [limit_waits_step(ahead.wait)]
        steps = [
            *waits,
            (TAKE_TURN, params),
            rules_step(ahead.kind, ahead.now),
            (GROUPS_AHEAD, params),
            (UNGROUPED_AHEAD, params),
        ]
        turn, rules, groups, ungrouped = db.run(using, steps, savepoint=False)[len(waits) :]
        return Look(
            value_of(turn), first_row(RulesRow, rules), rows_of(GroupRow, groups),
            row_of(UngroupedRow, ungrouped),
        )  # fmt: skip

    def lease_groups(
        self,
        kind: str,
        lease: GroupLease,
        shares: Sequence[Share],
        ungrouped: Sequence[int],
        number: int,
        *,
        limit: int,
        now: int,
        using: str = db.DEFAULT_ALIAS,
    ) -> list[LeasedRow]:
        """Lease ``number`` of the ungrouped, then the shares, ``limit`` in all; earliest first."""
        heads = [each for each in shares if each.head is not None]
        others = [each for each in shares if each.head is None]
        params: dict[str, Any] = {
            **lease._asdict(), "kind": kind, "now": now, "limit": limit,
            "ungrouped": list(ungrouped), "number": number,
            "heads": [each.head for each in heads],
            "head_groups": [each.name for each in heads],
            "groups": [each.name for each in others],
            "numbers": [each.number for each in others],
            "retaken": [each.retaken for each in others],
            "fresh": [each.fresh for each in others],
        }  # fmt: skip
        return earliest_first(rows_of(LeasedRow, db.fetch(using, LEASE_GROUPS, params)))

    def spend(
        self, kind: str, until: Mapping[str, float], *, using: str = db.DEFAULT_ALIAS
    ) -> None:
        """Save until when permits are spent by each group; the empty name is the queue."""
        params = {"kind": kind, "groups": list(until), "until": list(until.values())}
        db.execute(using, SPEND, params)

    def groups(
        self, kind: str, limit: int, *, now: int | None = None, using: str = db.DEFAULT_ALIAS
    ) -> list[GroupRow]:
        """Return the first groups that have messages, as a claim finds them."""
        params = {"kind": kind, "since": "", "groups": limit, "now": now}
        return rows_of(GroupRow, db.fetch(using, GROUPS_AHEAD, params))
