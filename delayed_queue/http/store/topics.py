"""Topics, their jobs and the kept answers: the managers, and the statements about topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.rows import beside, column_of, first_row, rows_of, value_of
from delayed_queue.db.sql import CLOCK
from delayed_queue.db.statements import (
    Row,
    Step,
    execute,
    fetch,
    fetch_all,
    fetch_all_and_notify,
    fetch_all_at_once,
)
from delayed_queue.http.store.adding import (
    ADD_JOBS,
    DROP_DEAD_JOB,
    DROP_JOB,
    FIND_JOB,
    JOB_LETTERS,
    KICK_JOBS,
    PUT_JOBS,
)
from delayed_queue.http.store.locks import LOCK_TOPIC, locking_jobs
from delayed_queue.http.store.popping import (
    DEAD_JOBS,
    FINISH_JOB,
    NEXT_JOB,
    PEEK_JOBS,
    POP_JOBS,
    READ_DEAD_JOB,
)
from delayed_queue.http.store.recalling import DEFERRED_JOBS, RECALL_JOBS
from delayed_queue.queue.store.claim import limiting_waits
from delayed_queue.queue.store.offer import Offered

# Keep the plans of what follows in the transaction, and have those that are made on an empty
# table go by its indexes. Only before statements of which a test says that these are then the
# right ones when it has filled. Compiling is off because an index that is forced on the planner
# looks expensive to it. Until the end of the transaction: a pooler may give the session to
# others. It also does what LIMIT_WAITS does, to save a statement; null leaves that limit as it is.
KEEP_PLANS: Final[LiteralString] = """
SELECT
    set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('enable_seqscan', 'off', true),
    set_config('jit', 'off', true),
    set_config(
        'lock_timeout',
        COALESCE(%(timeout)s::integer::text, current_setting('lock_timeout')),
        true
    )
"""

# To run under LOCK_TOPIC: a redrive that found no topic holds that in its place.
# Reads: topic_name.
CREATE_TOPIC: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_topic (name, "createdAt")
SELECT %(topic)s, now
FROM clock
ON CONFLICT (name) DO NOTHING
RETURNING id
"""
)

# Reads: topic_name.
READ_TOPIC: Final[LiteralString] = """
SELECT name, shards, ladder, jitter, ttr, hosts
FROM delayed_queue_topic
WHERE name = %(topic)s
"""

# The same, and hold it: its shards and hosts stay as they are until the end of the transaction.
# Adding jobs does not wait for it. Reads: topic_name.
HOLD_TOPIC: Final[LiteralString] = READ_TOPIC + "FOR NO KEY UPDATE"

# Reads: topic_name.
TOPICS: Final[LiteralString] = """
SELECT name, shards, ladder, jitter, ttr, hosts
FROM (
    SELECT name, shards, ladder, jitter, ttr, hosts
    FROM delayed_queue_topic
    WHERE name > %(after)s
    ORDER BY name
    LIMIT (SELECT %(limit)s::integer)
) AS next
ORDER BY name
LIMIT %(limit)s::integer
"""

# Change a topic under HOLD_TOPIC; its shards under LOCK_TOPIC too. Reads: topic_name.
CONFIGURE_TOPIC: Final[LiteralString] = """
UPDATE delayed_queue_topic
SET shards = %(shards)s::integer,
    ladder = %(ladder)s,
    jitter = %(jitter)s::float,
    ttr = %(ttr)s::bigint,
    hosts = %(hosts)s::text
WHERE name = %(topic)s
RETURNING id
"""

# Hold an idempotency key until the end of the transaction, or say that another request does.
TRY_KEY: Final[LiteralString] = "SELECT pg_try_advisory_xact_lock(%(lock)s::bigint)"

# The answer kept under a key, younger than the age. Reads: idempotency_scope_key.
READ_ANSWER: Final[LiteralString] = (
    CLOCK
    + """
SELECT "requestHash", status, answer
FROM delayed_queue_idempotency_key
WHERE scope = %(scope)s
    AND key = %(key)s
    AND "createdAt" > (SELECT now FROM clock) - %(age)s::bigint
"""
)

# Keep an answer under TRY_KEY, in the place of one too old to be replayed.
# Reads: idempotency_scope_key.
SAVE_ANSWER: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_idempotency_key (
    scope, key, "requestHash", status, answer, "createdAt"
)
SELECT %(scope)s, %(key)s, %(request_hash)s::bytea, %(status)s, %(answer)s, now
FROM clock
ON CONFLICT (scope, key) DO UPDATE
SET "requestHash" = EXCLUDED."requestHash",
    status = EXCLUDED.status,
    answer = EXCLUDED.answer,
    "createdAt" = EXCLUDED."createdAt"
"""
)

# Delete answers older than the age, one bounded batch at a time. Two limits as in a claim.
# Reads: idempotency_created.
PRUNE_ANSWERS: Final[LiteralString] = (
    CLOCK
    + """
DELETE FROM delayed_queue_idempotency_key
WHERE id = ANY (ARRAY(
    SELECT id
    FROM (
        SELECT id
        FROM delayed_queue_idempotency_key
        WHERE "createdAt" <= (SELECT now FROM clock) - %(age)s::bigint
        ORDER BY "createdAt", id
        LIMIT (SELECT %(limit)s::integer)
        FOR UPDATE SKIP LOCKED
    ) AS oldest
    LIMIT %(limit)s::integer
))
"""
)

M = TypeVar("M", bound=models.Model)


class TopicRow(NamedTuple):
    """The settings of a topic as stored; ``ttr`` in milliseconds.

    ``hosts``: those whose callbacks have a shard each, in the order of the shards, with spaces
    between them.
    """

    name: str
    shards: int
    ladder: str
    jitter: float
    ttr: int | None
    hosts: str = ""


class AddedRow(NamedTuple):
    """A job that was written: whether anew, when it is due, and the instant of writing.

    None as the due time is one that was not: who held it may have put it back, in another row.
    """

    key: str
    is_created: bool
    scheduled_at: int | None
    now: int


class DroppedRow(NamedTuple):
    """The result of a search: a job was there, or one is gone that may have been put back."""

    was_there: bool
    is_doubtful: bool


class JobRow(NamedTuple):
    """A job as it stands; of a dead one ``scheduled_at`` is the instant of its death."""

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


class PoppedRow(NamedTuple):
    """A job under a new lease."""

    id: int
    key: str
    kind: str
    payload: bytes
    due_at: int
    leased_until: int
    attempts: int
    headers: str | None


class DeferredRow(NamedTuple):
    """A message ahead; ``url`` is None for one that was not deferred."""

    id: int
    due_at: int
    url: str | None


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


class AnswerRow(NamedTuple):
    """An answer kept under an idempotency key."""

    request_hash: bytes
    status: int
    answer: str


def keeping_plans(timeout: int | None = None) -> Step:
    """Keep the plan of ADD_JOBS, and limit waits for locks if ``timeout`` says so.

    Not before what puts, deletes and kicks: their plans made on an empty table may go by the
    index of due times when it has filled.
    """
    return KEEP_PLANS, {"timeout": timeout}


class TopicManager(models.Manager[M]):
    """The statements of topics and their jobs, in the manner of MessageManager."""

    def create_once(self, topic: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Create the topic; return False when it exists.

        Holds it alone until the end of the transaction: waits for redrives of a queue of its name.
        """
        steps = [_locking_topic(topic), (CREATE_TOPIC, {"topic": topic, "now": None})]
        _, created = fetch_all(using, steps)
        return bool(created)

    def read(self, topic: str, *, using: str = DEFAULT_DB_ALIAS) -> TopicRow | None:
        rows = fetch(using, READ_TOPIC, {"topic": topic})
        return first_row(TopicRow, rows)

    def hold(self, topic: str, *, using: str = DEFAULT_DB_ALIAS) -> TopicRow | None:
        """Return the topic, held to the end of the transaction; waits for whoever changes it.

        Behind the lock of those who add jobs: everybody takes that first.
        """
        rows = fetch_all(using, [locking_jobs(topic, []), (HOLD_TOPIC, {"topic": topic})])[-1]
        return TopicRow._make(rows[0]) if rows else None

    def after(self, topic: str, limit: int, *, using: str = DEFAULT_DB_ALIAS) -> list[TopicRow]:
        """Return the next topics in the order of their names."""
        rows = fetch(using, TOPICS, {"after": topic, "limit": limit})
        return rows_of(TopicRow, rows)

    def lock(self, topic: str, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Hold the number of shards for a change, until the end of the transaction."""
        fetch(using, *_locking_topic(topic))

    def configure(self, topic: TopicRow, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Change a topic; return False when there is none of that name."""
        params = {"topic": topic.name, **topic._asdict()}
        return bool(fetch(using, CONFIGURE_TOPIC, params))

    def add(
        self,
        topic: TopicRow,
        jobs: Sequence[Offered],
        places: Sequence[str],
        *,
        can_update: bool,
        channels: Sequence[str] = (),
        timeout: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[AddedRow] | None:
        """Write jobs under their locks, wake the channels; None when the shards are others.

        Keys are distinct. What exists already (or, with ``can_update``, is just so) is left out;
        rows without a due time were not written, and are to be asked for again. In a transaction
        of its own it waits for another's lock no longer than ``timeout`` milliseconds, then
        raises OperationalError.
        """
        steps = [
            locking_jobs(topic.name, [job.key for job in jobs]),
            _adding(topic, jobs, places, can_update=can_update),
        ]
        if can_update:
            settings = [] if timeout is None else [limiting_waits(timeout)]
        else:
            settings = [keeping_plans(timeout)]
        *_, answer = fetch_all_and_notify(using, steps, channels, settings=settings)
        found = beside(AddedRow, answer)
        if not all(fits for fits, _ in found):
            return None
        return [added for _, added in found if added is not None]

    def find(self, topic: str, key: str, *, using: str = DEFAULT_DB_ALIAS) -> JobRow | None:
        """Return the active job of that id, or else its newest dead letter."""
        rows = fetch(using, FIND_JOB, {**_of_job(topic, key), "now": None})
        return first_row(JobRow, rows)

    def drop(self, topic: str, key: str, *, using: str = DEFAULT_DB_ALIAS) -> DroppedRow:
        """Delete the job, active and dead, under its lock.

        One that dies while its row is waited for is found by the second look.
        """
        job = _of_job(topic, key)
        steps = [locking_jobs(topic, [key]), (DROP_JOB, job), (DROP_DEAD_JOB, job)]
        _, [(found, dropped)], dead = fetch_all(using, steps)
        return DroppedRow(bool(dropped or dead), found > dropped)

    def pop(
        self,
        kinds: Sequence[str],
        limit: int,
        lease_id: str,
        *,
        ttr: int | None,
        default_ttr: int,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[PoppedRow]:
        """Lease due jobs of the kinds, from the first that has some on; earliest first."""
        params = {
            "kinds": list(kinds), "limit": limit, "lease_id": lease_id, "ttr": ttr,
            "default_ttr": default_ttr, "now": now,
        }  # fmt: skip
        rows = map(PoppedRow._make, fetch(using, POP_JOBS, params))
        return sorted(rows, key=lambda row: (row.due_at, row.id))

    def next_due(
        self, kinds: Sequence[str], horizon: int, *, using: str = DEFAULT_DB_ALIAS
    ) -> int | None:
        """Return the milliseconds until the next job, if one falls due within the horizon."""
        params = {"kinds": list(kinds), "horizon": horizon, "now": None}
        found: int | None = value_of(fetch(using, NEXT_JOB, params))
        return found

    def finish(
        self,
        topic: str,
        key: str,
        lease_id: str,
        *,
        using: str = DEFAULT_DB_ALIAS,
    ) -> tuple[bool, bool]:
        """Delete the job under this lease; return whether it was, and whether there was one."""
        params = {**_of_job(topic, key), "lease_id": lease_id}
        finished, exists = fetch(using, FINISH_JOB, params)[0]
        return finished, exists

    def dead(
        self, kinds: Sequence[str], after: int, limit: int, *, using: str = DEFAULT_DB_ALIAS
    ) -> list[DeadJobRow]:
        """Return the next dead letters of the kinds, in id order."""
        params = {"kinds": list(kinds), "after": after, "limit": limit}
        return rows_of(DeadJobRow, fetch(using, DEAD_JOBS, params))

    def read_dead(self, letter_id: int, *, using: str = DEFAULT_DB_ALIAS) -> DeadJobRow | None:
        rows = fetch(using, READ_DEAD_JOB, {"id": letter_id})
        return first_row(DeadJobRow, rows)

    def letters_of(self, topic: str, key: str, *, using: str = DEFAULT_DB_ALIAS) -> list[int]:
        """Return the ids of the job's dead letters."""
        rows = fetch(using, JOB_LETTERS, _of_job(topic, key))
        return column_of(rows)

    def kick(
        self,
        topic: str,
        ids: Sequence[int],
        keys: Sequence[str],
        *,
        newest_only: bool = False,
        using: str = DEFAULT_DB_ALIAS,
    ) -> dict[int, str]:
        """Put dead jobs of those keys back under their locks, due now; return each one's kind.

        ``newest_only``: no letter whose job has a newer one, be that among the ids or not.
        """
        params = {"topic": topic, "ids": list(ids), "newest_only": newest_only, "now": None}
        steps: list[Step] = [locking_jobs(topic, keys), (KICK_JOBS, params)]
        _, kicked = fetch_all(using, steps)
        return dict(kicked)

    def deferred(
        self, kind: str, horizon: int, *, after: int, after_id: int, limit: int,
        now: int | None = None, using: str = DEFAULT_DB_ALIAS,
    ) -> list[DeferredRow]:  # fmt: skip
        """Return what falls due within the horizon, in that order from behind that message."""
        params = {
            "kind": kind, "horizon": horizon, "after": after, "after_id": after_id,
            "limit": limit, "now": now,
        }  # fmt: skip
        return rows_of(DeferredRow, fetch(using, DEFERRED_JOBS, params))

    def recall(
        self, ids: Sequence[int], *, wait: int, spread: int, now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[int]:  # fmt: skip
        """Have those that are deferred fall due after ``wait`` ms, within ``spread`` ms of that.

        Returns the ids of those that now come earlier, or would have been as early.
        """
        params = {"ids": list(ids), "wait": wait, "spread": spread, "now": now}
        return column_of(fetch(using, RECALL_JOBS, params))

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


class IdempotencyKeyManager(models.Manager[M]):
    """The statements of idempotency keys, in the manner of MessageManager."""

    def hold(
        self, lock: int, scope: str, key: str, age: int, *, using: str = DEFAULT_DB_ALIAS
    ) -> tuple[bool, AnswerRow | None]:
        """Begin a transaction that holds the key; return whether, and the answer kept under it.

        Nobody else holds it until the end. One that is older than ``age`` counts as none.
        """
        params = {"scope": scope, "key": key, "age": age, "now": None}
        # Two statements: the second sees what the holder before has committed.
        steps: list[Step] = [(TRY_KEY, {"lock": lock}), (READ_ANSWER, params)]
        ((is_held,),), rows = fetch_all_at_once(using, steps)
        return is_held, first_row(AnswerRow, rows)

    def save(
        self, scope: str, key: str, answer: AnswerRow, *, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Keep the answer under the key, instead of one too old to be replayed."""
        execute(using, SAVE_ANSWER, {"scope": scope, "key": key, **answer._asdict(), "now": None})

    def prune(self, age: int, *, limit: int = 1000, using: str = DEFAULT_DB_ALIAS) -> int:
        """Delete up to ``limit`` answers older than the age; return how many."""
        return execute(using, PRUNE_ANSWERS, {"age": age, "limit": limit, "now": None})


def _locking_topic(topic: str) -> Step:
    return LOCK_TOPIC, {"topic": topic}


def _of_job(topic: str, key: str) -> dict[str, Any]:
    return {"topic": topic, "key": key}


def _adding(
    topic: TopicRow, jobs: Sequence[Offered], places: Sequence[str], *, can_update: bool
) -> tuple[str, dict[str, Any]]:
    columns: list[Row] = list(zip(*jobs, strict=True))
    names = ("keys", "kinds", "payloads", "schedules", "delays", "headers")
    arrays = {name: list(column) for name, column in zip(names, columns, strict=True)}
    shared = {
        "topic": topic.name, "shards": topic.shards, "hosts": topic.hosts,
        "places": list(places), "now": None,
    }  # fmt: skip
    return (PUT_JOBS if can_update else ADD_JOBS), {**arrays, **shared}
