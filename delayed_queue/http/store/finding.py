"""Statements that find and delete jobs.

Statements about one job read the number of shards and hosts themselves: it may have grown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString, NamedTuple

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.db.sql import CLOCK, beside, first_row, rows_of
from delayed_queue.db.statements import fetch, run
from delayed_queue.http.store.kinds import PLACES
from delayed_queue.http.store.topics import locking_jobs
from delayed_queue.queue.store.fragments import (
    ATTEMPTS,
    EXPIRES_AT,
    HEADERS,
    LAST_ERROR,
    TELL_HOLDER,
)

# The active job, or else its newest dead letter. One snapshot, so that a job that dies meanwhile is
# found in one of the two tables.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, dead_letter_key.
FIND_JOB: Final[LiteralString] = f"""{CLOCK},{PLACES}
SELECT
    false, message.id, "pKind", "scheduledAt", "createdAt", "lockUuid", {ATTEMPTS},
    ({HEADERS})::text, {LAST_ERROR}, '', now, "group", {EXPIRES_AT}, "batchId"
FROM delayed_queue AS message
CROSS JOIN clock
WHERE "pKey" = %(key)s
    AND "pKind" = ANY ((SELECT kinds FROM places)::text[])
UNION ALL
(
    SELECT
        true, letter.id, "pKind", "diedAt", "createdAt", NULL, attempts, headers::text,
        "lastError", reason, now, "group", NULL, "batchId"
    FROM delayed_queue_dead_letter AS letter
    CROSS JOIN clock
    WHERE "pKey" = %(key)s
        AND COALESCE("pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
)
ORDER BY 1, 2 DESC
LIMIT 1
"""

# The first jobs of several kinds that are due, leased, or neither; the latter two among the first
# %(depth)s of each kind that are not due.
# Reads: delayed_queue__KindPlusScheduledAtIndex.
PEEK_JOBS: Final[LiteralString] = f"""{CLOCK}
SELECT
    job."pKey", false, job.id, job."pKind", job."scheduledAt", job."createdAt", job."lockUuid",
    job.attempts, job.headers::text, job."lastError", '', now, job."group", job."expiresAt",
    job."batchId"
FROM unnest(%(kinds)b::text[]) AS queue (kind)
CROSS JOIN clock
CROSS JOIN LATERAL (
    SELECT
        id, "pKey", "pKind", "scheduledAt", "createdAt", "lockUuid", attempts, headers,
        "lastError", "group", "expiresAt", "batchId"
    FROM (
        SELECT
            id, "pKey", "pKind", "scheduledAt", "createdAt", "lockUuid", {ATTEMPTS} AS attempts,
            {HEADERS} AS headers, {LAST_ERROR} AS "lastError", "group",
            {EXPIRES_AT} AS "expiresAt", "batchId"
        FROM delayed_queue
        WHERE "pKind" = queue.kind
            AND "scheduledAt" > CASE WHEN %(is_due)s::boolean
                THEN -9223372036854775807 ELSE (SELECT now FROM clock) END
            AND "scheduledAt" <= CASE WHEN %(is_due)s::boolean
                THEN (SELECT now FROM clock) ELSE 9223372036854775807 END
        ORDER BY "scheduledAt", id
        LIMIT (SELECT %(depth)s::integer)
    ) AS ahead
    WHERE %(is_due)s::boolean OR ("lockUuid" IS NOT NULL) = %(is_leased)s::boolean
    LIMIT %(limit)s::integer
) AS job
ORDER BY job."scheduledAt", job.id
LIMIT %(limit)s::integer
"""

# Delete the job in any state, unless it is in a batch; return the number of rows found, of those
# deleted, and the kinds of members. If a row was neither, a transaction that consumed the job may
# have put it back, in a row that this snapshot misses.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, the primary key.
DROP_JOB: Final[LiteralString] = f"""
WITH{PLACES},
found AS MATERIALIZED (
    SELECT id, "pKind", "batchId"
    FROM delayed_queue
    WHERE "pKey" = %(key)s
        AND "pKind" = ANY ((SELECT kinds FROM places)::text[])
),
dropped AS (
    DELETE FROM delayed_queue AS stored
    WHERE id = ANY (ARRAY(SELECT id FROM found))
        AND "batchId" IS NULL
    RETURNING {TELL_HOLDER}
)
SELECT
    (SELECT count(*) FROM found),
    (SELECT count(*) FROM dropped),
    ARRAY(SELECT "pKind" FROM found WHERE "batchId" IS NOT NULL)
"""

# Delete the dead letters of the job; return them, and (true) those for which a batch waits.
# Reads: topic_name, dead_letter_key.
DROP_DEAD_JOB: Final[LiteralString] = f"""
WITH{PLACES},
dropped AS (
    DELETE FROM delayed_queue_dead_letter
    WHERE "pKey" = %(key)s
        AND COALESCE("pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
        AND "batchId" IS NULL
    RETURNING id
)
SELECT id, false
FROM dropped
UNION ALL
SELECT id, true
FROM delayed_queue_dead_letter
WHERE "pKey" = %(key)s
    AND COALESCE("pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
    AND COALESCE("batchId" > 0, false)
"""

_DEAD: Final[LiteralString] = """
    id, "pKind", "pKey", payload, headers::text, attempts, reason, "lastError", "createdAt",
    "diedAt\""""

# The next dead letters of several kinds, in id order.
# Reads: dead_letter_kind_id, at most the limit of each kind.
DEAD_JOBS: Final[LiteralString] = f"""
SELECT{_DEAD}
FROM unnest(%(kinds)b::text[]) AS queue (kind)
CROSS JOIN LATERAL (
    SELECT{_DEAD}
    FROM (
        SELECT{_DEAD}
        FROM delayed_queue_dead_letter
        WHERE "pKind" || '' = queue.kind
            AND id > %(after)s::bigint
        ORDER BY id
        LIMIT (SELECT %(limit)s::integer)
    ) AS next
    LIMIT %(limit)s::integer
) AS letter
ORDER BY letter.id
LIMIT %(limit)s::integer
"""

# Reads: the primary key of the dead letters.
READ_DEAD_JOB: Final[LiteralString] = f"""
SELECT{_DEAD}
FROM delayed_queue_dead_letter
WHERE id = %(id)s::bigint
"""


class JobRow(NamedTuple):
    """A job; ``scheduled_at`` of a dead one is the time of its death."""

    is_dead: bool
    id: int
    kind: str
    scheduled_at: int
    created_at: int
    lease_id: str | None
    attempts: int
    headers: str | None
    last_error: str | None
    reason: str
    now: int
    group: str | None
    expires_at: int | None
    batch_id: int | None


class DroppedRow(NamedTuple):
    """A deletion: a job was deleted; a job is left, or one that vanished may have been put back.

    Left are members of batches: by their kinds, dead ones by their ids.
    """

    was_there: bool
    is_doubtful: bool
    members: list[str]
    dead_members: list[int]


class DeadJobRow(NamedTuple):
    """A dead letter of a topic."""

    id: int
    kind: str
    key: str
    payload: bytes
    headers: str | None
    attempts: int
    reason: str
    last_error: str | None
    created_at: int
    died_at: int


class FindStore:
    """The statements that find and delete jobs."""

    def find(self, topic: str, key: str, *, using: str = DEFAULT_DB_ALIAS) -> JobRow | None:
        """Return the active job of that id, or else its newest dead letter."""
        rows = fetch(using, FIND_JOB, {"topic": topic, "key": key, "now": None})
        return first_row(JobRow, rows)

    def peek(
        self,
        kinds: Sequence[str],
        limit: int,
        depth: int,
        *,
        is_due: bool,
        is_leased: bool,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[tuple[str, JobRow]]:
        """Return keys and rows of the first jobs that are due, leased or neither."""
        params = {
            "kinds": list(kinds), "limit": limit, "depth": depth, "is_due": is_due,
            "is_leased": is_leased, "now": None,
        }  # fmt: skip
        found = beside(JobRow, fetch(using, PEEK_JOBS, params))
        return [(key, job) for key, job in found if job is not None]

    def drop(self, topic: str, key: str, *, using: str = DEFAULT_DB_ALIAS) -> DroppedRow:
        """Delete the job, active and dead, under its lock; members of batches stay.

        The second statement finds a job that died while the first one waited for its row.
        """
        job = {"topic": topic, "key": key}
        steps = [locking_jobs(topic, [key]), (DROP_JOB, job), (DROP_DEAD_JOB, job)]
        _, [(found, dropped, members)], dead = run(using, steps)
        waited_for = [letter for letter, is_member in dead if is_member]
        was_there = bool(dropped) or len(dead) > len(waited_for)
        return DroppedRow(was_there, found > dropped or bool(waited_for), members, waited_for)

    def dead(
        self, kinds: Sequence[str], after: int, limit: int, *, using: str = DEFAULT_DB_ALIAS
    ) -> list[DeadJobRow]:
        """Return the next dead letters of the kinds, in id order."""
        params = {"kinds": list(kinds), "after": after, "limit": limit}
        return rows_of(DeadJobRow, fetch(using, DEAD_JOBS, params))

    def read_dead(self, letter_id: int, *, using: str = DEFAULT_DB_ALIAS) -> DeadJobRow | None:
        rows = fetch(using, READ_DEAD_JOB, {"id": letter_id})
        return first_row(DeadJobRow, rows)
