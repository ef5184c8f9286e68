"""The statements of tasks: record, find, cancel and keep results; store priorities."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final, LiteralString, NamedTuple

from django.db import DEFAULT_DB_ALIAS, transaction

from delayed_queue.db.days import DailyTable
from delayed_queue.db.sql import CLOCK, Step, column_of
from delayed_queue.db.statements import execute, fetch
from delayed_queue.queue.models import StoredBatch
from delayed_queue.queue.store.finishing import DROPPED
from delayed_queue.queue.store.fragments import EXPIRES_AT, TELL_HOLDER
from delayed_queue.queue.store.inspect import distinct_values
from delayed_queue.tasks.ids import first_id

# Columns of the leased messages that result rows are made of.
_COLUMNS: Final = 'id, "pKind", "pKey", payload, "createdAt", "scheduledAtInitially", attempts'
_UNDER_LEASE: Final = """WHERE id = ANY (%(ids)s::bigint[])
        AND "lockUuid" = ANY (%(leases)s::text[])"""
# Insert a row for each attempt whose message is still leased. If the task has a row, its errors and
# workers are extended. Times are sent as milliseconds ago, because workers' clocks differ.
# An attempt without an end runs, or will be retried; an ended one without errors was successful.
# The end of a task clears its cancellation, so that a redrive is not cancelled as well.
# "workerIds" has one entry per attempt: "" for one that left no record, because its process died.
# Results must be distinct. Reads: the primary key of results.
_RECORD: Final = """
INSERT INTO delayed_queue_task_result AS stored (
    id, task, backend, "pKind", "pKey", payload, status, "enqueuedAt", "scheduledAt", "startedAt",
    "lastAttemptedAt", "finishedAt", "returnValue", errors, "workerIds", metadata
)
SELECT
    attempt.id, attempt.task, attempt.backend, held."pKind",
    NULLIF(held."pKey", attempt.id::text), held.payload,
    CASE
        WHEN attempt.ended IS NULL THEN ''
        WHEN attempt.errors IS NULL THEN 'SUCCESSFUL'
        ELSE 'FAILED'
    END,
    held."createdAt", held."scheduledAtInitially",
    (SELECT now FROM clock) - attempt.began,
    (SELECT now FROM clock) - attempt.began,
    (SELECT now FROM clock) - attempt.ended,
    attempt.value, COALESCE(attempt.errors, '[]'),
    CASE
        WHEN held.attempts > 1
        THEN to_jsonb(array_fill(''::text, ARRAY[held.attempts - 1])) || %(workers)s::jsonb
        ELSE %(workers)s::jsonb
    END,
    COALESCE(attempt.metadata, '{}')
FROM held
JOIN jsonb_to_recordset(%(attempts)s::jsonb) AS attempt (
    message bigint, id uuid, task text, backend text, began bigint, ended bigint,
    value jsonb, errors jsonb, metadata jsonb
) ON attempt.message = held.id
ON CONFLICT (id) DO UPDATE
SET status = EXCLUDED.status,
    payload = EXCLUDED.payload,
    "startedAt" = COALESCE(stored."startedAt", EXCLUDED."startedAt"),
    "lastAttemptedAt" = EXCLUDED."lastAttemptedAt",
    "finishedAt" = EXCLUDED."finishedAt",
    "cancelledAt" = CASE WHEN EXCLUDED."finishedAt" IS NULL THEN stored."cancelledAt" END,
    "returnValue" = EXCLUDED."returnValue",
    errors = stored.errors || EXCLUDED.errors,
    "workerIds" = stored."workerIds" || jsonb_path_query_array(
        EXCLUDED."workerIds",
        '$[$known to last]',
        jsonb_build_object('known', LEAST(
            jsonb_array_length(stored."workerIds"),
            jsonb_array_length(EXCLUDED."workerIds") - jsonb_array_length(%(workers)s::jsonb)
        ))
    ),
    metadata = stored.metadata || EXCLUDED.metadata
"""

# Delete messages that are still under the caller's leases, and record the attempts at their tasks.
# Nothing is written for a message that another worker has taken over.
# Returns the ids that were deleted. Reads: the primary key of messages, or
# delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_TASKS: Final[LiteralString] = f"""{CLOCK},
held AS (
    DELETE FROM delayed_queue
    {_UNDER_LEASE}
    RETURNING {_COLUMNS}
),
recorded AS ({_RECORD})
SELECT id FROM held
"""

# Record attempts, or the progress of running ones, and lock their messages until the end of the
# transaction, which may settle them. Reads: as ACKNOWLEDGE_TASKS.
RECORD_ATTEMPTS: Final[LiteralString] = f"""{CLOCK},
held AS MATERIALIZED (
    SELECT {_COLUMNS}
    FROM delayed_queue
    {_UNDER_LEASE}
    FOR UPDATE
){_RECORD}RETURNING 1
"""

# Record a task whose message has another key than its id, so that its id finds it.
# Reads: the primary key of results.
NOTE_ENQUEUED: Final[LiteralString] = f"""{CLOCK}
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
    "scheduledAt" = EXCLUDED."scheduledAt",
    "cancelledAt" = NULL
"""

# Find all rows of a task in one snapshot: its result, the messages under its key, of any kind, and
# its dead letters, the newest first. Returns a row for each pair of message and dead letter.
# Reads: the primary key of results, delayed_queue__PKeyPlusKindUniqueIndex, dead_letter_key.
FIND_RESULT: Final[LiteralString] = f"""{CLOCK}
SELECT to_jsonb(stored)::text, to_jsonb(message)::text, to_jsonb(letter)::text
FROM (SELECT %(id)s::uuid AS id) AS asked
LEFT JOIN delayed_queue_task_result AS stored ON stored.id = %(id)s::uuid
LEFT JOIN LATERAL (
    SELECT
        id, "pKind", "pKey", payload, "scheduledAtInitially", "createdAt", "lockUuid", attempts,
        "batchId", "lockUuid" IS NOT NULL AND "scheduledAt" > (SELECT now FROM clock) AS is_leased
    FROM delayed_queue
    WHERE "pKey" = COALESCE(stored."pKey", asked.id::text)
    LIMIT 300
) AS message ON true
LEFT JOIN LATERAL (
    SELECT
        id, "pKind", "pKey", payload, "scheduledAtInitially", reason, "lastError", "diedAt",
        attempts
    FROM delayed_queue_dead_letter
    WHERE "pKey" = COALESCE(stored."pKey", asked.id::text)
    ORDER BY id DESC
    LIMIT 300
) AS letter ON true
"""

# Lock a key until the transaction ends, then read the messages of any kind under it. So only one
# caller at a time reads and then offers.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
LOCK_KEY: Final[LiteralString] = """
SELECT pg_advisory_xact_lock(hashtextextended(%(key)s::text, 7310600482201520))
"""
FIND_KEY: Final[LiteralString] = f"""{CLOCK}
SELECT
    "pKind", payload,
    COALESCE("lockUuid" IS NULL AND {EXPIRES_AT} <= (SELECT now FROM clock), false), "batchId"
FROM delayed_queue
WHERE "pKey" = %(key)s
LIMIT 300
"""

# Delete a waiting task; mark a running one as cancelled, and notify its worker. Returns whether it
# was deleted, or no row if it has ended or was replaced.
# Reads: the primary keys of messages and of results.
CANCEL: Final[LiteralString] = f"""{CLOCK},
found AS MATERIALIZED (
    SELECT
        id, "pKind", "pKey", payload, "createdAt", "scheduledAtInitially",
        "lockUuid" IS NOT NULL AND "scheduledAt" > (SELECT now FROM clock) AS is_leased,
        "lockUuid"
    FROM delayed_queue
    WHERE id = %(message)s::bigint
        AND "createdAt" = %(created_at)s::bigint
    FOR UPDATE
),
gone AS (
    DELETE FROM delayed_queue
    WHERE id = (SELECT id FROM found WHERE NOT is_leased)
),
told AS MATERIALIZED (
    SELECT {TELL_HOLDER} AS holder
    FROM found AS stored
    WHERE is_leased
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
RETURNING status = 'FAILED', (SELECT holder FROM told)
"""

# Return which of the tasks are marked as cancelled. Reads: the primary key of results.
CANCELLED_AMONG: Final[LiteralString] = """
SELECT id::text
FROM delayed_queue_task_result
WHERE id = ANY (%(results)s::uuid[])
    AND "cancelledAt" IS NOT NULL
"""

# Make a waiting message due now. Reads: the primary key.
HASTEN: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue
SET "scheduledAt" = (SELECT now FROM clock)
WHERE id = %(message)s::bigint
    AND COALESCE("scheduledAt" > (SELECT now FROM clock), false)
    AND "lockUuid" IS NULL
RETURNING id
"""

# Store that a queue uses a priority, unless it is stored. Reads: task_priority_queue.
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

# Delete from the rest partition, which is small, at most N results of days that are over: their
# tasks ended long after they were to run. Reads: the rest partition, from end to end.
PRUNE_REST: Final[LiteralString] = f"""{CLOCK}
DELETE FROM delayed_queue_task_result_rest
WHERE id = ANY (ARRAY(
    SELECT id
    FROM delayed_queue_task_result_rest
    WHERE GREATEST("finishedAt", "lastAttemptedAt", "scheduledAt")
        < (SELECT now FROM clock) - %(age)s::bigint
    LIMIT %(limit)s::integer
))
"""

# The distinct tasks of results, at most %(limit)s. Reads: task_result_task.
TASK_NAMES: Final[LiteralString] = distinct_values("delayed_queue_task_result", "task", "id")

# Partitioned by the day in the ids.
RESULTS_BY_DAY: Final = DailyTable("delayed_queue_task_result", "id", first_id, PRUNE_REST)


@dataclass(eq=False)
class Attempt:
    """An attempt at a task, as it is recorded: JSON as text, times of the monotonic clock.

    ``names``: the path of the task and the alias of its backend. ``ended``: None for an attempt
    that runs, or will be retried. ``errors``: None for a successful attempt.
    """

    message: int
    lease: str
    id: str
    names: tuple[str, str]
    began: float | None = None
    ended: float | None = None
    value: str | None = None
    errors: str | None = None
    metadata: str | None = None

    def as_row(self, now: float) -> str:
        """Return the attempt as JSON. Its parts are JSON already."""
        task, backend = map(json.dumps, self.names)
        began = int((now - (self.began or now)) * 1000)
        ended = "null" if self.ended is None else int((now - self.ended) * 1000)
        return (
            f'{{"message":{self.message},"id":"{self.id}","task":{task},"backend":{backend},'
            f'"began":{began},"ended":{ended},"value":{self.value or "null"},'
            f'"errors":{self.errors or "null"},"metadata":{self.metadata or "null"}}}'
        )


class FoundRow(NamedTuple):
    """A result, a message and a dead letter of a task by columns; None where there is none."""

    stored: dict[str, Any] | None
    message: dict[str, Any] | None
    letter: dict[str, Any] | None


def acknowledging(
    ids: Sequence[int], leases: Iterable[str], attempts: Sequence[Attempt], workers: str
) -> Step:
    """Delete messages that are still under one of the leases, and record their attempts."""
    return ACKNOWLEDGE_TASKS, _recorded(ids, leases, attempts, workers)


def recording(attempts: Sequence[Attempt], workers: str) -> Step:
    """Record attempts, whose messages are settled in the same transaction."""
    ids, leases = [each.message for each in attempts], [each.lease for each in attempts]
    return RECORD_ATTEMPTS, _recorded(ids, leases, attempts, workers)


def _recorded(
    ids: Sequence[int], leases: Iterable[str], attempts: Sequence[Attempt], workers: str
) -> dict[str, Any]:
    # If two messages have the same task id, the last attempt is recorded.
    distinct = {each.id: each for each in attempts}.values()
    now = time.monotonic()
    return {
        "ids": list(ids), "leases": list(set(leases)), "workers": workers, "now": None,
        "attempts": f"[{','.join([each.as_row(now) for each in distinct])}]",
    }  # fmt: skip


def record_progress(running: Sequence[Attempt], *, using: str = DEFAULT_DB_ALIAS) -> int:
    """Write the progress of tasks that are still under their leases; return how many."""
    return execute(using, *recording(running, "[]"))


def record_enqueued(*, using: str = DEFAULT_DB_ALIAS, **params: Any) -> None:
    """Record a task whose message has another key than its id."""
    execute(using, NOTE_ENQUEUED, params | {"now": None})


def find(task_id: str, *, using: str = DEFAULT_DB_ALIAS) -> list[FoundRow]:
    """Return all rows of a task, one for each pair of message and dead letter."""
    rows = fetch(using, FIND_RESULT, {"id": task_id, "now": None})
    return [FoundRow(*(each and json.loads(each) for each in row)) for row in rows]


class KeyRow(NamedTuple):
    """A message under a key; ``has_expired``: it will never be run."""

    kind: str
    payload: bytes
    has_expired: bool
    batch_id: int | None


def lock_key(key: str, *, using: str = DEFAULT_DB_ALIAS) -> list[KeyRow]:
    """Lock a key for the transaction; return its messages."""
    fetch(using, LOCK_KEY, {"key": key})
    # A second statement, because the snapshot of the first is older than the lock.
    rows = fetch(using, FIND_KEY, {"key": key, "now": None})
    return [KeyRow(kind, bytes(payload), *more) for kind, payload, *more in rows]


def cancel(*, batch_id: int | None, using: str, **params: Any) -> bool | None:
    """Return True for a deleted task, False for a notified worker, None for an ended task."""
    with nullcontext() if batch_id is None else transaction.atomic(using=using):
        rows = fetch(using, CANCEL, params | {"now": None})
        if batch_id is not None and rows and rows[0][0]:
            StoredBatch.objects.remove({(batch_id, DROPPED): 1}, using=using)
    return rows[0][0] if rows else None


def cancelled_among(ids: Sequence[str], *, using: str = DEFAULT_DB_ALIAS) -> set[str]:
    return {row[0] for row in fetch(using, CANCELLED_AMONG, {"results": list(ids)})}


def hasten(message: int, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Make a waiting message due now; return whether it was waiting."""
    return bool(fetch(using, HASTEN, {"message": message, "now": None}))


def task_names(limit: int, *, using: str = DEFAULT_DB_ALIAS) -> list[str]:
    """Return the paths of tasks that have results, at most ``limit``, sorted."""
    return column_of(fetch(using, TASK_NAMES, {"limit": limit}))


def use_priority(queue: str, priority: int, *, using: str = DEFAULT_DB_ALIAS) -> None:
    """Store that tasks of the queue have this priority."""
    execute(using, USE_PRIORITY, {"queue": queue, "priority": priority})


def priorities_by_queue(*, using: str = DEFAULT_DB_ALIAS) -> dict[str, list[int]]:
    """Return the priorities other than 0 that queues have used, the highest first."""
    found: dict[str, list[int]] = {}
    for queue, priority in fetch(using, PRIORITIES, {}):
        found.setdefault(queue, []).append(priority)
    return found
