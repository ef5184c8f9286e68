"""Claim by group: read the groups, lease a share of each, save the spent permits.

Statements of one transaction. ``delayed_queue.queue.dealing`` computes the shares in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, first_row, row_of, rows_of, value_of
from delayed_queue.queue.store.claim import LeasedRow, earliest_first, lease_due, limit_waits_step
from delayed_queue.queue.store.fragments import KIND_LOCK
from delayed_queue.queue.store.limits import RulesRow, rules_step

# Lock the claims by group of a kind, until the end of the transaction. In a statement of its own:
# those that follow have later snapshots, so they see every lease that the holder before committed.
# That is so at READ COMMITTED alone, which the caller checks. PostgreSQL ends the session if the
# client sends nothing for "idle" milliseconds: a suspended process must not keep the lock.
# Reads: nothing.
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

# The groups from the name "since" on and round to it. First those of which a message waits: a
# loose scan, one descent of the index for a group, however many messages it has. Then all leases
# of groups between the first and the last of these, or of all groups where there are no more: a
# group may have nothing else. Leases that ran out count: each keeps its slot until it is taken
# again in it, so a late extension finds it free.
# They are put together by their names, not joined: two CTEs, of which the planner knows nothing,
# it would join row by row.
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

# The limits of each of these groups, and which of its messages may be leased. "due" counts the due
# messages without a lease, up to two, or up to one if only one may be leased. In a queue in order,
# "head" is the message to lease next: a message that was begun goes first. "waits_until" is the due
# time of the last message that was begun and waits for a retry.
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

# The messages without a group among the next that are due, behind a position; how many were read,
# and the last of them. There may be any number of messages of groups in between, so the number
# that is read is bounded, and the caller goes on from there.
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

# Lease messages without a group, at most "number" of those named; of a queue in order the "heads";
# else of each group at most "retaken" whose lease ran out and "fresh" others. In this order, and at
# most "limit" in all. Rows that another session has locked are skipped, and in order nothing is
# leased in their place. Each row is checked again in its newest version: one that was moved to
# another group counts there, so it is left out. Due times are compared together with the group:
# alone they would let the planner read all due messages of the queue for the few of a group.
# Only under the lock of TAKE_TURN: no other claim leases in between.
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

# Save until when permits are spent, by group; the empty name is the queue. In the transaction of
# the lease: a claim that is rolled back spends none.
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
    """A group that has messages: its limits and the number of its leases.

    ``has_waiting``: a message has no lease. ``due``: the number of those that are due, at most two.
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
    """What a claim reads under its lock; ``rules`` is None if the queue has no limits."""

    isolation: str
    rules: RulesRow | None
    groups: Sequence[GroupRow]
    ungrouped: UngroupedRow


class Ahead(NamedTuple):
    """What a claim reads: ``groups`` groups, from the name ``since`` on and round to it.

    ``rest`` is what that group has left of an unfinished turn. Messages without a group are
    searched among the next ``rows`` behind (``at``, ``id``). ``wait`` limits, in milliseconds,
    the wait for each lock of the transaction, and ``idle`` the time between its statements.
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
    """The lease ids of a claim: for messages without a lease, and for those whose lease ran out."""

    lease_id: str
    retaken_id: str
    lease: int


class Share(NamedTuple):
    """The number of messages to lease of a group: ``retaken`` after a lease ran out, and others.

    In a queue in order, ``head`` is the message to lease.
    """

    name: str
    number: int
    retaken: int
    fresh: int
    head: int | None = None


class GroupStore:
    """The statements of a claim by group, in the order in which one transaction runs them."""

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
        """Lease ``number`` of the ungrouped, then the shares, ``limit`` in all.

        Returns them earliest due first.
        """
        heads = [each for each in shares if each.head is not None]
        others = [each for each in shares if each.head is None]
        params: dict[str, Any] = {
            **lease._asdict(),
            "kind": kind,
            "now": now,
            "ungrouped": list(ungrouped),
            "number": number,
            "limit": limit,
            "heads": [each.head for each in heads],
            "head_groups": [each.name for each in heads],
            "groups": [each.name for each in others],
            "numbers": [each.number for each in others],
            "retaken": [each.retaken for each in others],
            "fresh": [each.fresh for each in others],
        }
        return earliest_first(rows_of(LeasedRow, db.fetch(using, LEASE_GROUPS, params)))

    def spend(
        self, kind: str, until: Mapping[str, float], *, using: str = db.DEFAULT_ALIAS
    ) -> None:
        """Save until when permits are spent, by group; the empty name is the queue."""
        params = {"kind": kind, "groups": list(until), "until": list(until.values())}
        db.execute(using, SPEND, params)

    def groups(
        self,
        kind: str,
        limit: int,
        *,
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> list[GroupRow]:
        """Return the first groups that have messages, as a claim would find them."""
        params = {"kind": kind, "since": "", "groups": limit, "now": now}
        return rows_of(GroupRow, db.fetch(using, GROUPS_AHEAD, params))
