"""Statements that add jobs: a key is unique over all kinds of a topic.

The kinds depend on the topic's shards and hosts, so the statements check that these are current.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.db.sql import CLOCK, KEPT_BEHIND, Step, array_of, beside
from delayed_queue.db.statements import run
from delayed_queue.http.store.topics import LOCK_JOBS, TopicRow
from delayed_queue.queue.store.claim import limit_waits_step
from delayed_queue.queue.store.fragments import REPLACE, TELL_HOLDER
from delayed_queue.queue.store.offer import Offered

# Cache the plans of the next statements, and plan them with indexes even on an empty table. Only
# for statements whose plans a test checks on a full table. JIT is off because forced indexes look
# expensive to the planner. The settings end with the transaction, as a pooler may share the
# session. A timeout replaces LIMIT_WAITS, which saves a statement; null keeps the current one.
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
KEPT_BEHIND.add(KEEP_PLANS)

# The jobs to add, numbered in input order; none if the shards or hosts of the topic have changed.
_OFFERED: Final[LiteralString] = """,
topic AS MATERIALIZED (
    SELECT 1
    FROM delayed_queue_topic
    WHERE name = %(topic)s
        AND shards = %(shards)s::integer
        AND hosts = %(hosts)s::text
),
offered AS MATERIALIZED (
    SELECT
        nextval('delayed_queue_id_seq') AS id,
        job.key,
        COALESCE(job.kind, %(kind)s::text) AS kind,
        job.payload,
        COALESCE(job.schedule_at, now + COALESCE(job.delay, %(delay)s::bigint)) AS due_at,
        job.headers,
        job.grouped,
        COALESCE(job.expires_at, now + job.expires_in) AS expires_at,
        now AS created_at
    FROM unnest(
        %(keys)b::text[], %(kinds)b::text[], %(payloads)b::bytea[], %(schedules)b::bigint[],
        %(delays)b::bigint[], %(headers)s::jsonb[], %(groups)s::text[], %(expiries)b::bigint[],
        %(lives)b::bigint[]
    ) AS job (key, kind, payload, schedule_at, delay, headers, grouped, expires_at, expires_in)
    CROSS JOIN clock
    CROSS JOIN topic
)"""


def _insert(column: LiteralString = "", value: LiteralString = "") -> LiteralString:
    return f"""
    INSERT INTO delayed_queue AS stored ({column}
        id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt", "group", "expiresAt"
    )
    SELECT{value}
        id, key, kind, payload, due_at, due_at, created_at, headers, created_at, grouped, expires_at
    FROM offered"""


# Add jobs whose ids are new in all kinds of the topic, dead jobs included, which no unique index
# covers. Runs under LOCK_JOBS. The first column is false if the shards have changed. A job that is
# not returned exists. Scalar sub-selects, because NOT EXISTS may become a join of all rows.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, dead_letter_key.
ADD_JOBS: Final[LiteralString] = f"""{CLOCK}{_OFFERED},
added AS ({_insert()}
    WHERE COALESCE(
            (
                SELECT false
                FROM delayed_queue
                WHERE "pKey" = offered.key
                    AND "pKind" = ANY (%(places)b::text[])
                LIMIT 1
            ),
            (
                SELECT false
                FROM delayed_queue_dead_letter
                WHERE "pKey" = offered.key
                    AND COALESCE("pKind" = ANY (%(places)b::text[]), false)
                LIMIT 1
            ),
            true
        )
    ORDER BY key COLLATE "C"
    ON CONFLICT ("pKey", "pKind") DO NOTHING
    RETURNING "pKey", "scheduledAt"
)
SELECT EXISTS (SELECT 1 FROM topic), added."pKey", true, added."scheduledAt", clock.now
FROM clock
LEFT JOIN added ON true
"""

# Add jobs, or replace those with the same ids, under LOCK_JOBS. A job that gets or loses its url
# moves to another kind, in its batch. Unlike an offer this compares headers and groups. A job that
# is not returned is unchanged. Dead jobs stay.
# A job to move may be gone when its row lock is granted, and be put back in a row that this
# snapshot misses. It is returned without a due time, and the caller repeats the statement.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, the primary key.
PUT_JOBS: Final[LiteralString] = f"""{CLOCK}{_OFFERED},
elsewhere AS MATERIALIZED (
    SELECT offered.key, place.id
    FROM offered
    CROSS JOIN LATERAL (
        SELECT id
        FROM delayed_queue
        WHERE "pKey" = offered.key
            AND "pKind" = ANY (%(places)b::text[])
            AND "pKind" <> offered.kind
        OFFSET 0
    ) AS place
),
moved AS (
    DELETE FROM delayed_queue AS stored
    WHERE id = ANY (ARRAY(SELECT id FROM elsewhere))
    RETURNING id, "pKey", "batchId", {TELL_HOLDER}
),
missed AS MATERIALIZED (
    SELECT DISTINCT key
    FROM elsewhere
    WHERE id <> ALL (ARRAY(SELECT id FROM moved))
),
added AS ({_insert(' "batchId",', ' (SELECT max("batchId") FROM moved WHERE "pKey" = key),')}
    WHERE key <> ALL (ARRAY(SELECT key FROM missed))
    ORDER BY key COLLATE "C" {REPLACE},
    "batchId" = COALESCE(stored."batchId", EXCLUDED."batchId")
    WHERE stored.payload <> EXCLUDED.payload
        OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
        OR CASE WHEN stored."versionAt" <> stored."createdAt" THEN NULL ELSE stored.headers END
            IS DISTINCT FROM EXCLUDED.headers
        OR stored."group" IS DISTINCT FROM EXCLUDED."group"
        OR CASE WHEN stored."versionAt" <> stored."createdAt" THEN NULL ELSE stored."expiresAt" END
            IS DISTINCT FROM EXCLUDED."expiresAt"
    RETURNING "pKey", xmax = 0 AS created, "scheduledAt"
),
written AS (
    SELECT "pKey", created AND "pKey" NOT IN (SELECT "pKey" FROM moved) AS created, "scheduledAt"
    FROM added
    UNION ALL
    SELECT key, false, NULL
    FROM missed
)
SELECT
    EXISTS (SELECT 1 FROM topic), written."pKey", written.created, written."scheduledAt", clock.now
FROM clock
LEFT JOIN written ON true
"""


class AddedRow(NamedTuple):
    """A job that was written, and the time of writing.

    Without ``scheduled_at`` it was not written, and must be tried again.
    """

    key: str
    is_created: bool
    scheduled_at: int | None
    now: int


def keeping_plans(timeout: int | None = None) -> Step:
    """Cache the plan of ADD_JOBS, and limit waits for locks by ``timeout``.

    Not for statements that put, delete or kick: on an empty table their plans may choose the index
    of due times, which is slow on a full one.
    """
    return KEEP_PLANS, {"timeout": timeout}


class AddStore:
    """The statements that add jobs."""

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
        """Write jobs under their locks and wake the channels; None if the shards have changed.

        Keys are distinct. Jobs that exist (with ``can_update``: unchanged) are left out. Rows
        without a due time must be tried again. In a transaction of its own it waits for locks at
        most ``timeout`` milliseconds, then raises OperationalError.
        """
        steps = [
            (LOCK_JOBS, {"topic": topic.name, "keys": [job.key for job in jobs]}),
            _adding(topic, jobs, places, can_update=can_update),
        ]
        if can_update:
            settings = [] if timeout is None else [limit_waits_step(timeout)]
        else:
            settings = [keeping_plans(timeout)]
        *_, answer = run(using, steps, channels, settings=settings)
        found = beside(AddedRow, answer)
        if not all(fits for fits, _ in found):
            return None
        return [added for _, added in found if added is not None]


def _adding(
    topic: TopicRow, jobs: Sequence[Offered], places: Sequence[str], *, can_update: bool
) -> tuple[str, dict[str, Any]]:
    columns = map(list, zip(*jobs, strict=True))
    keys, kinds, payloads, schedules, delays, headers, groups, expiries, lives = columns
    params = {
        "keys": keys, **_alike("kind", kinds), "payloads": payloads,
        "schedules": array_of(schedules), **_alike("delay", delays), "headers": array_of(headers),
        "groups": array_of(groups), "expiries": array_of(expiries), "lives": array_of(lives),
        "topic": topic.name, "shards": topic.shards,
        "hosts": topic.hosts, "places": list(places), "now": None,
    }  # fmt: skip
    return (PUT_JOBS if can_update else ADD_JOBS), params


def _alike(name: str, values: list[Any]) -> dict[str, Any]:
    """Return the common value, or the array: most jobs of a bulk differ in few columns."""
    are_alike = values.count(values[0]) == len(values)
    return {name: values[0] if are_alike else None, f"{name}s": None if are_alike else values}
