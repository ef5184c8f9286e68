"""Every hand-written statement of the package, each with its guarantee, shape and index.

Rules that all of them keep:

* One instant per statement. ``%(now)s`` is the caller's clock in epoch milliseconds or NULL;
  NULL means the database's ``statement_timestamp()``, so skewed host clocks cannot matter.
* A write to a leased row names the lease (``"lockUuid"``): a stale write changes nothing.
  ``IS NOT DISTINCT FROM`` lets the same statement act on a row that is *not* leased, which is
  how an operator drops or brings forward a message without racing a worker.
* Arrays are read in place (``= ANY``, ``unnest``): no statement grows with its input, so none
  meets the protocol's 65,535-parameter limit and each is prepared once.
* Arrays travel in binary, ``%(…)b``: left the choice, psycopg sends them as text, which takes
  a thousand payloads 16 times as long, and the server must parse it. Not jsonb: its array is
  one of text on the way there.
"""

from __future__ import annotations

from typing import Final, LiteralString

# Milliseconds since the epoch, floored; evaluated once per statement wherever it is used as
# an uncorrelated sub-select (PostgreSQL makes an InitPlan of it).
_CLOCK: Final[LiteralString] = """
WITH clock AS MATERIALIZED (
    SELECT COALESCE(
        %(now)s::bigint,
        floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint
    ) AS now
)"""

# A new life under the old key: the lease ends, attempts and errors start anew (Q4).
_REPLACE: Final[LiteralString] = """
ON CONFLICT ("pKey", "pKind") DO UPDATE
SET payload = EXCLUDED.payload,
    "scheduledAt" = EXCLUDED."scheduledAt",
    "scheduledAtInitially" = EXCLUDED."scheduledAtInitially",
    "createdAt" = EXCLUDED."createdAt",
    headers = EXCLUDED.headers,
    "lockUuid" = NULL,
    "dueAt" = NULL,
    attempts = 0,
    "firstError" = NULL,
    "lastError" = NULL"""

# Q3: a repeated offer is recognised by payload bytes and first schedule alone.
_IF_CHANGED: Final[LiteralString] = """
WHERE stored.payload <> EXCLUDED.payload
    OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
"""

# Put or update one message. CREATED is a row whose xmax is 0, UPDATED one with an xmax (ON
# CONFLICT locks the old version first, and its successor carries that lock); no row is IGNORED:
# same payload bytes and same first schedule (Q2, Q3). One statement, so a re-offer that races
# an acknowledgement is either before it or after it, and never loops (Q7).
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_OR_UPDATE: Final[LiteralString] = (
    _CLOCK
    + """
INSERT INTO delayed_queue AS stored (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
)
SELECT
    %(key)s,
    %(kind)s,
    %(payload)s::bytea,
    COALESCE(%(schedule_at)s::bigint, now + %(delay)s::bigint),
    COALESCE(%(schedule_at)s::bigint, now + %(delay)s::bigint),
    now,
    %(headers)s::jsonb
FROM clock"""
    + _REPLACE
    + _IF_CHANGED
    + """
RETURNING xmax = 0 AS created
"""
)

# Put one message unless its key exists; a returned row is CREATED, none is IGNORED (Q1).
# DO NOTHING waits for a transaction that is deleting the key, so after it there is room (Q7).
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_IF_NOT_EXISTS: Final[LiteralString] = (
    _CLOCK
    + """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
)
SELECT
    %(key)s,
    %(kind)s,
    %(payload)s::bytea,
    COALESCE(%(schedule_at)s::bigint, now + %(delay)s::bigint),
    COALESCE(%(schedule_at)s::bigint, now + %(delay)s::bigint),
    now,
    %(headers)s::jsonb
FROM clock
ON CONFLICT ("pKey", "pKind") DO NOTHING
RETURNING true AS created
"""
)

# Ids are drawn in input order (inner query), rows are inserted, and so locked, in key order
# (outer query): equal schedules are delivered as they were offered (Q15), and two batches with
# the same keys in opposite order cannot deadlock. Keys must be distinct within one statement.
_BATCH_SOURCE: Final[LiteralString] = """
INSERT INTO delayed_queue AS stored (
    id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
)
SELECT id, key, %(kind)s, payload, due_at, due_at, created_at, headers
FROM (
    SELECT
        nextval('delayed_queue_id_seq') AS id,
        offered.key,
        offered.payload,
        COALESCE(offered.schedule_at, (SELECT now FROM clock)) AS due_at,
        (SELECT now FROM clock) AS created_at,
        offered.headers
    FROM unnest(
        %(keys)b::text[], %(payloads)b::bytea[], %(schedules)b::bigint[], %(headers)s::jsonb[]
    ) AS offered (key, payload, schedule_at, headers)
) AS numbered
ORDER BY key COLLATE "C"
"""

# OFFER_OR_UPDATE for a chunk; keys without a returned row are IGNORED. A key that another
# transaction inserts meanwhile is waited for and costs only itself (Q13).
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_BATCH_OR_UPDATE: Final[LiteralString] = (
    _CLOCK
    + _BATCH_SOURCE
    + _REPLACE
    + _IF_CHANGED
    + """
RETURNING "pKey", xmax = 0 AS created
"""
)

# OFFER_IF_NOT_EXISTS for a chunk.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_BATCH_IF_NOT_EXISTS: Final[LiteralString] = (
    _CLOCK
    + _BATCH_SOURCE
    + """
ON CONFLICT ("pKey", "pKind") DO NOTHING
RETURNING "pKey", true AS created
"""
)

# Lock the earliest due messages, passing rows that others hold (Q17), and return their ids.
# Two equal limits, against two mistakes of the planner. One it cannot see, (SELECT …), it takes
# for a tenth of the rows: on a table never analyzed it expects so few that it would rather sort
# all that are due than walk the index. One it can see tells it how few are wanted of a table
# larger than the cache, where a tenth would be worth a sort. The inner one locks the rows.
# Reads: delayed_queue__KindPlusScheduledAtIndex in order, so no sort and no more rows than n.
_EARLIEST_DUE: Final[LiteralString] = """
        SELECT id
        FROM (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "scheduledAt" <= (SELECT now FROM clock)
            ORDER BY "scheduledAt", id
            LIMIT (SELECT %(limit)s::integer)
            FOR UPDATE SKIP LOCKED
        ) AS due
        LIMIT %(limit)s::integer"""

# Lease the earliest due messages. The inner select is an ARRAY(...) InitPlan, so it runs once
# and its LIMIT holds under every plan; as `id IN (SELECT …)` a nested loop may run it again and
# lease more than the limit (Q18). "dueAt" keeps the time the lease overwrites, for the order of
# the answer and for lateness.
# Reads: as _EARLIEST_DUE, then the primary key.
CLAIM: Final[LiteralString] = (
    _CLOCK
    + """,
leased AS (
    UPDATE delayed_queue
    SET "lockUuid" = %(lease_id)s,
        "dueAt" = "scheduledAt",
        "scheduledAt" = (SELECT now FROM clock) + %(lease)s::bigint,
        attempts = attempts + 1
    WHERE id = ANY (ARRAY("""
    + _EARLIEST_DUE
    + """
    ))
    RETURNING
        id, "pKey", payload, "scheduledAtInitially", "dueAt", "scheduledAt", attempts,
        headers::text
)
SELECT
    id, "pKey", payload, "scheduledAtInitially", "dueAt", "scheduledAt", attempts, headers
FROM leased
ORDER BY "dueAt", id
"""
)

# Take the earliest due messages out, inside the transaction that handles them: no lease is
# written, and a rollback puts them back (Q30). Everything needed by RESTORE is returned.
# Reads: as _EARLIEST_DUE, then the primary key.
CONSUME: Final[LiteralString] = (
    _CLOCK
    + """,
taken AS (
    DELETE FROM delayed_queue
    WHERE id = ANY (ARRAY("""
    + _EARLIEST_DUE
    + """
    ))
    RETURNING
        id, "pKey", payload, "scheduledAtInitially", "scheduledAt", attempts, headers::text,
        "createdAt", "firstError", "lastError"
)
SELECT
    id, "pKey", payload, "scheduledAtInitially", "scheduledAt" AS "dueAt", "scheduledAt",
    attempts + 1 AS attempts, headers, "createdAt", "firstError", "lastError"
FROM taken
ORDER BY "dueAt", id
"""
)

# Put one consumed message back under a lease, in the transaction that took it and whose
# handler failed, so that RELEASE or BURY can count the failure like any other.
# Its key is free: the deletion is ours and uncommitted, so any other offer of it waits.
RESTORE: Final[LiteralString] = """
INSERT INTO delayed_queue (
    id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "lockUuid",
    "createdAt", attempts, headers, "dueAt", "firstError", "lastError"
)
VALUES (
    %(id)s, %(key)s, %(kind)s, %(payload)s::bytea, %(due_at)s, %(scheduled_at)s, %(lease_id)s,
    %(created_at)s, %(attempts)s, %(headers)s::jsonb, %(due_at)s, %(first_error)s, %(last_error)s
)
"""

# Delete some members of a lease (or, with a NULL lease, rows that are not leased).
# Reads: the primary key; the lease is a filter on rows already found.
ACKNOWLEDGE: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
RETURNING id
"""

# Delete all that is still under a lease. Members that were updated, dropped, released or
# leased again no longer carry it (Q24).
# Reads: delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_LEASE: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE "lockUuid" = %(lease_id)s
"""

# Give messages back, due after the delay; %(refund)s takes deliveries that were none off the
# count (a snooze, a message a stopping worker never started). With a NULL lease it moves rows
# that are not leased: "deliver now".
# Reads: the primary key.
RELEASE: Final[LiteralString] = (
    _CLOCK
    + """
UPDATE delayed_queue
SET "scheduledAt" = (SELECT now FROM clock) + %(delay)s::bigint,
    "lockUuid" = NULL,
    attempts = GREATEST(attempts - %(refund)s::integer, 0),
    "firstError" = COALESCE("firstError", %(error)s::text),
    "lastError" = COALESCE(%(error)s::text, "lastError")
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
RETURNING id
"""
)

# Prolong leases, never shorten them. Several leases at once, so that a worker renews all it
# holds in one statement (W3): a row matches only if it is one of the named messages *and* is
# under one of the named leases, both of which belong to the caller.
# Reads: the primary key or delayed_queue__LockUuidPlusIdIndex.
EXTEND: Final[LiteralString] = (
    _CLOCK
    + """
UPDATE delayed_queue
SET "scheduledAt" = GREATEST("scheduledAt", (SELECT now FROM clock) + %(lease)s::bigint)
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id, "lockUuid", "scheduledAt"
"""
)

# Move messages to the dead letters in one statement: in the queue or there, never both, never
# neither (Q28). Reads: the primary key.
BURY: Final[LiteralString] = (
    _CLOCK
    + """,
buried AS (
    DELETE FROM delayed_queue
    WHERE id = ANY (%(ids)b::bigint[])
        AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
    RETURNING
        id, "pKind", "pKey", payload, headers, attempts, "firstError", "lastError",
        "scheduledAtInitially", "createdAt"
),
kept AS (
    INSERT INTO delayed_queue_dead_letter (
        "pKind", "pKey", payload, headers, attempts, reason, "firstError", "lastError",
        "scheduledAtInitially", "createdAt", "diedAt"
    )
    SELECT
        "pKind", "pKey", payload, headers, attempts, %(reason)s,
        COALESCE("firstError", %(error)s::text),
        COALESCE(%(error)s::text, "lastError"),
        "scheduledAtInitially", "createdAt", (SELECT now FROM clock)
    FROM buried
)
SELECT id
FROM buried
"""
)

# Report one message without leasing it, with the instant that its state is judged by.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
READ: Final[LiteralString] = (
    _CLOCK
    + """
SELECT
    "scheduledAt", "scheduledAtInitially", "createdAt", "lockUuid", attempts, headers::text,
    "lastError", payload, now
FROM delayed_queue
CROSS JOIN clock
WHERE "pKey" = %(key)s
    AND "pKind" = %(kind)s
"""
)

# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
CONTAINS: Final[LiteralString] = """
SELECT EXISTS (
    SELECT 1
    FROM delayed_queue
    WHERE "pKey" = %(key)s
        AND "pKind" = %(kind)s
)
"""

# Delete by key whatever its state; the acknowledgement of a leased one then finds nothing.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
DROP: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE "pKey" = %(key)s
    AND "pKind" = %(kind)s
"""

# Reads: delayed_queue__KindPlusScheduledAtIndex, or the table when the kind fills most of it.
DROP_ALL: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE "pKind" = %(kind)s
"""

# Milliseconds until the next message that is not yet due; no row when none is scheduled.
# Due messages are left out on purpose: one that another transaction holds would make its
# waiters spin. Reads: delayed_queue__KindPlusScheduledAtIndex.
NEXT_DUE: Final[LiteralString] = (
    _CLOCK
    + """
SELECT "scheduledAt" - (SELECT now FROM clock)
FROM delayed_queue
WHERE "pKind" = %(kind)s
    AND "scheduledAt" > (SELECT now FROM clock)
ORDER BY "scheduledAt", id
LIMIT 1
"""
)

# Wake those who listen on the channel, when the transaction commits.
NOTIFY: Final[LiteralString] = "SELECT pg_notify(%(channel)s, '')"

# Counts that each stop at the cap, so the cost is bounded however full the queue is (Q32); the
# limits are doubled for the reason given at _EARLIEST_DUE. Leases are counted among the first
# messages that are not due, and in the lock index, which holds the rows in flight of all queues:
# the larger count is right or, like "scheduled" plus "leased", has reached the cap.
# Reads: delayed_queue__KindPlusScheduledAtIndex, delayed_queue__LockUuidPlusIdIndex,
# dead_letter_kind_died.
STATS: Final[LiteralString] = (
    _CLOCK
    + """,
later AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE "lockUuid" IS NULL) AS scheduled, count("lockUuid") AS leased
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
)
SELECT
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM (
                SELECT 1
                FROM delayed_queue
                WHERE "pKind" = %(kind)s
                    AND "scheduledAt" <= (SELECT now FROM clock)
                ORDER BY "scheduledAt", id
                LIMIT (SELECT %(cap)s::integer)
            ) AS first
            LIMIT %(cap)s::integer
        ) AS capped
    ) AS due,
    later.scheduled,
    GREATEST(
        later.leased,
        (
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
            ) AS held
            WHERE "pKind" = %(kind)s
                AND "scheduledAt" > (SELECT now FROM clock)
        )
    ) AS leased,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM (
                SELECT 1
                FROM delayed_queue_dead_letter
                WHERE "pKind" = %(kind)s
                ORDER BY "diedAt", id
                LIMIT (SELECT %(cap)s::integer)
            ) AS first
            LIMIT %(cap)s::integer
        ) AS capped
    ) AS dead,
    (
        SELECT (SELECT now FROM clock) - "scheduledAt"
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND "scheduledAt" <= (SELECT now FROM clock)
        ORDER BY "scheduledAt", id
        LIMIT 1
    ) AS oldest_due_age
FROM later
"""
)

# Put dead letters back, due now, as first attempts. Several letters of one key: the newest is
# offered, the others stay. %(overwrite)s decides about a key that lives again meanwhile.
# A row for each letter found: created true or false, or NULL for one that stayed dead.
# A NULL kind stands for any. Inside COALESCE no index serves the comparison: what is wanted are a
# few ids, not all the letters of the kind.
# Reads: the primary key of the dead letters; delayed_queue__PKeyPlusKindUniqueIndex.
REDRIVE: Final[LiteralString] = (
    _CLOCK
    + """,
locked AS MATERIALIZED (
    SELECT id, "pKind", "pKey", payload, headers
    FROM delayed_queue_dead_letter
    WHERE id = ANY (%(ids)b::bigint[])
        AND COALESCE("pKind" = %(kind)s::text, true)
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
newest AS MATERIALIZED (
    SELECT DISTINCT ON ("pKey", "pKind") id, "pKind", "pKey", payload, headers
    FROM locked
    ORDER BY "pKey", "pKind", id DESC
),
offered AS (
    INSERT INTO delayed_queue (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
    )
    SELECT "pKey", "pKind", payload, now, now, now, headers
    FROM newest
    CROSS JOIN clock
    ORDER BY "pKey" COLLATE "C", "pKind"
"""
    + _REPLACE
    + """
    WHERE %(overwrite)s::boolean
    RETURNING "pKey", "pKind", xmax = 0 AS created
),
redriven AS (
    DELETE FROM delayed_queue_dead_letter AS letter
    USING newest, offered
    WHERE letter.id = newest.id
        AND newest."pKey" = offered."pKey"
        AND newest."pKind" = offered."pKind"
    RETURNING letter.id, offered.created
)
SELECT locked.id, redriven.created, locked."pKind"
FROM locked
LEFT JOIN redriven ON redriven.id = locked.id
"""
)

# The next dead letters to redrive, in id order after the last seen one; a NULL reason stands for
# any, because starts_with is strict. Inside COALESCE the planner expects it to keep half of the
# rows, bare next to none, for which it would rather sort all that the kind has.
# Reads: dead_letter_kind_id, or the primary key where the kind has much of the table.
DEAD_LETTER_IDS: Final[LiteralString] = """
SELECT id
FROM (
    SELECT id
    FROM delayed_queue_dead_letter
    WHERE "pKind" = %(kind)s
        AND id > %(after)s::bigint
        AND COALESCE(starts_with(reason, %(reason)s::text), true)
    ORDER BY id
    LIMIT (SELECT %(limit)s::integer)
) AS next
ORDER BY id
LIMIT %(limit)s::integer
"""

# Delete dead letters that died longer ago than the age, one bounded bite at a time, without
# waiting for rows that a redrive holds. Two limits as in _EARLIEST_DUE.
# Reads: dead_letter_kind_died.
PRUNE_DEAD_LETTERS: Final[LiteralString] = (
    _CLOCK
    + """
DELETE FROM delayed_queue_dead_letter
WHERE id = ANY (ARRAY(
    SELECT id
    FROM (
        SELECT id
        FROM delayed_queue_dead_letter
        WHERE "pKind" = %(kind)s
            AND "diedAt" < (SELECT now FROM clock) - %(age)s::bigint
        ORDER BY "diedAt", id
        LIMIT (SELECT %(limit)s::integer)
        FOR UPDATE SKIP LOCKED
    ) AS oldest
    LIMIT %(limit)s::integer
))
"""
)

# Delete dead letters by id, from the admin. Reads: the primary key.
DROP_DEAD_LETTERS: Final[LiteralString] = """
DELETE FROM delayed_queue_dead_letter
WHERE id = ANY (%(ids)b::bigint[])
"""

# The distinct kinds, at most %(limit)s, by a loose index scan: one descent for each kind, however
# many messages it has, where DISTINCT would read all of them.
# Reads: delayed_queue__KindPlusScheduledAtIndex, whose order the inner selects name in full.
KINDS: Final[LiteralString] = """
WITH RECURSIVE kinds (kind, position) AS (
    (
        SELECT "pKind", 1
        FROM delayed_queue
        ORDER BY "pKind", "scheduledAt", id
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT "pKind"
            FROM delayed_queue
            WHERE "pKind" > kinds.kind
            ORDER BY "pKind", "scheduledAt", id
            LIMIT 1
        ),
        position + 1
    FROM kinds
    WHERE kind IS NOT NULL
        AND position < %(limit)s::integer
)
SELECT kind
FROM kinds
WHERE kind IS NOT NULL
"""

# KINDS for the dead letters. Reads: dead_letter_kind_died.
DEAD_LETTER_KINDS: Final[LiteralString] = """
WITH RECURSIVE kinds (kind, position) AS (
    (
        SELECT "pKind", 1
        FROM delayed_queue_dead_letter
        ORDER BY "pKind", "diedAt", id
        LIMIT 1
    )
    UNION ALL
    SELECT
        (
            SELECT "pKind"
            FROM delayed_queue_dead_letter
            WHERE "pKind" > kinds.kind
            ORDER BY "pKind", "diedAt", id
            LIMIT 1
        ),
        position + 1
    FROM kinds
    WHERE kind IS NOT NULL
        AND position < %(limit)s::integer
)
SELECT kind
FROM kinds
WHERE kind IS NOT NULL
"""

# STATS for many kinds at once. The leases are read once for all of them, in an order that does
# not follow the kind: %(lease_cap)s bounds their sum, so when "held" has reached it, every
# count of leases may be too small. "read" is how many messages that are not yet due were looked
# at, leased ones too: when it has reached the cap, there may be more scheduled ones behind.
# Reads: delayed_queue__KindPlusScheduledAtIndex, delayed_queue__LockUuidPlusIdIndex,
# dead_letter_kind_died.
OVERVIEW: Final[LiteralString] = (
    _CLOCK
    + """,
held AS MATERIALIZED (
    SELECT kind, leased_until
    FROM (
        SELECT "pKind" AS kind, "scheduledAt" AS leased_until
        FROM delayed_queue
        WHERE "lockUuid" IS NOT NULL
        ORDER BY "lockUuid", id
        LIMIT (SELECT %(lease_cap)s::integer)
    ) AS first
    LIMIT %(lease_cap)s::integer
)
SELECT
    queue.kind,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM (
                SELECT 1
                FROM delayed_queue
                WHERE "pKind" = queue.kind
                    AND "scheduledAt" <= (SELECT now FROM clock)
                ORDER BY "scheduledAt", id
                LIMIT (SELECT %(cap)s::integer)
            ) AS first
            LIMIT %(cap)s::integer
        ) AS capped
    ) AS due,
    later.scheduled,
    later.read,
    (
        SELECT count(*)
        FROM held
        WHERE kind = queue.kind
            AND leased_until > (SELECT now FROM clock)
    ) AS leased,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM (
                SELECT 1
                FROM delayed_queue_dead_letter
                WHERE "pKind" = queue.kind
                ORDER BY "diedAt", id
                LIMIT (SELECT %(cap)s::integer)
            ) AS first
            LIMIT %(cap)s::integer
        ) AS capped
    ) AS dead,
    (
        SELECT (SELECT now FROM clock) - "scheduledAt"
        FROM delayed_queue
        WHERE "pKind" = queue.kind
            AND "scheduledAt" <= (SELECT now FROM clock)
        ORDER BY "scheduledAt", id
        LIMIT 1
    ) AS oldest_due_age,
    (SELECT count(*) FROM held) AS held
FROM unnest(%(kinds)s::text[]) AS queue (kind)
CROSS JOIN LATERAL (
    SELECT
        count(*) AS read,
        count(*) FILTER (WHERE "lockUuid" IS NULL) AS scheduled
    FROM (
        SELECT "lockUuid"
        FROM (
            SELECT "lockUuid"
            FROM delayed_queue
            WHERE "pKind" = queue.kind
                AND "scheduledAt" > (SELECT now FROM clock)
            ORDER BY "scheduledAt", id
            LIMIT (SELECT %(cap)s::integer)
        ) AS first
        LIMIT %(cap)s::integer
    ) AS ahead
) AS later
"""
)

# Give up waiting for another transaction's lock after so many milliseconds, until the end of
# this transaction: an operator's page must not hang behind a handler that holds a message.
LIMIT_WAITS: Final[LiteralString] = """
SELECT set_config('lock_timeout', %(milliseconds)s::integer::text, true)
"""

# The schedules of the cron service.

# What a schedule's installer must know of it, each column once, for the three that return it.
_STATE: Final[LiteralString] = """
    "pKind", "keyPrefix", queue, codec, "type", expression, timezone, gap, fold, missed,
    "missedCap", payload::text, "declaredIn", "isEnabled", "configHash", "retiredHashes"::text,
    "lastTick", "installedAt", "scheduleInterval"
"""

# Lock a prefix's row, made if there is none: installers of one prefix take turns, and what the
# row says is the work of the one before. The update changes nothing but takes the lock, also
# on a row that another transaction has just inserted, where SELECT FOR UPDATE would see none.
# Reads: schedule_kind_prefix.
LOCK_SCHEDULE: Final[LiteralString] = (
    """
INSERT INTO delayed_queue_schedule ("pKind", "keyPrefix", queue, codec)
VALUES (%(kind)s, %(key_prefix)s, %(queue)s, %(codec)s)
ON CONFLICT ("pKind", "keyPrefix") DO UPDATE
SET "keyPrefix" = EXCLUDED."keyPrefix"
RETURNING"""
    + _STATE
)

# The clock, and the schedule's row if there is one, without a lock.
# Reads: schedule_kind_prefix.
READ_SCHEDULE: Final[LiteralString] = (
    _CLOCK
    + """
SELECT now,"""
    + _STATE
    + """
FROM clock
LEFT JOIN delayed_queue_schedule
    ON "pKind" = %(kind)s
    AND "keyPrefix" = %(key_prefix)s
"""
)

# All schedules that are described in full, by an operator or by code; not those that exist only
# because a program calls install_tick(). Not <> '', which the planner takes for nearly all of a
# table that was never analyzed. Reads: schedule_described.
DESCRIBED_SCHEDULES: Final[LiteralString] = (
    _CLOCK
    + """
SELECT (SELECT now FROM clock),"""
    + _STATE
    + """
FROM delayed_queue_schedule
WHERE "type" IN ('cron', 'daily', 'periodic', 'other')
ORDER BY id
"""
)

# Lock and return the ticks of a prefix that nobody handles in a transaction (CONSUME); those
# hold their row and are passed. Two-segment keys below the prefix are ticks, all others are the
# caller's own: '0' is the character after '/', so in the "C" collation the range is exactly the
# keys that start with prefix and slash. A cheap comparison, where LIKE would read the prefix as
# a pattern. The first column is the clock, in one row at least. It is read when all rows are
# locked (counting them comes first), so that no tick due after it can have been claimed.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
PENDING_TICKS: Final[LiteralString] = """
WITH pending AS MATERIALIZED (
    SELECT id, "pKey" AS key, "lockUuid", "scheduledAt"
    FROM delayed_queue
    WHERE "pKind" = %(kind)s
        AND "pKey" >= %(key_prefix)s::text || '/'
        AND "pKey" < %(key_prefix)s::text || '0'
        AND substr("pKey", length(%(key_prefix)s::text) + 2) ~ '^[^/]+/-?[0-9]{1,19}$'
    ORDER BY "pKey"
    FOR UPDATE SKIP LOCKED
),
clock AS MATERIALIZED (
    SELECT
        COALESCE(
            %(now)s::bigint,
            floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
        ) AS now,
        locked
    FROM (SELECT count(*) AS locked FROM pending) AS counted
)
SELECT
    clock.now,
    pending.id,
    pending.key,
    pending."lockUuid" IS NOT NULL AND pending."scheduledAt" > clock.now
FROM clock
LEFT JOIN pending ON true
"""

# Delete ticks that PENDING_TICKS has locked. Reads: the primary key.
DROP_TICKS: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
"""

# Write what LOCK_SCHEDULE's caller has done. Reads: schedule_kind_prefix.
SAVE_SCHEDULE: Final[LiteralString] = """
UPDATE delayed_queue_schedule
SET "configHash" = %(config_hash)s,
    "retiredHashes" = %(retired_hashes)s::jsonb,
    "lastTick" = %(last_tick)s,
    "installedAt" = %(installed_at)s,
    "scheduleInterval" = %(interval)s
WHERE "pKind" = %(kind)s
    AND "keyPrefix" = %(key_prefix)s
"""

# Describe a schedule that code declares. Only its definition: whether it is enabled belongs to
# the operators. Reads: schedule_kind_prefix.
DESCRIBE_SCHEDULE: Final[LiteralString] = """
UPDATE delayed_queue_schedule
SET queue = %(queue)s,
    codec = %(codec)s,
    "type" = %(type)s,
    expression = %(expression)s,
    timezone = %(timezone)s,
    gap = %(gap)s,
    fold = %(fold)s,
    missed = %(missed)s,
    "missedCap" = %(missed_cap)s,
    "declaredIn" = %(declared_in)s
WHERE "pKind" = %(kind)s
    AND "keyPrefix" = %(key_prefix)s
"""
