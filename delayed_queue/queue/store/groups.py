"""Claim by group: look who may be leased, lease so much of each, spend the permits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, first_row, row_of, rows_of
from delayed_queue.queue.store.claim import LeasedRow, earliest_first, limiting_waits
from delayed_queue.queue.store.fragments import KIND_LOCK, LEASED, LEASING
from delayed_queue.queue.store.limits import RulesRow, reading_rules

_RECURSIVE: Final[LiteralString] = CLOCK.replace("WITH", "WITH RECURSIVE", 1)

# Be the only one who claims of the kind by group, until the end of the transaction. A statement of
# its own before those that look: each has a snapshot of its own, so they see every lease that the
# holder before has committed. That is so at READ COMMITTED alone, which the caller makes sure of.
# Reads: nothing.
TAKE_TURN: Final[LiteralString] = (
    """
SELECT current_setting('transaction_isolation')
WHERE pg_advisory_xact_lock("""
    + KIND_LOCK
    + """) IS NOT NULL
"""
)


def _next(comparison: LiteralString, name: LiteralString, lap: LiteralString) -> LiteralString:
    """Return the select of the first message of the next group; behind the last, of the first."""
    return (
        """
        (
            SELECT "group" AS name, "scheduledAt" AS earliest, """
        + lap
        + """ AS lap
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "group" """
        + comparison
        + " "
        + name
        + """
            ORDER BY "group", "scheduledAt", id
            LIMIT 1
        )
        UNION ALL
        (
            SELECT "group", "scheduledAt", 1
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "group" IS NOT NULL
                AND """
        + lap
        + """ = 0
            ORDER BY "group", "scheduledAt", id
            LIMIT 1
        )
        LIMIT 1"""
    )


# The next groups in their order, from a name on and round to it: of each whether something is due,
# what holds for it, and how much of it is leased. A loose scan: one descent for a group, however
# many messages it has, and a few more where something is due. Leases that ran out count: each keeps
# its slot until it is taken again in it, so a late extension finds it free.
# In order, "waits_until" is when the last that was begun and waits is due, and "head" the one to
# lease: what was begun goes first.
# Reads: delayed_queue__GroupPlusScheduledAtIndex, delayed_queue__GroupPlusLockUuidIndex,
# limit_kind_group, dead_letter_of_group.
GROUPS_AHEAD: Final[LiteralString] = (
    _RECURSIVE
    + """,
rule AS MATERIALIZED (
    SELECT "isOrdered" AS is_ordered, "blocksOnDead" AS blocks, concurrency, interval, burst
    FROM delayed_queue_limit
    WHERE "pKind" = %(kind)s
        AND "group" = ''
),
walked (name, earliest, lap, place) AS (
    SELECT name, earliest, lap, 1
    FROM ("""
    + _next(">=", "%(since)s::varchar", "0")
    + """
    ) AS first
    UNION ALL
    SELECT next.name, next.earliest, next.lap, walked.place + 1
    FROM walked
    CROSS JOIN LATERAL ("""
    + _next(">", "walked.name", "walked.lap")
    + """
    ) AS next
    WHERE walked.place < %(groups)s::integer
        AND (next.lap = 0 OR next.name < %(since)s::varchar)
)
SELECT
    walked.name,
    walked.earliest,
    walked.earliest <= (SELECT now FROM clock),
    COALESCE(rule.is_ordered, false),
    COALESCE(own.concurrency, rule.concurrency),
    COALESCE(own.weight, 1),
    COALESCE(own.interval, rule.interval),
    COALESCE(own.burst, rule.burst, 1),
    own."spentUntil",
    own."pausedAt" IS NOT NULL,
    COALESCE(rule.blocks, false) AND EXISTS (
        SELECT 1
        FROM delayed_queue_dead_letter
        WHERE "pKind" = %(kind)s
            AND "group" = walked.name
            AND "diedAt" > COALESCE(own."resumedAt", -9223372036854775808)
    ),
    leases.held,
    leases.live,
    CASE WHEN rule.is_ordered AND leases.live = 0 THEN (
        SELECT "scheduledAt"
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND "group" = walked.name
            AND "lockUuid" IS NULL
            AND "scheduledAt" > "scheduledAtInitially"
        ORDER BY "lockUuid" DESC, "scheduledAt" DESC
        LIMIT 1
    ) END,
    CASE WHEN rule.is_ordered AND leases.live = 0 THEN COALESCE(
        (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "group" = walked.name
                AND "lockUuid" IS NOT NULL
            ORDER BY "scheduledAt" + 0, id
            LIMIT 1
        ),
        (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "group" = walked.name
                AND "lockUuid" IS NULL
                AND "scheduledAt" > "scheduledAtInitially"
            ORDER BY "group", "lockUuid", "scheduledAt", id
            LIMIT 1
        ),
        (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "group" = walked.name
            ORDER BY "group", "scheduledAt", id
            LIMIT 1
        )
    ) END,
    (SELECT now FROM clock)
FROM walked
LEFT JOIN rule ON true
LEFT JOIN LATERAL (
    SELECT concurrency, weight, interval, burst, "spentUntil", "pausedAt", "resumedAt"
    FROM delayed_queue_limit
    WHERE "pKind" = %(kind)s
        AND "group" = walked.name
    OFFSET 0
) AS own ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS held, count(*) FILTER (WHERE "scheduledAt" > (SELECT now FROM clock)) AS live
    FROM delayed_queue
    WHERE "pKind" = %(kind)s
        AND "group" = walked.name
        AND "lockUuid" IS NOT NULL
        AND walked.earliest <= (SELECT now FROM clock)
        AND (rule.is_ordered OR COALESCE(own.concurrency, rule.concurrency) IS NOT NULL)
) AS leases
ORDER BY walked.place
"""
)

# The messages without a group among the next that are due, behind a position; how many were read,
# and the last of them. A queue that has limits may have any number of messages of groups in
# between, so the number that is read is bounded, and the caller goes on from there.
# Reads: delayed_queue__KindPlusScheduledAtIndex.
UNGROUPED_AHEAD: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    COALESCE(array_agg(id ORDER BY "scheduledAt", id) FILTER (WHERE "group" IS NULL), '{}'),
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
)

_OF_GROUP: Final[LiteralString] = """
                    SELECT id
                    FROM delayed_queue
                    WHERE "pKind" = %(kind)s
                        AND "group" = asked.name"""

# Lease of each group so many: of those whose lease ran out at most "retaken", of the others at most
# "fresh", or any where nothing is counted. Those that somebody holds are passed over. The "heads"
# are named, as no other may be taken for them: messages in order, and messages without a group.
# Leases are sorted by an expression, so that they are read, and not all that is due.
# Only under the turn of the kind, and at its look's now: what is leased meanwhile is nobody's.
# Reads: the primary key, delayed_queue__GroupPlusLockUuidIndex,
# delayed_queue__GroupPlusScheduledAtIndex.
LEASE_GROUPS: Final[LiteralString] = (
    LEASING
    + """
        SELECT head.id
        FROM unnest(%(heads)b::bigint[], %(head_groups)s::text[]) AS asked (id, name)
        CROSS JOIN LATERAL (
            SELECT id
            FROM delayed_queue
            WHERE id = asked.id
                AND "group" IS NOT DISTINCT FROM asked.name
                AND "scheduledAt" <= (SELECT now FROM clock)
            FOR UPDATE SKIP LOCKED
        ) AS head
        UNION ALL
        SELECT share.id
        FROM unnest(
            %(groups)s::text[], %(numbers)b::integer[], %(retaken)b::integer[],
            %(fresh)b::integer[], %(takes_any)s::boolean[]
        ) AS asked (name, number, retaken, fresh, takes_any)
        CROSS JOIN LATERAL (
            SELECT id
            FROM (
                SELECT id
                FROM ("""
    + _OF_GROUP
    + """
                        AND "lockUuid" IS NOT NULL
                        AND "scheduledAt" <= (SELECT now FROM clock)
                    ORDER BY "scheduledAt" + 0, id
                    LIMIT asked.retaken
                    FOR UPDATE SKIP LOCKED
                ) AS expired
                UNION ALL
                SELECT id
                FROM ("""
    + _OF_GROUP
    + """
                        AND ("lockUuid" IS NULL OR asked.takes_any)
                        AND "scheduledAt" <= (SELECT now FROM clock)
                    ORDER BY "group", "scheduledAt", id
                    LIMIT asked.fresh
                    FOR UPDATE SKIP LOCKED
                ) AS due
            ) AS found
            LIMIT asked.number
        ) AS share"""
    + LEASED
)

# Spend the permits of what was leased, of groups and (empty) of the queue: each moves on when the
# next is there. In the transaction of the lease, so none is lost to a claim that did not happen.
# Reads: limit_kind_group.
SPEND: Final[LiteralString] = """
INSERT INTO delayed_queue_limit AS stored ("pKind", "group", "spentUntil")
SELECT %(kind)s::varchar, spent.name, %(now)s::bigint + spent.time
FROM unnest(%(groups)s::text[], %(times)b::float8[]) AS spent (name, time)
ORDER BY spent.name COLLATE "C"
ON CONFLICT ("pKind", "group") DO UPDATE
SET "spentUntil" = GREATEST(stored."spentUntil", %(now)s::bigint)
    + EXCLUDED."spentUntil" - %(now)s::bigint
"""


class GroupRow(NamedTuple):
    """A group that has messages: what holds for it, and how much of it is leased."""

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
    waits_until: int | None
    head: int | None
    now: int


class UngroupedRow(NamedTuple):
    """Messages without a group, and the position up to which they were looked for."""

    ids: Sequence[int]
    read: int
    at: int
    id: int


class Look(NamedTuple):
    """What a claim finds under its turn: no rules where the queue has no limits."""

    isolation: str
    rules: RulesRow | None
    groups: Sequence[GroupRow]
    ungrouped: UngroupedRow


class Ahead(NamedTuple):
    """Where a claim looks: at so many groups, from the name ``since`` on and round to it.

    And behind the position, among so many messages, for those without a group. ``wait``: for how
    many milliseconds at most, for the turn and for whatever the transaction locks later.
    """

    kind: str
    since: str
    groups: int
    position: tuple[int, int]
    rows: int
    wait: int | None = None
    now: int | None = None


class GroupLease(NamedTuple):
    """The leases that a claim gives, one for what nobody has leased and one for the rest."""

    kind: str
    lease_id: str
    retaken_id: str
    lease: int
    now: int


class Share(NamedTuple):
    """How many messages of a group to lease: of those whose lease ran out, and of others.

    Or of either (``takes_any``). Or the one message (``head``) that has its turn; of no group
    where the name is None.
    """

    name: str | None
    number: int
    retaken: int = 0
    fresh: int = 0
    takes_any: bool = False
    head: int | None = None


class GroupStore:
    """The statements that lease messages by group, in one transaction and in this order."""

    def look(self, ahead: Ahead, *, using: str = db.DEFAULT_ALIAS) -> Look:
        """Take the turn of the kind, and return what is ahead."""
        named = {"kind": ahead.kind, "now": ahead.now}
        at, message_id = ahead.position
        waits = [] if ahead.wait is None else [limiting_waits(ahead.wait)]
        steps = [
            *waits,
            (TAKE_TURN, {"kind": ahead.kind}),
            reading_rules(ahead.kind, ahead.now),
            (GROUPS_AHEAD, {**named, "since": ahead.since, "groups": ahead.groups}),
            (UNGROUPED_AHEAD, {**named, "at": at, "id": message_id, "rows": ahead.rows}),
        ]
        *_, turn, rules, groups, ungrouped = db.fetch_all_at_once(using, steps)
        return Look(
            turn[0][0], first_row(RulesRow, rules), rows_of(GroupRow, groups),
            row_of(UngroupedRow, ungrouped),
        )  # fmt: skip

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

    def lease_groups(
        self, lease: GroupLease, shares: Sequence[Share], *, using: str = db.DEFAULT_ALIAS
    ) -> list[LeasedRow]:
        """Lease the shares, earliest due first, at the instant of the look."""
        heads = [each for each in shares if each.head is not None]
        others = [each for each in shares if each.head is None]
        params: dict[str, Any] = {
            **lease._asdict(), "heads": [each.head for each in heads],
            "head_groups": [each.name for each in heads],
            "groups": [each.name for each in others], "numbers": [each.number for each in others],
            "retaken": [each.retaken for each in others], "fresh": [each.fresh for each in others],
            "takes_any": [each.takes_any for each in others],
        }  # fmt: skip
        return earliest_first(rows_of(LeasedRow, db.fetch(using, LEASE_GROUPS, params)))

    def spend(
        self, kind: str, times: Mapping[str, float], *, now: int, using: str = db.DEFAULT_ALIAS
    ) -> None:
        """Spend permits that are worth so many milliseconds, of groups and (empty) of the queue."""
        params = {"kind": kind, "groups": list(times), "times": list(times.values()), "now": now}
        db.execute(using, SPEND, params)
