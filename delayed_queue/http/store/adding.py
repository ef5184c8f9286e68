"""Adding jobs: one key over the kinds of all shards and ways of a topic.

The kinds follow from the topic's shards and hosts: the statement says when they are others now.
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
KEPT_BEHIND.add(KEEP_PLANS)

# What is offered, numbered in input order as a batch of messages is; nothing when the topic has
# other shards than the kinds were chosen for.
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
        now AS created_at
    FROM unnest(
        %(keys)b::text[], %(kinds)b::text[], %(payloads)b::bytea[], %(schedules)b::bigint[],
        %(delays)b::bigint[], %(headers)s::jsonb[], %(groups)s::text[]
    ) AS job (key, kind, payload, schedule_at, delay, headers, grouped)
    CROSS JOIN clock
    CROSS JOIN topic
)"""

_COLUMNS: Final[LiteralString] = """
    INSERT INTO delayed_queue AS stored (
        id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt", "group"
    )
    SELECT id, key, kind, payload, due_at, due_at, created_at, headers, created_at, grouped
    FROM offered"""

# Add jobs whose ids no job of the topic has, in any kind, dead ones included. The first column
# says whether the shards were right: otherwise nothing was done. A job that is not returned
# exists. To run under LOCK_JOBS: a unique index holds within one kind only. Scalar sub-selects,
# because NOT EXISTS may become a join that reads the whole table.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, dead_letter_key.
ADD_JOBS: Final[LiteralString] = (
    CLOCK
    + _OFFERED
    + """,
added AS ("""
    + _COLUMNS
    + """
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
)

# Add jobs or replace those of the same ids, also in another kind of the topic: one that gets or
# loses its url moves. Unlike an offer it compares the headers too, which hold the url, and the
# group. A job that is not returned is as it was offered. Dead jobs stay beside. To run under
# LOCK_JOBS.
# A job that was there to be moved, and was gone when its row had been waited for, is not written,
# and returned without a due time: a transaction that had consumed it may have put it back, in a
# row that this snapshot does not see. The caller asks again for those.
# Reads: topic_name, delayed_queue__PKeyPlusKindUniqueIndex, the primary key.
PUT_JOBS: Final[LiteralString] = (
    CLOCK
    + _OFFERED
    + """,
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
    RETURNING id, "pKey", """
    + TELL_HOLDER
    + """
),
missed AS MATERIALIZED (
    SELECT DISTINCT key
    FROM elsewhere
    WHERE id <> ALL (ARRAY(SELECT id FROM moved))
),
added AS ("""
    + _COLUMNS
    + """
    WHERE key <> ALL (ARRAY(SELECT key FROM missed))
    ORDER BY key COLLATE "C" """
    + REPLACE
    + """
    WHERE stored.payload <> EXCLUDED.payload
        OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
        OR CASE WHEN stored."versionAt" <> stored."createdAt" THEN NULL ELSE stored.headers END
            IS DISTINCT FROM EXCLUDED.headers
        OR stored."group" IS DISTINCT FROM EXCLUDED."group"
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
)


class AddedRow(NamedTuple):
    """A job that was written: whether anew, when it is due, and the instant of writing.

    None as the due time is one that was not: who held it may have put it back, in another row.
    """

    key: str
    is_created: bool
    scheduled_at: int | None
    now: int


def keeping_plans(timeout: int | None = None) -> Step:
    """Keep the plan of ADD_JOBS, and limit waits for locks if ``timeout`` says so.

    Not before what puts, deletes and kicks: their plans made on an empty table may go by the
    index of due times when it has filled.
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
        """Write jobs under their locks, wake the channels; None when the shards are others.

        Keys are distinct. What exists already (or, with ``can_update``, is just so) is left out;
        rows without a due time were not written, and are to be asked for again. In a transaction
        of its own it waits for another's lock no longer than ``timeout`` milliseconds, then
        raises OperationalError.
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
    keys, kinds, payloads, schedules, delays, headers, groups = map(list, zip(*jobs, strict=True))
    params = {
        "keys": keys, **_alike("kind", kinds), "payloads": payloads,
        "schedules": array_of(schedules), **_alike("delay", delays), "headers": array_of(headers),
        "groups": array_of(groups), "topic": topic.name, "shards": topic.shards,
        "hosts": topic.hosts, "places": list(places), "now": None,
    }  # fmt: skip
    return (PUT_JOBS if can_update else ADD_JOBS), params


def _alike(name: str, values: list[Any]) -> dict[str, Any]:
    """Return the value of all, or the array: most jobs of a bulk differ in few columns."""
    are_alike = values.count(values[0]) == len(values)
    return {name: values[0] if are_alike else None, f"{name}s": None if are_alike else values}
