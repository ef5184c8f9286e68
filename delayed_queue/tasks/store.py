"""The statements of results: what they are recorded by, found, cancelled, and kept by the day."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, LiteralString, NamedTuple, TypeVar
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.days import DailyTable
from delayed_queue.db.sql import CLOCK, Step, column_of, rows_of
from delayed_queue.db.statements import execute, fetch
from delayed_queue.queue.store.fragments import TELL_HOLDER
from delayed_queue.queue.store.inspect import walking
from delayed_queue.tasks.options import first_id

# Messages under leases, those of them that are still held: what their tasks' rows are made of.
_COLUMNS: Final = 'id, "pKind", "pKey", payload, "createdAt", "scheduledAtInitially", attempts'
_UNDER_LEASE: Final = """
    WHERE id = ANY (%(ids)s::bigint[])
        AND "lockUuid" = ANY (%(leases)s::text[])
"""
# A row for each attempt whose message is among those held, and of a task with a row already what
# is new: errors and workers are added. Times are milliseconds ago, because workers' clocks differ.
# An attempt without an end is not the last, or goes on; one without errors was successful. With
# the task ends what was asked of it, so that a redrive of it is not cancelled as well.
# Task names are sent once; attempts refer to them by index.
# "workerIds" has one entry per attempt: "" for one that left no record, because its process died.
# Results must be distinct. Reads: the primary key of results.
_RECORD: Final = """
INSERT INTO delayed_queue_task_result AS stored (
    id, task, backend, "pKind", "pKey", payload, status, "enqueuedAt", "scheduledAt", "startedAt",
    "lastAttemptedAt", "finishedAt", "returnValue", errors, "workerIds", metadata
)
SELECT
    attempt.id, (%(tasks)s::text[])[COALESCE(attempt.names, 1)],
    (%(backends)s::text[])[COALESCE(attempt.names, 1)], held."pKind",
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
JOIN unnest(
    %(messages)s::bigint[], %(results)s::uuid[], %(names)s::integer[], %(began)s::bigint[],
    %(ended)s::bigint[], %(values)s::jsonb[], %(errors)s::jsonb[], %(metadata)s::jsonb[]
) AS attempt (message, id, names, began, ended, value, errors, metadata)
    ON attempt.message = held.id
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

# Delete messages that are still under their leases, all of which belong to the caller, and record
# those attempts at tasks that were theirs: so nothing is written for one that was taken over.
# Returns the ids that were deleted. Reads: the primary key of messages, or
# delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_TASKS: Final[LiteralString] = (
    CLOCK
    + """,
held AS (
    DELETE FROM delayed_queue"""
    + _UNDER_LEASE
    + """    RETURNING """
    + _COLUMNS
    + """
),
recorded AS ("""
    + _RECORD
    + """)
SELECT id FROM held
"""
)

# Record attempts, or how far they are, and leave their messages; these are locked until the
# transaction ends, which may settle them. Reads: as ACKNOWLEDGE_TASKS.
RECORD_ATTEMPTS: Final[LiteralString] = (
    CLOCK
    + """,
held AS MATERIALIZED (
    SELECT """
    + _COLUMNS
    + """
    FROM delayed_queue"""
    + _UNDER_LEASE
    + """    FOR UPDATE
)"""
    + _RECORD
    + """RETURNING 1
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
    "scheduledAt" = EXCLUDED."scheduledAt",
    "cancelledAt" = NULL
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
    message."createdAt", message."lockUuid",
    message."lockUuid" IS NOT NULL AND message."scheduledAt" > (SELECT now FROM clock),
    letter.id, letter."pKind", letter."pKey", letter.payload, letter."scheduledAtInitially",
    letter.reason, letter."lastError", letter."diedAt", message.attempts, letter.attempts
FROM (SELECT %(id)s::uuid AS id) AS asked
LEFT JOIN delayed_queue_task_result AS stored ON stored.id = %(id)s::uuid
LEFT JOIN LATERAL (
    SELECT
        id, "pKind", "pKey", payload, "scheduledAtInitially", "createdAt", "lockUuid",
        "scheduledAt", attempts
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

# Delete a waiting task; mark a running one as to be cancelled, and tell who runs it. Returns
# whether it was deleted, or no row: it has ended, or another was put in its place.
# Reads: the primary keys of messages and of results.
CANCEL: Final[LiteralString] = (
    CLOCK
    + """,
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
    SELECT """
    + TELL_HOLDER
    + """ AS holder
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
    AND COALESCE("scheduledAt" > (SELECT now FROM clock), false)
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

# The distinct tasks of results, at most %(limit)s. Reads: task_result_task.
TASK_NAMES: Final[LiteralString] = walking("delayed_queue_task_result", "task", "id")

# By the day that is in the ids.
RESULTS_BY_DAY: Final = DailyTable("delayed_queue_task_result", "id", first_id, PRUNE_REST)

M = TypeVar("M", bound=models.Model)


class Attempt(NamedTuple):
    """An attempt at a task, and what became of it; JSON as text, times of the monotonic clock.

    ``names`` are those of the task and its backend. ``ended`` is None of one that goes on, or is
    not the last; ``errors`` of one that went well.
    """

    message: int
    lease: str
    id: str
    names: tuple[str, str]
    began: float
    ended: float | None = None
    value: str | None = None
    errors: str | None = None
    metadata: str | None = None


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
    lease_id: str | None
    is_leased: bool | None
    letter_id: int | None
    letter_kind: str | None
    letter_key: str | None
    letter_payload: bytes | None
    letter_scheduled_at: int | None
    reason: str | None
    last_error: str | None
    died_at: int | None
    message_attempts: int | None
    letter_attempts: int | None


def acknowledging(
    ids: Sequence[int], leases: Iterable[str], attempts: Sequence[Attempt], workers: str
) -> Step:
    """Delete messages that are still under one of the leases, and record the attempts at them."""
    return ACKNOWLEDGE_TASKS, _recorded(ids, leases, attempts, workers)


def recording(attempts: Sequence[Attempt], workers: str) -> Step:
    """Record attempts, whose messages are settled in the same transaction."""
    ids, leases = [each.message for each in attempts], [each.lease for each in attempts]
    return RECORD_ATTEMPTS, _recorded(ids, leases, attempts, workers)


def _recorded(
    ids: Sequence[int], leases: Iterable[str], attempts: Sequence[Attempt], workers: str
) -> dict[str, Any]:
    # Once each: of two messages that say they are one task, the last tells.
    distinct = {each[2]: each for each in attempts}.values()
    messages, _, results, names, began, ended, values, errors, metadata = zip(
        *distinct, strict=True
    )
    now = time.monotonic()
    numbers = {each: number for number, each in enumerate(dict.fromkeys(names), 1)}
    tasks, backends = zip(*numbers, strict=True)
    which = [numbers[each] for each in names] if len(numbers) > 1 else ()
    return {
        "ids": _array(ids), "leases": _array([*set(leases)]), "messages": _array(messages),
        "results": _array(results), "tasks": _array(tasks, _quoted),
        "backends": _array(backends, _quoted), "names": _array(which),
        "began": _array([int((now - each) * 1000) for each in began]),
        "ended": _array([each and int((now - each) * 1000) for each in ended]),
        "values": _array(values, _quoted), "errors": _array(errors, _quoted),
        "metadata": _array(metadata, _quoted), "workers": workers, "now": None,
    }  # fmt: skip


def _array(values: Sequence[Any], written: Callable[[Any], str] = str) -> str | None:
    """Return an array as PostgreSQL reads it, which psycopg takes longer for.

    None of nothing but NULL, which unnest() fills up with.
    """
    if values.count(None) == len(values):
        return None
    return "{" + ",".join(["NULL" if each is None else written(each) for each in values]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class ResultManager(models.Manager[M]):
    """The statements of results."""

    def record_progress(self, going: Sequence[Attempt], *, using: str = DEFAULT_DB_ALIAS) -> int:
        """Write how far those tasks are that are still under their leases; return how many."""
        return execute(using, *recording(going, "[]"))

    def note_enqueued(self, *, using: str = DEFAULT_DB_ALIAS, **params: Any) -> None:
        """Write that a task was enqueued under a key of its own."""
        execute(using, NOTE_ENQUEUED, params | {"now": None})

    def find(self, task_id: UUID, *, using: str = DEFAULT_DB_ALIAS) -> list[FoundRow]:
        """Return all there is of a task, a row for each message and dead letter under its key."""
        return rows_of(FoundRow, fetch(using, FIND_RESULT, {"id": str(task_id), "now": None}))

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
        rows = fetch(using, CANCEL, {
            "message": message, "created_at": created_at, "id": task_id, "task": task,
            "backend": backend, "errors": errors, "now": None,
        })  # fmt: skip
        return rows[0][0] if rows else None

    def cancelled_among(self, ids: Sequence[str], *, using: str = DEFAULT_DB_ALIAS) -> set[str]:
        return {row[0] for row in fetch(using, CANCELLED_AMONG, {"results": list(ids)})}

    def hasten(self, message: int, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Have a waiting message due now; return whether it was waiting."""
        return bool(fetch(using, HASTEN, {"message": message, "now": None}))

    def names(self, limit: int, *, using: str = DEFAULT_DB_ALIAS) -> list[str]:
        """Return the tasks that have results, at most ``limit``, in the order of their paths."""
        return column_of(fetch(using, TASK_NAMES, {"limit": limit}))


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
