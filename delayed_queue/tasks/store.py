"""The statements of results: what they are recorded by, found, cancelled, and kept by the day."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, LiteralString, NamedTuple, TypeVar
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, models, transaction

from delayed_queue.db.sql import CLOCK
from delayed_queue.db.statements import Step, execute, fetch

# Record attempts at tasks, in the transaction that settles their messages: a row for each
# message that is still under its lease, which is locked until it is settled; so nothing is written
# for a task that another worker took over. Times are milliseconds ago: workers' clocks differ.
# Of a task with a row already, errors and workers are added. Ids must be distinct. Message by
# message: joined, the planner may read all messages there are; with OFFSET it cannot join them.
# Reads: the primary keys of messages and of results.
RECORD_ATTEMPTS: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_task_result AS stored (
    id, task, backend, "pKind", "pKey", payload, status, "enqueuedAt", "scheduledAt", "startedAt",
    "lastAttemptedAt", "finishedAt", "returnValue", errors, "workerIds", metadata
)
SELECT
    ended.id, ended.task, ended.backend, held."pKind", NULLIF(held."pKey", ended.id::text),
    held.payload, ended.status, held."createdAt", held."scheduledAtInitially",
    (SELECT now FROM clock) - ended.began,
    (SELECT now FROM clock) - ended.began,
    (SELECT now FROM clock) - ended.ended,
    ended.value, ended.errors, ended.workers, COALESCE(ended.metadata, '{}')
FROM unnest(
    %(messages)b::bigint[], %(leases)b::text[], %(results)s::uuid[], %(tasks)b::text[],
    %(backends)b::text[], %(statuses)b::text[], %(began)b::bigint[], %(ended)b::bigint[],
    %(values)s::jsonb[], %(errors)s::jsonb[], %(workers)s::jsonb[], %(metadata)s::jsonb[]
) AS ended (
    message, lease, id, task, backend, status, began, ended, value, errors, workers, metadata
)
CROSS JOIN LATERAL (
    SELECT "pKind", "pKey", payload, "createdAt", "scheduledAtInitially"
    FROM delayed_queue
    WHERE id = ended.message
        AND "lockUuid" = ended.lease
    OFFSET 0
    FOR UPDATE
) AS held
ON CONFLICT (id) DO UPDATE
SET status = EXCLUDED.status,
    payload = EXCLUDED.payload,
    "startedAt" = COALESCE(stored."startedAt", EXCLUDED."startedAt"),
    "lastAttemptedAt" = EXCLUDED."lastAttemptedAt",
    "finishedAt" = EXCLUDED."finishedAt",
    "returnValue" = EXCLUDED."returnValue",
    errors = stored.errors || EXCLUDED.errors,
    "workerIds" = stored."workerIds" || EXCLUDED."workerIds",
    metadata = stored.metadata || EXCLUDED.metadata
RETURNING 1
"""
)

# Write the progress of running tasks, but not of those whose lease is lost. Ids must be distinct.
# Reads: the primary keys of messages and of results.
RECORD_PROGRESS: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_task_result AS stored (
    id, task, backend, "pKind", "pKey", payload, "enqueuedAt", "scheduledAt", "startedAt",
    "lastAttemptedAt", metadata
)
SELECT
    running.id, running.task, running.backend, held."pKind",
    NULLIF(held."pKey", running.id::text), held.payload, held."createdAt",
    held."scheduledAtInitially", (SELECT now FROM clock) - running.began,
    (SELECT now FROM clock) - running.began, running.metadata
FROM unnest(
    %(messages)b::bigint[], %(leases)b::text[], %(results)s::uuid[], %(tasks)b::text[],
    %(backends)b::text[], %(began)b::bigint[], %(metadata)s::jsonb[]
) AS running (message, lease, id, task, backend, began, metadata)
CROSS JOIN LATERAL (
    SELECT "pKind", "pKey", payload, "createdAt", "scheduledAtInitially"
    FROM delayed_queue
    WHERE id = running.message
        AND "lockUuid" = running.lease
    OFFSET 0
) AS held
ON CONFLICT (id) DO UPDATE
SET metadata = stored.metadata || EXCLUDED.metadata,
    "startedAt" = COALESCE(stored."startedAt", EXCLUDED."startedAt"),
    "lastAttemptedAt" = EXCLUDED."lastAttemptedAt"
"""
)

# Note a task that was enqueued under another key than its id, so that its id finds it.
# Reads: the primary key of results.
NOTE_ENQUEUED: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_task_result AS stored (
    id, task, backend, "pKind", "pKey", payload, "enqueuedAt", "scheduledAt"
)
SELECT
    %(id)s::uuid, %(task)s, %(backend)s, %(kind)s, %(key)s, %(payload)s::bytea, now,
    COALESCE(%(schedule_at)s::bigint, now)
FROM clock
ON CONFLICT (id) DO UPDATE
SET "pKind" = EXCLUDED."pKind",
    payload = EXCLUDED.payload,
    "scheduledAt" = EXCLUDED."scheduledAt"
"""
)

# Find all rows of a task: its result, messages under its key, of any kind, and dead letters,
# the newest first, in one snapshot; a row for each pair.
# Reads: the primary key of results, delayed_queue__PKeyPlusKindUniqueIndex, dead_letter_key.
FIND_RESULT: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    stored.task, stored.backend, stored."pKind", stored."pKey", stored.payload, stored.status,
    stored."enqueuedAt", stored."scheduledAt", stored."startedAt", stored."lastAttemptedAt",
    stored."finishedAt", stored."cancelledAt", stored."returnValue"::text, stored.errors::text,
    stored."workerIds"::text, stored.metadata::text,
    message.id, message."pKind", message."pKey", message.payload, message."scheduledAtInitially",
    message."createdAt", message.attempts, message."lockUuid",
    message."lockUuid" IS NOT NULL AND message."scheduledAt" > (SELECT now FROM clock),
    letter.id, letter."pKind", letter."pKey", letter.payload, letter."scheduledAtInitially",
    letter."createdAt", letter.attempts, letter.reason, letter."lastError", letter."diedAt"
FROM (SELECT %(id)s::uuid AS id) AS asked
LEFT JOIN delayed_queue_task_result AS stored ON stored.id = %(id)s::uuid
LEFT JOIN LATERAL (
    SELECT
        id, "pKind", "pKey", payload, "scheduledAtInitially", "createdAt", attempts, "lockUuid",
        "scheduledAt"
    FROM delayed_queue
    WHERE "pKey" = COALESCE(stored."pKey", asked.id::text)
    LIMIT 300
) AS message ON true
LEFT JOIN LATERAL (
    SELECT
        id, "pKind", "pKey", payload, "scheduledAtInitially", "createdAt", attempts, reason,
        "lastError", "diedAt"
    FROM delayed_queue_dead_letter
    WHERE "pKey" = COALESCE(stored."pKey", asked.id::text)
    ORDER BY id DESC
    LIMIT 300
) AS letter ON true
"""
)

# Lock a key until the transaction ends, and return the messages of any kind under it: so,
# of the callers that look before they offer, one looks at a time.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
LOCK_KEY: Final[LiteralString] = """
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s::text, 7310600482201520))
"""
FIND_KEY: Final[LiteralString] = """
SELECT "pKind", payload
FROM delayed_queue
WHERE "pKey" = %(key)s
LIMIT 300
"""

# Delete a waiting task; mark a running one as to be cancelled. Returns whether
# it was deleted, or no row: it has ended, or another was put in its place.
# Reads: the primary keys of messages and of results.
CANCEL: Final[LiteralString] = (
    CLOCK
    + """,
found AS MATERIALIZED (
    SELECT
        id, "pKind", "pKey", payload, "createdAt", "scheduledAtInitially",
        "lockUuid" IS NOT NULL AND "scheduledAt" > (SELECT now FROM clock) AS is_leased
    FROM delayed_queue
    WHERE id = %(message)s::bigint
        AND "createdAt" = %(created_at)s::bigint
    FOR UPDATE
),
gone AS (
    DELETE FROM delayed_queue
    WHERE id = (SELECT id FROM found WHERE NOT is_leased)
)
INSERT INTO delayed_queue_task_result AS stored (
    id, task, backend, "pKind", "pKey", payload, status, "enqueuedAt", "scheduledAt",
    "finishedAt", "cancelledAt", errors
)
SELECT
    %(id)s::uuid, %(task)s, %(backend)s, "pKind", NULLIF("pKey", %(id)s::text), payload,
    CASE WHEN is_leased THEN '' ELSE 'FAILED' END, "createdAt", "scheduledAtInitially",
    CASE WHEN is_leased THEN NULL ELSE now END, now,
    CASE WHEN is_leased THEN '[]'::jsonb ELSE %(errors)s::jsonb END
FROM found
CROSS JOIN clock
ON CONFLICT (id) DO UPDATE
SET status = EXCLUDED.status,
    "finishedAt" = EXCLUDED."finishedAt",
    "cancelledAt" = EXCLUDED."cancelledAt",
    errors = stored.errors || EXCLUDED.errors
RETURNING status = 'FAILED'
"""
)

# Those of the tasks that are to be cancelled. Reads: the primary key of results.
CANCELLED_AMONG: Final[LiteralString] = """
SELECT id::text
FROM delayed_queue_task_result
WHERE id = ANY (%(results)s::uuid[])
    AND "cancelledAt" IS NOT NULL
"""

# Make a waiting message due now. Reads: the primary key.
HASTEN: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue
SET "scheduledAt" = (SELECT now FROM clock)
WHERE id = %(message)s::bigint
    AND "scheduledAt" > (SELECT now FROM clock)
    AND "lockUuid" IS NULL
RETURNING id
"""
)

# Note that a queue uses a priority, unless that is known. Reads: task_priority_queue.
USE_PRIORITY: Final[LiteralString] = """
INSERT INTO delayed_queue_task_priority (queue, priority)
SELECT %(queue)s::varchar, %(priority)s::smallint
WHERE NOT EXISTS (
    SELECT 1
    FROM delayed_queue_task_priority
    WHERE queue = %(queue)s::varchar
        AND priority = %(priority)s::smallint
)
ON CONFLICT (queue, priority) DO NOTHING
"""
# All priorities of all queues, a few rows. Reads: the table, from end to end.
PRIORITIES: Final[LiteralString] = """
SELECT queue, priority
FROM delayed_queue_task_priority
ORDER BY queue, priority DESC
"""

# Try to be the only keeper of the partitions until the transaction ends. The transaction
# gives way to any that holds a lock on one of them.
TAKE_KEEPING: Final[LiteralString] = """
SELECT pg_try_advisory_xact_lock(7310600482201521), set_config('lock_timeout', '1s', true)
"""
# The partitions of days. Reads: the catalogue.
DAYS: Final[LiteralString] = """
SELECT substring(partition.relname FROM '_([0-9]+)$')::integer
FROM pg_inherits
JOIN pg_class AS partition ON partition.oid = pg_inherits.inhrelid
WHERE pg_inherits.inhparent = 'delayed_queue_task_result'::regclass
    AND partition.relname ~ '^delayed_queue_task_result_[0-9]+$'
"""
# A table for a day, with what the rest has of it, as a partition. Writers wait for it, once a day
# and before they choose a partition: who has chosen the rest, and waited there, would be refused.
_MAKE_DAY: Final = (
    "LOCK TABLE ONLY delayed_queue_task_result IN SHARE ROW EXCLUSIVE MODE",
    "CREATE TABLE {name} (LIKE delayed_queue_task_result INCLUDING ALL)",
    """
WITH gone AS (
    DELETE FROM delayed_queue_task_result_rest
    WHERE id >= '{first}' AND id < '{last}'
    RETURNING *
)
INSERT INTO {name} SELECT * FROM gone
""",
    """
ALTER TABLE delayed_queue_task_result
ATTACH PARTITION {name} FOR VALUES FROM ('{first}') TO ('{last}')
""",
)
# Delete from the rest the results of days that are over (their tasks ended long after they were to
# run), at most so many at a time. Reads: the rest, from end to end; it is small.
PRUNE_REST: Final[LiteralString] = (
    CLOCK
    + """
DELETE FROM delayed_queue_task_result_rest
WHERE id = ANY (ARRAY(
    SELECT id
    FROM delayed_queue_task_result_rest
    WHERE GREATEST("finishedAt", "lastAttemptedAt", "scheduledAt")
        < (SELECT now FROM clock) - %(age)s::bigint
    LIMIT %(limit)s::integer
))
"""
)

M = TypeVar("M", bound=models.Model)


class Ended(NamedTuple):
    """An attempt at a task, and what became of it; JSON as text, times in milliseconds ago."""

    message: int
    lease: str
    id: str
    task: str
    backend: str
    status: str
    began: int
    ended: int | None
    value: str | None
    errors: str
    workers: str
    metadata: str | None


class Going(NamedTuple):
    """A task that is running, and how far it is."""

    message: int
    lease: str
    id: str
    task: str
    backend: str
    began: int
    metadata: str


class FoundRow(NamedTuple):
    """A result, a message and a dead letter of a task, as far as there are any."""

    task: str | None
    backend: str | None
    kind: str | None
    key: str | None
    payload: bytes | None
    status: str | None
    enqueued_at: int | None
    scheduled_at: int | None
    started_at: int | None
    last_attempted_at: int | None
    finished_at: int | None
    cancelled_at: int | None
    return_value: str | None
    errors: str | None
    worker_ids: str | None
    metadata: str | None
    message_id: int | None
    message_kind: str | None
    message_key: str | None
    message_payload: bytes | None
    message_scheduled_at: int | None
    message_created_at: int | None
    message_attempts: int | None
    lease_id: str | None
    is_leased: bool | None
    letter_id: int | None
    letter_kind: str | None
    letter_key: str | None
    letter_payload: bytes | None
    letter_scheduled_at: int | None
    letter_created_at: int | None
    letter_attempts: int | None
    reason: str | None
    last_error: str | None
    died_at: int | None


def _columns(rows: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def recording(attempts: Sequence[Ended]) -> Step:
    """Record what became of attempts, whose messages are settled in the same transaction."""
    names = (
        "messages", "leases", "results", "tasks", "backends", "statuses", "began", "ended",
        "values", "errors", "workers", "metadata",
    )  # fmt: skip
    # Locked in one order, as by whoever else settles several.
    attempts = sorted(attempts, key=itemgetter(0))
    return RECORD_ATTEMPTS, _columns(attempts, names) | {"now": None}


class ResultManager(models.Manager[M]):
    """The statements of results."""

    def record_progress(self, going: Sequence[Going], *, using: str = DEFAULT_DB_ALIAS) -> int:
        """Write how far those tasks are that are still under their leases; return how many."""
        names = ("messages", "leases", "results", "tasks", "backends", "began", "metadata")
        return execute(using, RECORD_PROGRESS, _columns(going, names) | {"now": None})

    def note_enqueued(self, *, using: str = DEFAULT_DB_ALIAS, **params: Any) -> None:
        """Write that a task was enqueued under a key of its own."""
        execute(using, NOTE_ENQUEUED, params | {"now": None})

    def find(self, task_id: UUID, *, using: str = DEFAULT_DB_ALIAS) -> list[FoundRow]:
        """Return all there is of a task, a row for each message and dead letter under its key."""
        rows = fetch(using, FIND_RESULT, {"id": str(task_id), "now": None})
        return list(map(FoundRow._make, rows))

    def lock_key(self, key: str, *, using: str = DEFAULT_DB_ALIAS) -> list[tuple[str, bytes]]:
        """Return kind and payload of what is under the key, locked for the transaction."""
        fetch(using, LOCK_KEY, {"key": key})
        # In a statement of its own: the snapshot of the first is older than the lock.
        return [(row[0], bytes(row[1])) for row in fetch(using, FIND_KEY, {"key": key})]

    def cancel(
        self, message: int, created_at: int, task_id: str, task: str, backend: str, errors: str,
        *, using: str = DEFAULT_DB_ALIAS,
    ) -> bool | None:  # fmt: skip
        """Return True if the task was taken away, False if its worker was told; None: no more."""
        params = {
            "message": message, "created_at": created_at, "id": task_id, "task": task,
            "backend": backend, "errors": errors, "now": None,
        }  # fmt: skip
        rows = fetch(using, CANCEL, params)
        return rows[0][0] if rows else None

    def cancelled_among(self, ids: Sequence[str], *, using: str = DEFAULT_DB_ALIAS) -> set[str]:
        return {row[0] for row in fetch(using, CANCELLED_AMONG, {"results": list(ids)})}

    def hasten(self, message: int, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Have a waiting message due now; return whether it was waiting."""
        return bool(fetch(using, HASTEN, {"message": message, "now": None}))

    def keep_days(
        self, wanted: Sequence[tuple[int, UUID, UUID]], oldest: int, age: int,
        *, limit: int = 1000, using: str = DEFAULT_DB_ALIAS,
    ) -> bool:  # fmt: skip
        """Make partitions of the wanted days, drop those before the oldest one; each commits.

        Of what no day has, delete what is older than the age, in milliseconds. Return False when
        another worker is at it.
        """
        with transaction.atomic(using=using):
            if not fetch(using, TAKE_KEEPING, {})[0][0]:
                return False
            days = {row[0] for row in fetch(using, DAYS, {})}
            for day, first, last in wanted:
                if day not in days:
                    names = {"name": f"delayed_queue_task_result_{day}", "first": first}
                    for each in _MAKE_DAY:
                        execute(using, each.format(**names, last=last), {})
            for day in days:
                if day < oldest:
                    execute(using, f"DROP TABLE delayed_queue_task_result_{day}", {})
        while execute(using, PRUNE_REST, {"age": age, "limit": limit, "now": None}) == limit:
            pass
        return True


class PriorityManager(models.Manager[M]):
    """The statements of priorities."""

    def use(self, queue: str, priority: int, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Note that tasks of the queue have this priority."""
        execute(using, USE_PRIORITY, {"queue": queue, "priority": priority})

    def by_queue(self, *, using: str = DEFAULT_DB_ALIAS) -> dict[str, list[int]]:
        """Return the priorities that queues have used but 0, the highest first."""
        found: dict[str, list[int]] = {}
        for queue, priority in fetch(using, PRIORITIES, {}):
            found.setdefault(queue, []).append(priority)
        return found
