"""Offering through Spark, exactly once per chunk, and leasing for its streams."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import CLOCK, IF_CHANGED, REPLACE

# Claim one chunk of a job, in the transaction that offers it: a returned id says that no attempt
# has offered these rows at this place before. A twin that is offering them at this moment is
# waited for, and takes the claim with it if it fails. Nothing is claimed of a batch that is
# closed: a task that Spark gave up on, and that lives on, finds the door shut.
# The claim is by content: an attempt that was not deterministic brings other rows, which have
# never been offered, and they are not taken for the old ones.
# Reads: offer_ledger_chunk.
CLAIM_CHUNK: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_offer_ledger (
    job, batch, "partition", chunk, digest, "rows", created, updated, "recordedAt"
)
SELECT
    %(job)s::varchar, %(batch)s::bigint, %(partition)s::integer, %(chunk)s::integer,
    %(digest)s::varchar, %(rows)s::bigint, 0, 0, now
FROM clock
WHERE NOT EXISTS (
    SELECT 1
    FROM delayed_queue_offer_ledger
    WHERE job = %(job)s::varchar
        AND batch = %(batch)s::bigint
        AND "partition" = -1
)
ON CONFLICT (job, batch, "partition", chunk, digest) DO NOTHING
RETURNING id
"""
)

# Note that a job begins, and return when it first did: repeated after a crash it goes on from
# there. The note has no rows, and so counts for nothing; the first one stands.
# Reads: offer_ledger_chunk.
OPEN_JOB: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_offer_ledger AS ledger (
    job, batch, "partition", chunk, digest, "rows", created, updated, "recordedAt"
)
SELECT
    %(job)s::varchar, 0, -2, 0, '', 0, 0, 0, now
FROM clock
ON CONFLICT (job, batch, "partition", chunk, digest) DO UPDATE
SET "rows" = ledger."rows"
RETURNING "recordedAt"
"""
)

# What became of a claimed chunk, in the same transaction. Reads: the primary key.
SETTLE_CHUNK: Final[LiteralString] = """
UPDATE delayed_queue_offer_ledger
SET created = %(created)s::bigint,
    updated = %(updated)s::bigint
WHERE id = %(id)s::bigint
"""

# Say that a batch of a job is done, and how many rows it was given; the first closing stands.
# Reads: offer_ledger_chunk.
CLOSE_JOB: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_offer_ledger (
    job, batch, "partition", chunk, digest, "rows", created, updated, "recordedAt"
)
SELECT
    %(job)s::varchar, %(batch)s::bigint, -1, 0, '', %(rows)s::bigint, 0, 0, now
FROM clock
ON CONFLICT (job, batch, "partition", chunk, digest) DO NOTHING
RETURNING id
"""
)

# Reads: offer_ledger_chunk.
IS_CLOSED: Final[LiteralString] = """
SELECT EXISTS (
    SELECT 1
    FROM delayed_queue_offer_ledger
    WHERE job = %(job)s::varchar
        AND batch = %(batch)s::bigint
        AND "partition" = -1
)
"""

# Add a job up, over all its batches: what it created and updated, what is left of the rows it
# was given, and whether every batch is closed. Of an open batch only the chunks that were offered
# are known. One row, with zeros and NULL for a job that nobody knows.
# Reads: offer_ledger_chunk.
COUNT_JOB: Final[LiteralString] = """
SELECT
    COALESCE(sum(created), 0)::bigint,
    COALESCE(sum(updated), 0)::bigint,
    COALESCE(sum(GREATEST(offered - created - updated, 0)), 0)::bigint,
    bool_and(is_closed)
FROM (
    SELECT
        sum(created) AS created,
        sum(updated) AS updated,
        COALESCE(max("rows") FILTER (WHERE "partition" = -1), sum("rows")) AS offered,
        bool_or("partition" = -1) AS is_closed
    FROM delayed_queue_offer_ledger
    WHERE job = %(job)s::varchar
    GROUP BY batch
) AS batches
"""

# Forget what is older than the age, one bounded bite at a time; two limits as in _EARLIEST_DUE.
# Reads: offer_ledger_recorded, then the primary key.
PRUNE_LEDGER: Final[LiteralString] = (
    CLOCK
    + """
DELETE FROM delayed_queue_offer_ledger
WHERE id = ANY (ARRAY(
    SELECT id
    FROM (
        SELECT id
        FROM delayed_queue_offer_ledger
        WHERE "recordedAt" < (SELECT now FROM clock) - %(age)s::bigint
        ORDER BY "recordedAt", id
        LIMIT (SELECT %(limit)s::integer)
        FOR UPDATE SKIP LOCKED
    ) AS oldest
    LIMIT %(limit)s::integer
))
RETURNING id
"""
)

# Draw as many ids as a chunk has rows, to be given out in input order, so that equal schedules
# are delivered as they were offered (Q15) although the rows are written in key order.
# Reads: nothing.
DRAW_IDS: Final[LiteralString] = """
SELECT nextval('delayed_queue_id_seq') AS id
FROM generate_series(1, %(count)s::integer)
"""

# The rows of a chunk whose keys exist in part, from the session's own table; ids as in
# OFFER_BATCH_OR_UPDATE. A key that comes twice has turns: a statement cannot touch a row twice,
# and the second meets what the first one wrote (Q12).
_MERGE_SOURCE: Final[LiteralString] = """
WITH offered AS (
    INSERT INTO delayed_queue AS stored (
        id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
    )
    SELECT id, key, %(kind)s, payload, due_at, due_at, %(now)s::bigint, headers
    FROM (
        SELECT
            nextval('delayed_queue_id_seq') AS id, key, payload, due_at, headers
        FROM (
            SELECT key, payload, due_at, headers
            FROM pg_temp.delayed_queue_offered
            WHERE turn = %(turn)s::integer
            ORDER BY "position"
        ) AS in_order
    ) AS numbered
    ORDER BY key COLLATE "C"
"""
_COUNT_OFFERED: Final[LiteralString] = """
    RETURNING xmax = 0 AS created
)
SELECT count(*) FILTER (WHERE created), count(*) FILTER (WHERE NOT created)
FROM offered
"""

# OFFER_BATCH_IF_NOT_EXISTS over staged rows. Reads: delayed_queue__PKeyPlusKindUniqueIndex.
MERGE_IF_NOT_EXISTS: Final[LiteralString] = (
    _MERGE_SOURCE
    + """
    ON CONFLICT ("pKey", "pKind") DO NOTHING"""
    + _COUNT_OFFERED
)

# OFFER_BATCH_OR_UPDATE over staged rows. Reads: delayed_queue__PKeyPlusKindUniqueIndex.
MERGE_OR_UPDATE: Final[LiteralString] = _MERGE_SOURCE + REPLACE + IF_CHANGED + _COUNT_OFFERED

# What a job asks before it starts: the database's clock, which is the job's own from here on; how
# many connections are left to its role and how many there are; whether the tables are there.
# Reads: no table of ours.
LOOK_AROUND: Final[LiteralString] = """
SELECT
    floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint,
    current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer,
    (
        SELECT count(*)
        FROM pg_stat_get_activity(NULL)
        WHERE datid <> 0
    ),
    to_regclass('delayed_queue') IS NOT NULL,
    to_regclass('delayed_queue_offer_ledger') IS NOT NULL
"""

# The first and the last id, from which ranges are cut, and the instant that states are judged by.
# Reads: the primary key, its two ends.
ID_RANGE: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    (SELECT id FROM delayed_queue ORDER BY id LIMIT 1),
    (SELECT id FROM delayed_queue ORDER BY id DESC LIMIT 1),
    now
FROM clock
"""
)

_COLUMNS: Final[LiteralString] = """
SELECT
    id,
    "pKey"::text AS key,
    "pKind"::text AS kind,
    payload,
    "scheduledAt" AS scheduled_at,
    "scheduledAtInitially" AS scheduled_at_initially,
    "createdAt" AS created_at,
    CASE
        WHEN "scheduledAt" <= %(now)s::bigint THEN 'due'
        WHEN "lockUuid" IS NULL THEN 'scheduled'
        ELSE 'leased'
    END AS state,
    attempts,
    "lockUuid"::text AS lock_uuid,
    headers::text AS headers,
    "dueAt" AS due_at
FROM delayed_queue"""

# The messages of a range of ids, whatever their state. Wrapped in a SELECT of the columns and
# filters that are wanted, into which PostgreSQL folds it: what is not wanted is not read.
# Reads: the primary key.
READ_RANGE: Final[LiteralString] = (
    _COLUMNS
    + """
WHERE id >= %(first)s::bigint
    AND id < %(last)s::bigint
"""
)

# The messages under a lease, within a range of ids; wrapped as READ_RANGE is. A pure read, so
# that a task and its repetition agree. Reads: delayed_queue__LockUuidPlusIdIndex.
READ_LEASED: Final[LiteralString] = (
    _COLUMNS
    + """
WHERE "lockUuid" = %(lease_id)s
    AND id >= %(first)s::bigint
    AND id < %(last)s::bigint
"""
)

# Lease the earliest due messages for one batch of a stream, as CLAIM does, but return only how
# many they are: a task reads them where it runs, not through the driver. "cutoff" is when a query
# that takes what is there began, so that it ends although more arrives, and NULL for one that
# goes on. Two limits as in _EARLIEST_DUE.
# Reads: delayed_queue__KindPlusScheduledAtIndex in order, then the primary key; paused_kind.
LEASE_DUE: Final[LiteralString] = (
    CLOCK
    + """,
leased AS (
    UPDATE delayed_queue
    SET "lockUuid" = %(lease_id)s::varchar,
        "dueAt" = "scheduledAt",
        "scheduledAt" = (SELECT now FROM clock) + %(lease)s::bigint,
        attempts = attempts + 1
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND "scheduledAt" <= (SELECT LEAST(now, %(cutoff)s::bigint) FROM clock)
                AND NOT EXISTS (SELECT 1 FROM delayed_queue_paused WHERE "pKind" = %(kind)s)
            ORDER BY "scheduledAt", id
            LIMIT (SELECT %(limit)s::integer)
            FOR UPDATE SKIP LOCKED
        ) AS due
        LIMIT %(limit)s::integer
    ))
    RETURNING id
)
SELECT count(*)
FROM leased
"""
)

# The first and the last id under a lease, from which the tasks of a batch are cut, and the instant
# that states are judged by. Reads: delayed_queue__LockUuidPlusIdIndex, its two ends.
LEASED_RANGE: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    (
        SELECT id
        FROM delayed_queue
        WHERE "lockUuid" = %(lease_id)s
        ORDER BY "lockUuid", id
        LIMIT 1
    ),
    (
        SELECT id
        FROM delayed_queue
        WHERE "lockUuid" = %(lease_id)s
        ORDER BY "lockUuid" DESC, id DESC
        LIMIT 1
    ),
    now
FROM clock
"""
)

# Count a delivery of a message by a task that is repeated, because the one before has died and it
# may be the message that kills; of one that is no longer under the lease, nothing.
# Reads: the primary key, or delayed_queue__LockUuidPlusIdIndex.
COUNT_DELIVERY: Final[LiteralString] = """
UPDATE delayed_queue
SET attempts = attempts + 1
WHERE id = %(id)s::bigint
    AND "lockUuid" = %(lease_id)s
RETURNING attempts
"""

# Prolong a lease that a batch is still working under, never shorten it; also one that ran out,
# as long as nobody has taken its messages. Reads: delayed_queue__LockUuidPlusIdIndex.
RENEW_LEASE: Final[LiteralString] = (
    CLOCK
    + """,
renewed AS (
    UPDATE delayed_queue
    SET "scheduledAt" = GREATEST(
        "scheduledAt", (SELECT now FROM clock) + %(lease)s::bigint
    )
    WHERE "lockUuid" = %(lease_id)s
    RETURNING id
)
SELECT count(*)
FROM renewed
"""
)

# Take over a lease from a process that is gone. The batch that it was at work on keeps its id, and
# is delivered once more; what it had leased ahead, which nobody has seen, gets a new one. Both ids
# are looked for then: a repetition finds what the first try has moved.
# Reads: delayed_queue__LockUuidPlusIdIndex.
TAKE_OVER_LEASE: Final[LiteralString] = (
    CLOCK
    + """,
taken AS (
    UPDATE delayed_queue
    SET "lockUuid" = %(lease_id)s::varchar,
        "scheduledAt" = GREATEST(
            "scheduledAt", (SELECT now FROM clock) + %(lease)s::bigint
        ),
        attempts = attempts + %(deliveries)s::integer
    WHERE "lockUuid" = ANY (%(lease_ids)s::text[])
    RETURNING id
)
SELECT count(*)
FROM taken
"""
)

# How many rows the attempts that count have staged, and how often the most repeated key comes.
# Reads: offer_stage_attempt.
COUNT_STAGED: Final[LiteralString] = """
SELECT COALESCE(sum(number), 0)::bigint, COALESCE(max(number), 0)::bigint
FROM (
    SELECT count(*) AS number
    FROM delayed_queue_offer_stage
    WHERE job = %(job)s::varchar
        AND attempt = ANY (%(attempts)s::varchar[])
    GROUP BY key
) AS keys
"""

# _MERGE_SOURCE over what all tasks of a job have staged, so that it is offered as a whole or not
# at all. Rows of attempts that failed, or were a twin's, are staged too and left out.
# Reads: offer_stage_attempt.
_STAGE_SOURCE: Final[LiteralString] = """
WITH offered AS (
    INSERT INTO delayed_queue AS stored (
        id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers
    )
    SELECT id, key, %(kind)s, payload, due_at, due_at, %(now)s::bigint, headers
    FROM (
        SELECT
            nextval('delayed_queue_id_seq') AS id, key, payload, due_at, headers
        FROM (
            SELECT key, payload, due_at, headers
            FROM (
                SELECT
                    "partition", "position", key, payload, "dueAt" AS due_at, headers,
                    row_number() OVER (
                        PARTITION BY key
                        ORDER BY "partition", "position"
                    ) - 1 AS turn
                FROM delayed_queue_offer_stage
                WHERE job = %(job)s::varchar
                    AND attempt = ANY (%(attempts)s::varchar[])
            ) AS staged
            WHERE turn = %(turn)s::integer
            ORDER BY "partition", "position"
        ) AS in_order
    ) AS numbered
    ORDER BY key COLLATE "C"
"""

# MERGE_IF_NOT_EXISTS for a whole job. Reads: delayed_queue__PKeyPlusKindUniqueIndex.
MERGE_STAGE_IF_NOT_EXISTS: Final[LiteralString] = (
    _STAGE_SOURCE
    + """
    ON CONFLICT ("pKey", "pKind") DO NOTHING"""
    + _COUNT_OFFERED
)

# MERGE_OR_UPDATE for a whole job. Reads: delayed_queue__PKeyPlusKindUniqueIndex.
MERGE_STAGE_OR_UPDATE: Final[LiteralString] = _STAGE_SOURCE + REPLACE + IF_CHANGED + _COUNT_OFFERED

# Reads: offer_stage_attempt.
CLEAR_STAGE: Final[LiteralString] = """
DELETE FROM delayed_queue_offer_stage
WHERE job = %(job)s::varchar
"""

# Forget what jobs have staged whose driver died before it could merge or clear it.
# Reads: offer_stage_recorded, then the primary key; two limits as in _EARLIEST_DUE.
PRUNE_STAGE: Final[LiteralString] = (
    CLOCK
    + """
DELETE FROM delayed_queue_offer_stage
WHERE id = ANY (ARRAY(
    SELECT id
    FROM (
        SELECT id
        FROM delayed_queue_offer_stage
        WHERE "recordedAt" < (SELECT now FROM clock) - %(age)s::bigint
        ORDER BY "recordedAt", id
        LIMIT (SELECT %(limit)s::integer)
        FOR UPDATE SKIP LOCKED
    ) AS oldest
    LIMIT %(limit)s::integer
))
RETURNING id
"""
)
