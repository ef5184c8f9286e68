"""Offering through Spark, exactly once per chunk."""

from __future__ import annotations

from typing import Final, LiteralString, NamedTuple

from delayed_queue.db.sql import CLOCK
from delayed_queue.queue.store.fragments import IF_CHANGED, REPLACE

# Insert a row of a job into the ledger, once per place. Partitions count from 0; -1 closes a batch,
# -2 opens a job.
_NOTE: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_offer_ledger AS ledger (
    job, batch, "partition", chunk, digest, "rows", created, updated, "recordedAt"
)
SELECT
    %(job)s::varchar, %(batch)s::bigint, %(partition)s::integer, %(chunk)s::integer,
    %(digest)s::varchar, %(rows)s::bigint, %(created)s::bigint, 0, now
FROM clock
"""
)
_AT_ITS_PLACE: Final[LiteralString] = """\
ON CONFLICT (job, batch, "partition", chunk, digest) DO """
_UNLESS_THERE: Final[LiteralString] = (
    _AT_ITS_PLACE
    + """NOTHING
RETURNING id
"""
)

# Claim one chunk of a job, in the transaction that offers it. A returned id means that no attempt
# has offered these rows at this place. It waits for a twin that is offering them, whose failure
# undoes its claim. A closed batch gives no claims, so a task that Spark abandoned offers nothing.
# The digest is part of the claim: other rows of a non-deterministic attempt are a new chunk. A COPY
# creates all rows or none, so they are counted with the claim.
# Reads: offer_ledger_chunk.
CLAIM_CHUNK: Final[LiteralString] = (
    _NOTE
    + """WHERE NOT EXISTS (
    SELECT 1
    FROM delayed_queue_offer_ledger
    WHERE job = %(job)s::varchar
        AND batch = %(batch)s::bigint
        AND "partition" = -1
)
"""
    + _UNLESS_THERE
)

# Record the start of a job, and return its first start, from which a repetition continues. The
# ledger row has no offered rows, so it counts as none.
# Reads: offer_ledger_chunk.
OPEN_JOB: Final[LiteralString] = (
    _NOTE
    + _AT_ITS_PLACE
    + """UPDATE
SET "rows" = ledger."rows"
RETURNING "recordedAt"
"""
)

# Write the outcome of a claimed chunk, in the same transaction. Reads: the primary key.
SETTLE_CHUNK: Final[LiteralString] = """
UPDATE delayed_queue_offer_ledger
SET created = %(created)s::bigint,
    updated = %(updated)s::bigint
WHERE id = %(id)s::bigint
"""

# Record that a batch of a job is done, and its number of rows; the first record stays.
# Reads: offer_ledger_chunk.
CLOSE_JOB: Final[LiteralString] = _NOTE + _UNLESS_THERE

# Count the outcomes of a batch's messages, in the transaction that settles them: the digest is the
# outcome, the chunk the try of the task. Each try has rows of its own, so that none waits.
# Reads: offer_ledger_chunk.
COUNT_ENDED: Final[LiteralString] = (
    _NOTE
    + _AT_ITS_PLACE
    + """UPDATE
SET "rows" = ledger."rows" + EXCLUDED."rows"
RETURNING id
"""
)

# The outcomes of a finished batch's messages, over all tries of its tasks. Rows of earlier batches
# are deleted.
# Reads: offer_ledger_chunk.
ENDED_OF: Final[LiteralString] = """
WITH forgotten AS (
    DELETE FROM delayed_queue_offer_ledger
    WHERE job = %(job)s::varchar
        AND batch < %(batch)s::bigint
)
SELECT digest, sum("rows")::bigint
FROM delayed_queue_offer_ledger
WHERE job = %(job)s::varchar
    AND batch = %(batch)s::bigint
GROUP BY digest
"""

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

# Sum up a job over all its batches: created, updated and ignored rows, and whether every batch is
# closed. An open batch counts the chunks offered so far; of several versions of a chunk the largest
# counts. Rows offered in excess of the given ones are left out. An unknown job has zeros and NULL.
# Reads: offer_ledger_chunk.
COUNT_JOB: Final[LiteralString] = """
SELECT
    COALESCE(sum(LEAST(created, given)), 0)::bigint,
    COALESCE(sum(LEAST(updated, given - LEAST(created, given))), 0)::bigint,
    COALESCE(sum(GREATEST(given - created - updated, 0)), 0)::bigint,
    bool_and(is_closed)
FROM (
    SELECT
        sum(created) AS created,
        sum(updated) AS updated,
        COALESCE(max("rows") FILTER (WHERE "partition" = -1), sum("rows")) AS given,
        bool_or("partition" = -1) AS is_closed
    FROM (
        SELECT
            batch, "partition", sum(created) AS created, sum(updated) AS updated,
            max("rows") AS "rows"
        FROM delayed_queue_offer_ledger
        WHERE job = %(job)s::varchar
        GROUP BY batch, "partition", chunk
    ) AS chunks
    GROUP BY batch
) AS batches
"""

# The number of rows that a job has created or updated, repetitions included.
# Reads: offer_ledger_chunk.
OFFERED_OF: Final[LiteralString] = """
SELECT COALESCE(sum(created + updated), 0)::bigint
FROM delayed_queue_offer_ledger
WHERE job = %(job)s::varchar
"""


# Wake the workers of these kinds when the transaction commits, in one round trip: a job may offer
# to thousands of kinds. Reads: nothing.
NOTIFY_KINDS: Final[LiteralString] = """
SELECT pg_notify(channel, '')
FROM unnest(%(channels)s::text[]) AS channel
"""


def _forgetting(table: LiteralString) -> LiteralString:
    # One bounded batch at a time; two limits as in select_due.
    return (
        CLOCK
        + f"""
DELETE FROM {table}
WHERE id = ANY (ARRAY(
    SELECT id
    FROM (
        SELECT id
        FROM {table}
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


# Delete rows older than the age.
# Reads: offer_ledger_recorded, then the primary key.
PRUNE_LEDGER: Final[LiteralString] = _forgetting("delayed_queue_offer_ledger")


# The rows of a chunk with existing keys, from the session's temporary table in key order: two jobs
# with the same keys cannot deadlock, and ids, rows and index entries are in one order. A row
# without a kind has the job's. Repeated keys have turns, because one statement cannot touch a row
# twice, and the second offer must see the first one (Q12).
def _merge(
    then: LiteralString, column: LiteralString = "", value: LiteralString = ""
) -> LiteralString:
    return f"""
WITH offered AS (
    INSERT INTO delayed_queue AS stored (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt", "group", "expiresAt"{column}
    )
    SELECT
        key, COALESCE(kind, %(kind)s::text), payload, due_at, due_at, %(now)s::bigint, headers,
        %(now)s::bigint, grouped, expires_at{value}
    FROM pg_temp.delayed_queue_offered
    WHERE turn = %(turn)s::integer
    ORDER BY key COLLATE "C", kind COLLATE "C"
{then}"""


_COUNT_OFFERED: Final[LiteralString] = """
    RETURNING xmax = 0 AS created
)
SELECT count(*) FILTER (WHERE created), count(*) FILTER (WHERE NOT created)
FROM offered
"""
_IF_NOT_EXISTS: Final[LiteralString] = f"""
    ON CONFLICT ("pKey", "pKind") DO NOTHING{_COUNT_OFFERED}"""
_OR_UPDATE: Final[LiteralString] = REPLACE + IF_CHANGED + _COUNT_OFFERED

# OFFER_BATCH_IF_NOT_EXISTS over staged rows. Reads: delayed_queue__PKeyPlusKindUniqueIndex.
MERGE_IF_NOT_EXISTS: Final[LiteralString] = _merge(_IF_NOT_EXISTS)

# OFFER_BATCH_OR_UPDATE over staged rows. Reads: delayed_queue__PKeyPlusKindUniqueIndex.
MERGE_OR_UPDATE: Final[LiteralString] = _merge(_OR_UPDATE)

_BATCH: Final = (', "batchId"', ", %(batch)s::bigint")
_OR_JOIN: Final[LiteralString] = f"""{REPLACE},
    "batchId" = COALESCE(stored."batchId", EXCLUDED."batchId"){IF_CHANGED}
    RETURNING id, xmax = 0 AS created, "batchId" AS batch
)
SELECT
    count(*) FILTER (WHERE created), count(*) FILTER (WHERE NOT created),
    array_agg(id) FILTER (WHERE batch <> %(batch)s::bigint)
FROM offered
"""

# As MERGE_IF_NOT_EXISTS, into a batch. Reads: as MERGE_IF_NOT_EXISTS.
MERGE_MEMBERS_IF_NOT_EXISTS: Final[LiteralString] = _merge(_IF_NOT_EXISTS, *_BATCH)

# As MERGE_OR_UPDATE, into a batch. Updated messages of other batches stay there, and their ids are
# returned; the caller moves them. Reads: as MERGE_OR_UPDATE.
MERGE_MEMBERS_OR_UPDATE: Final[LiteralString] = _merge(_OR_JOIN, *_BATCH)

# Move messages that this transaction has updated into the batch. Reads: the primary key.
MOVE_UPDATED: Final[LiteralString] = """
UPDATE delayed_queue
SET "batchId" = %(batch)s::bigint
WHERE id = ANY (%(ids)b::bigint[])
"""

# The staged rows of the successful attempts, and the repetitions of the most frequent key.
# Reads: offer_stage_attempt.
COUNT_STAGED: Final[LiteralString] = """
SELECT COALESCE(sum(number), 0)::bigint, COALESCE(max(number), 0)::bigint
FROM (
    SELECT count(*) AS number
    FROM delayed_queue_offer_stage
    WHERE job = %(job)s::varchar
        AND attempt = ANY (%(attempts)s::varchar[])
    GROUP BY key, kind
) AS keys
"""


# The staged rows of all tasks of a job, to offer all or none; ids as in OFFER_BATCH_OR_UPDATE. Rows
# of failed attempts and of twins are left out.
# Reads: offer_stage_attempt.
def _merge_stage(
    then: LiteralString, column: LiteralString = "", value: LiteralString = ""
) -> LiteralString:
    return f"""
WITH offered AS (
    INSERT INTO delayed_queue AS stored (
        id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt", "group", "expiresAt"{column}
    )
    SELECT
        id, key, COALESCE(kind, %(kind)s::text), payload, due_at, due_at, %(now)s::bigint, headers,
        %(now)s::bigint, grouped, expires_at{value}
    FROM (
        SELECT
            nextval('delayed_queue_id_seq') AS id, key, kind, payload, due_at, headers, grouped,
            expires_at
        FROM (
            SELECT key, kind, payload, due_at, headers, grouped, expires_at
            FROM (
                SELECT
                    "partition", "position", key, kind, payload, "dueAt" AS due_at, headers,
                    grouped, "expiresAt" AS expires_at,
                    row_number() OVER (
                        PARTITION BY key, kind
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
    ORDER BY key COLLATE "C", kind COLLATE "C"
{then}"""


# MERGE_IF_NOT_EXISTS for a whole job. Reads: delayed_queue__PKeyPlusKindUniqueIndex.
MERGE_STAGE_IF_NOT_EXISTS: Final[LiteralString] = _merge_stage(_IF_NOT_EXISTS)

# MERGE_OR_UPDATE for a whole job. Reads: delayed_queue__PKeyPlusKindUniqueIndex.
MERGE_STAGE_OR_UPDATE: Final[LiteralString] = _merge_stage(_OR_UPDATE)

# MERGE_MEMBERS_IF_NOT_EXISTS for a whole job. Reads: as MERGE_STAGE_IF_NOT_EXISTS.
MERGE_STAGED_MEMBERS_IF_NOT_EXISTS: Final[LiteralString] = _merge_stage(_IF_NOT_EXISTS, *_BATCH)

# MERGE_MEMBERS_OR_UPDATE for a whole job. Reads: as MERGE_STAGE_OR_UPDATE.
MERGE_STAGED_MEMBERS_OR_UPDATE: Final[LiteralString] = _merge_stage(_OR_JOIN, *_BATCH)

# Reads: offer_stage_attempt.
CLEAR_STAGE: Final[LiteralString] = """
DELETE FROM delayed_queue_offer_stage
WHERE job = %(job)s::varchar
"""

# Delete staged rows of jobs whose driver died before it could merge or clear them.
# Reads: offer_stage_recorded, then the primary key.
PRUNE_STAGE: Final[LiteralString] = _forgetting("delayed_queue_offer_stage")


class MergedRow(NamedTuple):
    """The counts of rows that were merged, and the ids of those in other batches, if any."""

    created: int
    updated: int
    elsewhere: list[int] | None = None
