"""Taking messages out, and when the next are due."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import (
    ATTEMPTS,
    CLOCK,
    DELIVERED,
    FIRST_ERROR,
    HEADERS,
    LAST_ERROR,
)

# Lock the earliest due messages, passing rows that others hold (Q17), and return their ids.
# Two equal limits, against two mistakes of the planner. One it cannot see, (SELECT …), it takes
# for a tenth of the rows: on a table never analyzed it expects so few that it would rather sort
# all that are due than walk the index. One it can see tells it how few are wanted of a table
# larger than the cache, where a tenth would be worth a sort. The inner one locks the rows.
# "floor" lets who knows that nothing earlier is left step over what was deleted there: while
# any session holds an old snapshot, the index keeps an entry for each, and a claim from the
# start would read them all again.
# Whether the queue is paused does not depend on the row: it is asked once, before the first.
# Reads: delayed_queue__KindPlusScheduledAtIndex in order, so no sort and no more rows than n;
# paused_kind, or the one page of that table.
_SELECTED: Final[LiteralString] = """
        SELECT id
        FROM (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "scheduledAt" >= %(floor)s::bigint
                AND "scheduledAt" <= (SELECT now FROM clock)
                AND NOT EXISTS (SELECT 1 FROM delayed_queue_paused WHERE "pKind" = %(kind)s)"""
_IN_ORDER: Final[LiteralString] = """
            ORDER BY "scheduledAt", id
            LIMIT (SELECT %(limit)s::integer)
            FOR UPDATE SKIP LOCKED
        ) AS due
        LIMIT %(limit)s::integer"""
_EARLIEST_DUE: Final[LiteralString] = _SELECTED + _IN_ORDER

# The lock of a strict claim: one per kind, until the end of the transaction, so that it asks
# nothing of a pooler and dies with its holder. The number keeps it apart from an application's
# own advisory locks; kinds with one hash would wait for each other, and nothing worse.
_LOCK: Final[LiteralString] = "hashtextextended(%(kind)s::text, 7310600482201519)"

# Only once nobody else is claiming: waited for, or else no row is found. An InitPlan that is run
# before the first row is read. The snapshot is older than the lock, which does no harm: a row
# that the holder before us leased meanwhile is looked at again in its newest version when it is
# locked, and is not due any more; it does not count for the limit.
_ALONE: Final[LiteralString] = (
    """
                AND (
                    SELECT CASE
                        WHEN %(waits)s::boolean THEN pg_advisory_xact_lock("""
    + _LOCK
    + """) IS NOT NULL
                        ELSE pg_try_advisory_xact_lock("""
    + _LOCK
    + """)
                    END
                )"""
)

# Lease the earliest due messages. The inner select is an ARRAY(...) InitPlan, so it runs once
# and its LIMIT holds under every plan; as `id IN (SELECT …)` a nested loop may run it again and
# lease more than the limit (Q18). "dueAt" keeps the time the lease overwrites, for the order of
# the answer and for lateness. A message whose last lease ran out unsettled may have killed who
# held it: it gets a lease id of its own, by which a worker keeps it apart.
# The rows come in no order: sorting them is cheaper for the caller than a CTE is here.
# Reads: as _EARLIEST_DUE, then the primary key.
_LEASE: Final[LiteralString] = (
    CLOCK
    + """
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
_LEASED: Final[LiteralString] = """
))
RETURNING
    id, "pKey", payload, "scheduledAtInitially", "dueAt", "scheduledAt", attempts,
    headers::text, "lockUuid" = %(retaken_id)s::varchar
"""
CLAIM: Final[LiteralString] = _LEASE + _EARLIEST_DUE + _LEASED

# The same behind a message, and none whose url begins in one of these ways: they are being put off
# (PUT_OFF_BACKLOG), and would be leased in vain. What is passed over is read, so no more than
# "looked" messages are; if there are more, a row without a key says where the next claim goes on.
# Reads: as CLAIM.
CLAIM_PASSING: Final[LiteralString] = (
    CLOCK
    + """,
looked AS MATERIALIZED (
    SELECT due_at, id
    FROM (
        SELECT "scheduledAt" AS due_at, id
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND ("scheduledAt", id) > (%(after)s::bigint, %(after_id)s::bigint)
            AND "scheduledAt" <= (SELECT now FROM clock)
            AND NOT EXISTS (SELECT 1 FROM delayed_queue_paused WHERE "pKind" = %(kind)s)
        ORDER BY "scheduledAt", id
        LIMIT (SELECT %(looked)s::integer)
    ) AS due
    OFFSET %(looked)s::integer - 1
    LIMIT 1
),
leased AS (
    UPDATE delayed_queue
    SET "lockUuid" = CASE
            WHEN "lockUuid" IS NULL THEN %(lease_id)s::varchar ELSE %(retaken_id)s::varchar
        END,
        "dueAt" = "scheduledAt",
        "scheduledAt" = (SELECT now FROM clock) + %(lease)s::bigint,
        """
    + DELIVERED
    + """
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND ("scheduledAt", id) > (%(after)s::bigint, %(after_id)s::bigint)
                AND ("scheduledAt", id) <= (
                    COALESCE((SELECT due_at FROM looked), (SELECT now FROM clock)),
                    COALESCE((SELECT id FROM looked), 9223372036854775807)
                )
                AND NOT EXISTS (SELECT 1 FROM delayed_queue_paused WHERE "pKind" = %(kind)s)
                AND ((headers ->> 'url') || '/' ^@ ANY (%(passed)b::text[])) IS NOT TRUE"""
    + _IN_ORDER
    + """
    ))
    RETURNING
        id, "pKey", payload, "scheduledAtInitially", "dueAt", "scheduledAt", attempts,
        headers::text, "lockUuid" = %(retaken_id)s::varchar AS "isRetaken"
)
SELECT
    id, "pKey", payload, "scheduledAtInitially", "dueAt", "scheduledAt", attempts, headers,
    "isRetaken"
FROM leased
UNION ALL
SELECT id, NULL, NULL, NULL, due_at, NULL, NULL, NULL, NULL
FROM looked
"""
)

# The same, and no two at a time: of two claims of two that meet two messages, CLAIM may give
# each one, because each passes over what the other has just locked; here one gets both and the
# other none (N6). Still one statement. Reads: as CLAIM.
CLAIM_STRICT: Final[LiteralString] = _LEASE + _SELECTED + _ALONE + _IN_ORDER + _LEASED

# Whether a strict claim may be made now; then the lock is ours until the transaction ends, and
# CLAIM_STRICT takes it again. Asked by who must tell "nothing is due" from "not my turn".
TRY_ALONE: Final[LiteralString] = (
    """
SELECT pg_try_advisory_xact_lock("""
    + _LOCK
    + """)
"""
)

# Take the earliest due messages out, inside the transaction that handles them: no lease is
# written, and a rollback puts them back (Q30). Everything needed by RESTORE is returned; the
# rows come in no order, as of CLAIM.
# Reads: as _EARLIEST_DUE, then the primary key.
CONSUME: Final[LiteralString] = (
    CLOCK
    + """
DELETE FROM delayed_queue
WHERE id = ANY (ARRAY("""
    + _EARLIEST_DUE
    + """
))
RETURNING
    id, "pKey", payload, "scheduledAtInitially", "scheduledAt", "scheduledAt", """
    + ATTEMPTS
    + """ + 1,
    ("""
    + HEADERS
    + """)::text, "lockUuid" IS NOT NULL, "createdAt", """
    + FIRST_ERROR
    + ", "
    + LAST_ERROR
    + """
"""
)

# Put one consumed message back under a lease, in the transaction that took it and whose
# handler failed, so that RELEASE or BURY can count the failure like any other.
# Its key is free: the deletion is ours and uncommitted, so any other offer of it waits.
RESTORE: Final[LiteralString] = """
INSERT INTO delayed_queue (
    id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "lockUuid",
    "createdAt", attempts, headers, "dueAt", "firstError", "lastError", "versionAt"
)
VALUES (
    %(id)s, %(key)s, %(kind)s, %(payload)s::bytea, %(due_at)s, %(scheduled_at)s, %(lease_id)s,
    %(created_at)s, %(attempts)s, %(headers)s::jsonb, %(due_at)s, %(first_error)s, %(last_error)s,
    %(created_at)s
)
"""

# For each of the kinds that has a message within the horizon, from its floor on: the milliseconds
# until the earliest is due, none or fewer when it is. One descent for each kind, for workers that
# watch many queues of which most have nothing.
# Reads: delayed_queue__KindPlusScheduledAtIndex.
NEXT_DUE_OF_KINDS: Final[LiteralString] = (
    CLOCK
    + """
SELECT asked.kind, earliest.due_at - (SELECT now FROM clock)
FROM unnest(%(kinds)b::text[], %(floors)b::bigint[]) AS asked (kind, floor)
CROSS JOIN LATERAL (
    SELECT "scheduledAt" AS due_at
    FROM delayed_queue
    WHERE "pKind" = asked.kind
        AND "scheduledAt" >= asked.floor
        AND "scheduledAt" <= (SELECT now FROM clock) + %(horizon)s::bigint
    ORDER BY "scheduledAt", id
    LIMIT 1
) AS earliest
"""
)

# Milliseconds until the next message that is not yet due; no row when none is within the
# horizon, beyond which nobody asks: leases of handled messages leave entries there that are
# dead, and under an old snapshot every look would read them. Due messages are left out on
# purpose: one that another transaction holds would make its waiters spin.
# Reads: delayed_queue__KindPlusScheduledAtIndex.
NEXT_DUE: Final[LiteralString] = (
    CLOCK
    + """
SELECT "scheduledAt" - (SELECT now FROM clock)
FROM delayed_queue
WHERE "pKind" = %(kind)s
    AND "scheduledAt" > (SELECT now FROM clock)
    AND "scheduledAt" <= (SELECT now FROM clock) + %(horizon)s::bigint
ORDER BY "scheduledAt", id
LIMIT 1
"""
)
