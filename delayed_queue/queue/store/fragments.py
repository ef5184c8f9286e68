"""Fragments that several statements of the queue share."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.db.sql import CLOCK

# Our columns belong to the version of the message that "versionAt" names by its "createdAt". A
# service of another language that writes a new version names none of them; what they say of the
# version before is then read as absent (Q4, Q36). NULL: nothing was written there yet.
ATTEMPTS: Final[LiteralString] = """CASE WHEN "versionAt" <> "createdAt" THEN 0 ELSE attempts END"""
HEADERS: Final[LiteralString] = (
    """CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE headers END"""
)
FIRST_ERROR: Final[LiteralString] = (
    """CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE "firstError" END"""
)
LAST_ERROR: Final[LiteralString] = (
    """CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE "lastError" END"""
)

# From here on the other columns are right as they are, until a new version is written.
TAKEN_OVER: Final[LiteralString] = (
    """headers = """
    + HEADERS
    + """,
    "firstError" = """
    + FIRST_ERROR
    + """,
    "lastError" = """
    + LAST_ERROR
    + """,
    "versionAt" = "createdAt\""""
)


def crash_error(last_error: LiteralString) -> LiteralString:
    """Return the last error after one more crash: numbered, above those of earlier crashes."""
    return (
        """concat(
            'Crash ', 1 + COALESCE(
                substring("""
        + last_error
        + """ FROM '^Crash ([0-9]{1,6}): ')::integer, 0
            ), ': ', %(error)s::text,
            E'\\n' || left(substring("""
        + last_error
        + """ FROM '^Crash [0-9].*'), 2000)
        )"""
    )


# What a claim sets beside the lease: one more delivery.
DELIVERED: Final[LiteralString] = """attempts = """ + ATTEMPTS + """ + 1, """ + TAKEN_OVER

# True of every message: without a word on due times, PostgreSQL does not see that the index of due
# times, which is partial, has them all.
ALL_TIMES: Final[LiteralString] = """"scheduledAt" >= '-9223372036854775808'::bigint"""

# The lock of claims that are made one at a time: one per kind, until the end of the transaction,
# so that it asks nothing of a pooler and dies with its holder. The number keeps it apart from an
# application's own advisory locks; kinds with one hash would wait for each other, and nothing
# worse.
KIND_LOCK: Final[LiteralString] = "hashtextextended(%(kind)s::text, 7310600482201519)"

# Lease the rows whose ids stand between the two; the clock before them.
LEASE_ROWS: Final[LiteralString] = (
    """
UPDATE delayed_queue
SET "lockUuid" = CASE
        WHEN "lockUuid" IS NULL THEN %(lease_id)s::varchar ELSE %(retaken_id)s::varchar
    END,
    "dueAt" = "scheduledAt",
    "scheduledAt" = (SELECT now FROM clock) + %(lease)s::bigint,
    """
    + DELIVERED
    + """
WHERE id = ANY (ARRAY("""
)
LEASING: Final[LiteralString] = CLOCK + LEASE_ROWS
LEASED: Final[LiteralString] = """
))
RETURNING
    id, "pKey", payload, "scheduledAtInitially", "dueAt", "scheduledAt", attempts,
    headers::text, "lockUuid" = %(retaken_id)s::varchar, "group"
"""

# Tell who holds the lease of a row that it ends: all workers listen, and the one that holds it
# asks what is left of it. Sent at the commit, once for a lease, and only where there is one:
# NOTIFY takes a lock of the whole database. Not while somebody lets the notifications pile up,
# which would fail the statement: then the next renewal of the lease finds out.
TELL_HOLDER: Final[LiteralString] = """CASE
        WHEN stored."lockUuid" IS NOT NULL AND pg_notification_queue_usage() < 0.5
        THEN pg_notify('delayed_queue_leases', stored."lockUuid")::text
    END"""

# A new life under the old key: the lease ends, attempts and errors start anew (Q4). What tells its
# holder is empty or NULL.
REPLACE: Final[LiteralString] = (
    """
ON CONFLICT ("pKey", "pKind") DO UPDATE
SET payload = EXCLUDED.payload,
    "scheduledAt" = EXCLUDED."scheduledAt",
    "scheduledAtInitially" = EXCLUDED."scheduledAtInitially",
    "createdAt" = EXCLUDED."createdAt",
    headers = EXCLUDED.headers,
    "group" = EXCLUDED."group",
    "lockUuid" = NULLIF("""
    + TELL_HOLDER
    + """, ''),
    "dueAt" = NULL,
    attempts = 0,
    "firstError" = NULL,
    "lastError" = NULL,
    "versionAt" = EXCLUDED."createdAt\""""
)

# Q3: a repeated offer is recognised by payload bytes and first schedule alone.
IF_CHANGED: Final[LiteralString] = """
WHERE stored.payload <> EXCLUDED.payload
    OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
"""


# One of a group goes before what came later, which it may have held up: as one that was begun, for
# which it is due behind its first schedule, and those in their old order.
_OLD_PLACE: Final[LiteralString] = """
        CASE WHEN "group" IS NULL THEN now ELSE LEAST(now, "scheduledAtInitially" + 1) END"""


def offering_again(first_schedule: LiteralString) -> LiteralString:
    """Return the CTE of messages made of the newest letters, due now, as first attempts.

    Behind it stands which letters are left out. ``first_schedule``: when they are said to have
    been due first.
    """
    return (
        """
offered AS (
    INSERT INTO delayed_queue AS stored (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt", "group"
    )
    SELECT "pKey", "pKind", payload, """
        + _OLD_PLACE
        + """,
        CASE WHEN "group" IS NULL THEN """
        + first_schedule
        + """ ELSE "scheduledAtInitially" END, now, headers, now, "group"
    FROM newest
    CROSS JOIN clock"""
    )


def _lap(name: LiteralString, first: LiteralString, rest: LiteralString) -> LiteralString:
    """Return the CTE that steps from group to group, with what bounds the first step and others."""
    return (
        name
        + """ (name, due_at, id, place) AS (
    (
        SELECT "group", "scheduledAt", id, 1
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND "lockUuid" IS NULL
            AND """
        + first
        + """
        ORDER BY "group", "scheduledAt", id
        LIMIT 1
    )
    UNION ALL
    SELECT next."group", next."scheduledAt", next.id, """
        + name
        + """.place + 1
    FROM """
        + name
        + """
    CROSS JOIN LATERAL (
        SELECT "group", "scheduledAt", id
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND "lockUuid" IS NULL
            AND "group" > """
        + name
        + """.name
        ORDER BY "group", "scheduledAt", id
        LIMIT 1
    ) AS next
    WHERE """
        + rest
        + """
)"""
    )


_LEASES: Final[LiteralString] = """
        SELECT "group", NULL::bigint, NULL::bigint, 1, "scheduledAt"
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND "lockUuid" IS NOT NULL
            AND """

# The groups that are ahead, from a name on and round to it: what holds for all; what is due of each
# and how much of it is leased. First those of which something waits: a loose scan, one descent for
# a group, however many messages it has. Then all leases of groups between the first and the last
# of these, or of all groups where there are no more: a group may have nothing else.
# Leases that ran out count: each keeps its slot until it is taken again in it, so a late extension
# finds it free.
# They are put together by their names, not joined: two CTEs, of which the planner knows nothing,
# it would join row by row.
FOUND_GROUPS: Final[LiteralString] = (
    CLOCK.replace("WITH", "WITH RECURSIVE", 1)
    + """,
rule AS MATERIALIZED (
    SELECT
        "group" = '' AND "pausedAt" IS NOT NULL AS is_paused, "isOrdered" AS is_ordered,
        "isFair" AS is_fair, "blocksOnDead" AS blocks,
        CASE WHEN "group" = '' THEN concurrency END AS concurrency,
        CASE WHEN "group" = '' THEN interval END AS interval,
        CASE WHEN "group" = '' THEN burst END AS burst,
        "queueInterval" AS queue_interval, COALESCE("queueBurst", 1) AS queue_burst,
        CASE WHEN "group" = '' THEN "spentUntil" END AS queue_spent_until
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
"""
    + _lap("ahead", """"group" >= %(since)s::varchar""", "ahead.place < %(groups)s::integer")
    + """,
lap AS MATERIALIZED (
    SELECT count(*) AS groups
    FROM ahead
),
"""
    + _lap(
        "behind",
        """"group" < %(since)s::varchar
            AND (SELECT groups FROM lap) < %(groups)s::integer""",
        """next."group" < %(since)s::varchar
        AND behind.place + (SELECT groups FROM lap) < %(groups)s::integer""",
    )
    + """,
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
        UNION ALL"""
    + _LEASES
    + """"group" >= %(since)s::varchar
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
        UNION ALL"""
    + _LEASES
    + """"group" < %(since)s::varchar
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
)

# What holds for each of them, and when the last that was begun and waits for a retry is due.
OF_EACH_GROUP: Final[LiteralString] = """
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
    ) AS retry ON true"""
IS_GROUP_BLOCKED: Final[LiteralString] = """COALESCE(rule.blocks, false) AND EXISTS (
            SELECT
            FROM delayed_queue_dead_letter
            WHERE "pKind" = %(kind)s
                AND "group" = found.name
                AND "diedAt" > COALESCE(own."resumedAt", -9223372036854775808)
        )"""
# The one to lease next in a queue in order: what was begun goes first.
HEAD_OF_GROUP: Final[LiteralString] = """COALESCE(
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
        )"""

# The messages without a group among the next that are due, behind a position; how many were read,
# and the last of them. There may be any number of messages of groups in between, so the number
# that is read is bounded, and the caller goes on from there.
UNGROUPED_AHEAD: Final[LiteralString] = """scanned AS MATERIALIZED (
    SELECT
        array_agg(id) FILTER (WHERE "group" IS NULL) AS ids, count(*) AS read,
        COALESCE((array_agg("scheduledAt"))[count(*)], %(at)s::bigint) AS at,
        COALESCE((array_agg(id))[count(*)], %(id)s::bigint) AS id
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
)"""
