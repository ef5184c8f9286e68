"""Claim by group: look who may be leased, deal out turns, lease so much of each, spend permits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import Row, rows_of
from delayed_queue.db.statements import Step
from delayed_queue.queue.store.claim import LeasedRow, earliest_first, limiting_waits
from delayed_queue.queue.store.fragments import (
    FOUND_GROUPS,
    HEAD_OF_GROUP,
    IS_GROUP_BLOCKED,
    KIND_LOCK,
    LEASE_ROWS,
    LEASED,
    OF_EACH_GROUP,
    UNGROUPED_AHEAD,
)

# Be the only one who claims of the kind by group, until the end of the transaction. A statement of
# its own before the one that looks: that has a snapshot of its own, so it sees every lease that the
# holder before has committed. That is so at READ COMMITTED alone; at others nothing is leased.
# Reads: nothing.
TAKE_TURN: Final[LiteralString] = (
    """
SELECT pg_advisory_xact_lock("""
    + KIND_LOCK
    + """) IS NOT NULL
"""
)


# Reads: delayed_queue__GroupPlusScheduledAtIndex, delayed_queue__GroupPlusLeasedUntilIndex,
# delayed_queue__GroupPlusLockUuidIndex, limit_kind_group, dead_letter_of_group.
GROUPS_AHEAD: Final[LiteralString] = (
    FOUND_GROUPS
    + """
SELECT
    found.name, LEAST(found.due_at, found.leased_until),
    LEAST(found.due_at, found.leased_until) <= (SELECT now FROM clock),
    COALESCE(rule.is_ordered, false),
    COALESCE(own.concurrency, rule.concurrency), COALESCE(own.weight, 1),
    COALESCE(own.interval, rule.interval), COALESCE(own.burst, rule.burst, 1), own."spentUntil",
    own."pausedAt" IS NOT NULL, """
    + IS_GROUP_BLOCKED
    + """, found.held, found.live, retry.waits_until,
    CASE WHEN rule.is_ordered AND found.live = 0 THEN """
    + HEAD_OF_GROUP
    + """ END, (SELECT now FROM clock)"""
    + OF_EACH_GROUP
    + """
ORDER BY found.name < %(since)s::varchar, found.name
"""
)

# How many messages the queue has permits for, of those that are asked for, and from when on.
_ASKED: Final[LiteralString] = """
asked AS MATERIALIZED (
    SELECT permit_at, CASE
        WHEN is_paused OR current_setting('transaction_isolation') <> 'read committed' THEN 0
        WHEN permit_at > now THEN 0
        ELSE LEAST(
            %(limit)s::integer,
            CASE WHEN queue_interval IS NOT NULL
                THEN LEAST(floor((now - permit_at) / queue_interval) + 1, queue_burst)
            END
        )::integer
    END AS most
    FROM (
        SELECT is_paused, queue_interval, queue_burst,
            LEAST(
                COALESCE(queue_spent_until, 0) - (queue_burst - 1) * queue_interval,
                (SELECT now FROM clock) + queue_interval
            ) AS permit_at
        FROM rule
    ) AS each
    CROSS JOIN clock
)"""

# What may be leased of each group ("room"): of those whose lease ran out at most "retaken", of
# others at most "fresh", which is 1 where no more is due; else there may be less than that. In
# order, and where it is one, it is the "first", by its id.
# The place is that of its turn: by the names from "since" on and round to it, and where they begin
# anew those without a group; where it is not fair, that of the most overdue.
_LOOKED: Final[LiteralString] = (
    """
looked AS MATERIALIZED (
    SELECT name, first, retaken, fresh, interval, burst, spent_until, permit_at,
        CASE
            WHEN NOT is_open OR permit_at > (SELECT now FROM clock) THEN 0
            ELSE LEAST(
                retaken + fresh,
                CASE WHEN interval IS NOT NULL THEN LEAST(
                    floor(((SELECT now FROM clock) - permit_at) / interval) + 1, burst
                ) END
            )::integer
        END AS room,
        weight, place,
        CASE WHEN name = %(since)s::varchar AND %(rest)s::integer > 0
            THEN GREATEST(weight - %(rest)s::integer, 0) ELSE 0 END AS skipped
    FROM (
        SELECT
            found.name,
            own."pausedAt" IS NULL AND NOT ("""
    + IS_GROUP_BLOCKED
    + """) AS is_open,
            CASE WHEN NOT rule.is_fair THEN LEAST(found.due_at, found.leased_until)
                WHEN found.name >= %(since)s::varchar THEN 0 ELSE 2 END AS place,
            CASE WHEN rule.is_fair THEN COALESCE(own.weight, 1) ELSE %(limit)s::integer END
                AS weight,
            COALESCE(own.interval, rule.interval) AS interval,
            COALESCE(own.burst, rule.burst, 1) AS burst,
            own."spentUntil" AS spent_until,
            CASE WHEN LEAST(found.due_at, found.leased_until) <= (SELECT now FROM clock)
                THEN LEAST(
                    COALESCE(own."spentUntil", 0) - (COALESCE(own.burst, rule.burst, 1) - 1)
                        * COALESCE(own.interval, rule.interval),
                    (SELECT now FROM clock) + COALESCE(own.interval, rule.interval)
                )
            END AS permit_at,
            CASE
                WHEN rule.is_ordered THEN CASE WHEN found.live = 0 THEN """
    + HEAD_OF_GROUP
    + """ END
                WHEN found.held = found.live THEN found.id
            END AS first,
            CASE
                WHEN rule.is_ordered THEN 0
                WHEN COALESCE(own.concurrency, rule.concurrency) IS NULL
                THEN found.held - found.live
                ELSE LEAST(
                    found.held - found.live,
                    GREATEST(COALESCE(own.concurrency, rule.concurrency) - found.live, 0)
                )
            END AS retaken,
            CASE
                WHEN rule.is_ordered THEN (
                    found.live = 0
                    AND LEAST(found.due_at, found.leased_until) <= (SELECT now FROM clock)
                    AND COALESCE(retry.waits_until <= (SELECT now FROM clock), true)
                )::integer
                WHEN COALESCE(found.due_at > (SELECT now FROM clock), true) THEN 0
                WHEN COALESCE(own.concurrency, rule.concurrency) <= found.held THEN 0
                WHEN COALESCE(own.concurrency, rule.concurrency) - found.held = 1
                    OR NOT EXISTS (
                        SELECT
                        FROM delayed_queue
                        WHERE "pKind" = %(kind)s
                            AND "group" = found.name
                            AND "lockUuid" IS NULL
                            AND ("scheduledAt", id) > (found.due_at, found.id)
                            AND "scheduledAt" <= (SELECT now FROM clock)
                    ) THEN 1
                ELSE COALESCE(
                    COALESCE(own.concurrency, rule.concurrency) - found.held,
                    %(limit)s::integer + 10000
                )
            END AS fresh"""
    + OF_EACH_GROUP
    + """

        UNION ALL
        SELECT
            NULL::varchar COLLATE "C", true,
            CASE WHEN rule.is_fair THEN 1 ELSE -9223372036854775808 END,
            CASE WHEN rule.is_fair THEN 1 ELSE %(limit)s::integer END, NULL, 1, NULL, NULL, NULL, 0,
            cardinality(scanned.ids)
        FROM scanned
        CROSS JOIN rule
        WHERE scanned.ids IS NOT NULL
    ) AS each
)"""
)

# The turns that deal out what is asked: each group gets its weight at every one of those that are
# needed, and of the last one ("more") so much as is left ("last"), which is less for one of them:
# that has a "rest". What was "skipped" a group had at its turn in the claim before. The number of
# turns: each group is full at one ("full_at"); until the next is, those still open get theirs.
_SHARE: Final[LiteralString] = """
wanted AS MATERIALIZED (
    SELECT sum(room) AS room
    FROM looked
    WHERE room > 0
),
turns AS MATERIALIZED (
    SELECT CASE
        WHEN (SELECT room FROM wanted) <= (SELECT most FROM asked) THEN %(limit)s::integer + 10000
        ELSE (
            SELECT GREATEST(ceil(
                ((SELECT most FROM asked) - full_room + open_skipped) / open_weight
            ), 1)::integer
            FROM (
                SELECT
                    full_at,
                    COALESCE(sum(room) OVER (
                        ORDER BY full_at, name ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                    ), 0) AS full_room,
                    sum(weight) OVER still_open AS open_weight,
                    sum(skipped) OVER still_open AS open_skipped
                FROM (
                    SELECT name, room, weight::numeric AS weight, skipped,
                        (room + skipped) / weight::numeric AS full_at
                    FROM looked
                    WHERE room > 0
                ) AS each
                WINDOW still_open AS (
                    ORDER BY full_at, name ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
                )
            ) AS each
            WHERE (SELECT most FROM asked) <= full_room + open_weight * full_at - open_skipped
            ORDER BY full_at
            LIMIT 1
        )
    END AS most
),
rounds AS MATERIALIZED (
    SELECT most, (SELECT most FROM asked) - CASE WHEN most > 1 THEN (
        SELECT sum(LEAST(room, GREATEST(weight::bigint * (turns.most - 1) - skipped, 0)))
        FROM looked
        WHERE room > 0
    ) ELSE 0 END AS remain
    FROM turns
),
share AS MATERIALIZED (
    SELECT name, first, retaken, fresh, place, (before + last)::integer AS number,
        more - last AS rest, (before + last + skipped + weight - 1) / weight AS turn
    FROM (
        SELECT *, LEAST(more, GREATEST(
                remain + more - sum(more) OVER (ORDER BY place, name ROWS UNBOUNDED PRECEDING), 0
            ))::integer AS last
        FROM (
            SELECT name, first, retaken, fresh, place, weight, skipped, before, remain,
                LEAST(room, weight::bigint * turns - skipped)::integer - before AS more
            FROM (
                SELECT looked.*, rounds.most AS turns, rounds.remain, LEAST(
                    room, GREATEST(weight::bigint * (rounds.most - 1) - skipped, 0)
                )::integer AS before
                FROM looked
                CROSS JOIN rounds
                WHERE room > 0
            ) AS each
        ) AS each
    ) AS each
    WHERE before + last > 0
),
last AS (
    SELECT
        CASE
            WHEN name IS NOT NULL THEN name
            WHEN (SELECT groups FROM lap) < %(groups)s::integer THEN ''
        END AS name,
        rest
    FROM share
    WHERE (SELECT is_fair FROM rule)
    ORDER BY turn DESC, place DESC, name DESC
    LIMIT 1
)"""

_OF_GROUP: Final[LiteralString] = """
                SELECT id
                FROM delayed_queue
                WHERE "pKind" = %(kind)s
                    AND "group" = share.name
                    AND "scheduledAt" <= (SELECT now FROM clock)
                    AND "lockUuid" """

# What somebody holds is passed over, and in order nothing is taken in its place. All are looked at
# again in their newest version: a message that was moved to another group counts there, so it is
# left out.
_LEASED: Final[LiteralString] = (
    """
firsts AS MATERIALIZED (
    SELECT id, "group"
    FROM delayed_queue
    WHERE id = ANY (ARRAY(
            SELECT first
            FROM share
            WHERE number = 1
                AND first IS NOT NULL
        ))
        AND COALESCE("scheduledAt" <= (SELECT now FROM clock), false)
    FOR UPDATE SKIP LOCKED
),
plain AS MATERIALIZED (
    SELECT taken.id
    FROM unnest((SELECT ids FROM scanned)) AS each (id)
    CROSS JOIN LATERAL (
        SELECT id
        FROM delayed_queue
        WHERE id = each.id
            AND "group" IS NULL
            AND COALESCE("scheduledAt" <= (SELECT now FROM clock), false)
        FOR UPDATE SKIP LOCKED
    ) AS taken
    LIMIT COALESCE((SELECT number FROM share WHERE name IS NULL), 0)
),
leased AS ("""
    + LEASE_ROWS
    + """
        SELECT id
        FROM plain
        UNION ALL
        SELECT id
        FROM firsts
        WHERE (id, "group") IN (SELECT first, name FROM share)
        UNION ALL
        SELECT taken.id
        FROM share
        CROSS JOIN LATERAL (
            SELECT id
            FROM (
                SELECT id
                FROM ("""
    + _OF_GROUP
    + """IS NOT NULL
                    ORDER BY "group", "scheduledAt", id
                    LIMIT share.retaken
                    FOR UPDATE SKIP LOCKED
                ) AS expired
                UNION ALL
                SELECT id
                FROM ("""
    + _OF_GROUP
    + """IS NULL
                    ORDER BY "group", "scheduledAt", id
                    LIMIT share.fresh
                    FOR UPDATE SKIP LOCKED
                ) AS due
            ) AS either
            LIMIT share.number
        ) AS taken
        WHERE share.name IS NOT NULL
            AND NOT (SELECT is_ordered FROM rule)
            AND (share.number > 1 OR share.first IS NULL
                OR share.first NOT IN (SELECT id FROM firsts))"""
    + LEASED.rstrip()
    + """
)"""
)

# Spend one permit of its group and one of the queue (the empty name) for each leased message.
# The rule in force allows at most its burst to be spent ahead. More than that is left by an earlier
# rule or by a clock that has been set back: it is lowered here, also where nothing was leased.
_SPENT: Final[LiteralString] = """
rated AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM rule WHERE queue_interval IS NOT NULL)
        OR EXISTS (SELECT FROM looked WHERE interval IS NOT NULL) AS is_rated
),
spent AS (
    INSERT INTO delayed_queue_limit ("pKind", "group", "spentUntil")
    SELECT %(kind)s::varchar, name, LEAST(
        GREATEST(spent_until, (SELECT now FROM clock)), (SELECT now FROM clock) + burst * interval
    ) + number * interval
    FROM (
        SELECT name, sum(number) AS number, max(interval) AS interval, max(burst) AS burst,
            max(spent_until) AS spent_until
        FROM (
            SELECT "group" AS name, 1 AS number, NULL::float8 AS interval, NULL::integer AS burst,
                NULL::float8 AS spent_until
            FROM leased
            WHERE (SELECT is_rated FROM rated)
            UNION ALL
            SELECT name, 0, interval, burst, spent_until
            FROM looked
            WHERE (SELECT is_rated FROM rated)
            UNION ALL
            SELECT '', 1, NULL, NULL, NULL
            FROM leased
            WHERE (SELECT is_rated FROM rated)
            UNION ALL
            SELECT '', 0, queue_interval, queue_burst, queue_spent_until
            FROM rule
            WHERE (SELECT is_rated FROM rated)
        ) AS each
        GROUP BY name
    ) AS each
    WHERE interval IS NOT NULL
        AND (number > 0 OR spent_until > (SELECT now FROM clock) + burst * interval)
    ORDER BY name
    ON CONFLICT ("pKind", "group") DO UPDATE
    SET "spentUntil" = EXCLUDED."spentUntil"
)"""

# One claim: it looks what may be leased of each group, deals out turns, leases so much of each and
# spends the permits. One statement, so that the turn of the kind is held for no round trip. What it
# has seen is in the first row, and what it leased in the others, which need not say it again: a
# statement that writes has no parallel workers, so that the parts of a UNION ALL come in order.
# Only under the turn of the kind: what is leased meanwhile is nobody's.
# Reads: as GROUPS_AHEAD; delayed_queue__KindPlusScheduledAtIndex, the primary key.
CLAIM_BY_GROUP: Final[LiteralString] = (
    FOUND_GROUPS
    + ","
    + _ASKED
    + ",\n"
    + UNGROUPED_AHEAD
    + ","
    + _LOOKED
    + ","
    + _SHARE
    + ","
    + _LEASED
    + ","
    + _SPENT
    + """
SELECT
    current_setting('transaction_isolation'),
    (SELECT now FROM clock),
    (SELECT is_paused FROM rule),
    (SELECT is_rated FROM rated),
    (SELECT permit_at FROM asked),
    (SELECT groups FROM lap) + (SELECT count(*) FROM behind),
    COALESCE(
        (SELECT name FROM behind ORDER BY place DESC LIMIT 1),
        (SELECT name FROM ahead ORDER BY place DESC LIMIT 1)
    ),
    (
        SELECT min(permit_at)
        FROM looked
        WHERE permit_at > (SELECT now FROM clock)
    ),
    (SELECT name FROM last),
    (SELECT rest FROM last),
    (SELECT COALESCE(sum(LEAST(room, 2)), 0) FROM looked WHERE name IS NOT NULL),
    COALESCE((SELECT number FROM share WHERE name IS NULL), 0),
    scanned.*,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM scanned
UNION ALL
SELECT
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    leased.*
FROM leased
"""
)


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


class Ahead(NamedTuple):
    """Where a claim of so many looks: at some groups, from the name ``since`` on and round to it.

    That group has so much left (``rest``) of a turn that was cut short. And, among so many
    messages behind (``at``, ``id``), for those without a group. ``wait``: for how many milliseconds
    at most, for the turn and for whatever the transaction locks later.
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
    now: int | None = None


class GroupLease(NamedTuple):
    """The leases that a claim gives, one for what nobody has leased and one for the rest."""

    lease_id: str
    retaken_id: str
    lease: int


class Seen(NamedTuple):
    """What a claim has seen beside what it leased; ``is_paused`` is None where there is no limit.

    ``queue_permit_at``: when the queue has a permit, and ``permit_at`` the next of the groups that
    have none. ``groups`` of which something waits were looked at, to ``last``; by turns, ``since``
    had the last, with its ``rest``, and is empty where the names begin anew. ``room``: how many
    messages could have been leased, of no group more than two. Of the ``read`` messages up to
    (``at``, ``id``) those of ``ids`` have no group; so many of them were ``wanted``.
    """

    isolation: str
    now: int
    is_paused: bool | None
    is_rated: bool
    queue_permit_at: float | None
    groups: int
    last: str | None
    permit_at: float | None
    since: str | None
    rest: int | None
    room: int
    wanted: int
    ids: Sequence[int] | None
    read: int
    at: int
    id: int


_WIDTH: Final = len(Seen._fields)


def claiming_by_group(ahead: Ahead, lease: GroupLease) -> list[Step]:
    """Lease under the turn of the kind, in one transaction; the last is answered as of ``seen``."""
    waits = [] if ahead.wait is None else [limiting_waits(ahead.wait)]
    params = {**ahead._asdict(), **lease._asdict()}
    return [*waits, (TAKE_TURN, {"kind": ahead.kind}), (CLAIM_BY_GROUP, params)]


def seen(answer: list[Row]) -> tuple[Seen, list[LeasedRow]]:
    """Return what a claim by group has seen, and what it leased, earliest due first."""
    summary, *leased = answer
    rows = rows_of(LeasedRow, [row[_WIDTH:] for row in leased])
    return Seen(*summary[:_WIDTH]), earliest_first(rows)


class GroupStore:
    """The statements that look at groups, and lease of them."""

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

    def claim_by_group(
        self, ahead: Ahead, lease: GroupLease, *, using: str = db.DEFAULT_ALIAS
    ) -> tuple[Seen, list[LeasedRow]]:
        """Take the turn of the kind, and lease of what is ahead, by turns."""
        return seen(db.fetch_all(using, claiming_by_group(ahead, lease))[-1])
