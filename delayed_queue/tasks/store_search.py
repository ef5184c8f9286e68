"""The statements of the list of tasks: waiting and running ones, searches, charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.db.sql import CLOCK, column_of
from delayed_queue.db.statements import fetch
from delayed_queue.queue.store.fragments import ALL_TIMES, first_rows

# At most N payloads of results, and of waiting messages, are read for a search.
SCANNED: Final = 10_000

_FIRST_WAITING: Final = first_rows(
    'id, payload, "scheduledAt"',
    "delayed_queue",
    f"""%(states)s::text <> 'running'
            AND "pKind" = wanted.kind
            AND {ALL_TIMES}
            AND ("lockUuid" IS NULL OR "scheduledAt" <= (SELECT now FROM clock))""",
    '"scheduledAt", id',
    limit="%(scanned)s::integer",
)
# Waiting and running tasks of some kinds, the running ones first: only those whose key is in a
# range, or whose payload has one of the texts. Without them the first of each kind are returned;
# with them at most %(scanned)s of each kind are read.
# Reads: delayed_queue__LockUuidPlusIdIndex, delayed_queue__KindPlusScheduledAtIndex,
# delayed_queue__PKeyPlusKindUniqueIndex.
UNDER_WAY: Final[LiteralString] = f"""{CLOCK}
SELECT id
FROM (
    (SELECT id, payload, "scheduledAt", 1 AS place, false AS is_named
    FROM delayed_queue
    WHERE %(states)s::text <> 'waiting'
        AND "lockUuid" >= ''
        AND "scheduledAt" > (SELECT now FROM clock)
        AND "pKind" = ANY (%(kinds)s::text[])
    ORDER BY "lockUuid", id
    LIMIT %(scanned)s::integer)
    UNION ALL
    SELECT first.id, first.payload, first."scheduledAt", 2, false
    FROM unnest(%(kinds)s::text[]) AS wanted (kind)
    CROSS JOIN LATERAL (
        {_FIRST_WAITING}
    ) AS first
    UNION ALL
    (SELECT id, NULL, "scheduledAt", 3, true
    FROM delayed_queue
    WHERE "pKey" >= %(first)s::text
        AND "pKey" <= %(last)s::text
        AND "pKind" = ANY (%(kinds)s::text[])
    ORDER BY "pKey", "pKind"
    LIMIT %(limit)s::integer)
) AS task
WHERE is_named
    OR %(texts)s::bytea[] IS NULL
    OR EXISTS (
        SELECT 1
        FROM unnest(%(texts)s::bytea[]) AS wanted (text)
        WHERE position(wanted.text IN payload) > 0
    )
ORDER BY place, "scheduledAt", id
LIMIT %(limit)s::integer
"""

# The newest recorded tasks whose id is in a range, whose path is one of some, or whose payload has
# a text. For the text at most %(scanned)s of the newest results are read.
# Reads: the primary key of results, task_result_task.
SEARCH_RESULTS: Final[LiteralString] = """
SELECT id::text
FROM (
    (SELECT id
    FROM delayed_queue_task_result
    WHERE id >= %(first)s::uuid
        AND id <= %(last)s::uuid
    ORDER BY id DESC
    LIMIT %(limit)s::integer)
    UNION
    SELECT newest.id
    FROM unnest(%(tasks)s::text[]) AS wanted (task)
    CROSS JOIN LATERAL (
        SELECT id
        FROM delayed_queue_task_result
        WHERE task = wanted.task
        ORDER BY id DESC
        LIMIT %(limit)s::integer
    ) AS newest
    UNION
    SELECT id
    FROM (
        SELECT id, payload
        FROM delayed_queue_task_result
        WHERE %(text)s::bytea IS NOT NULL
        ORDER BY id DESC
        LIMIT %(scanned)s::integer
    ) AS newest
    WHERE position(%(text)s::bytea IN payload) > 0
) AS found
ORDER BY id DESC
LIMIT %(limit)s::integer
"""

# Finished tasks of a path by steps of time, with percentiles of their last run. At most %(limit)s
# of the newest results are read. Reads: task_result_task.
TASK_STEPS: Final[LiteralString] = """
SELECT
    "finishedAt" / %(step)s::bigint,
    count(*),
    count(*) FILTER (WHERE status = 'FAILED'),
    percentile_disc(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY "finishedAt" - "lastAttemptedAt"),
    min(at)
FROM (
    SELECT status, "finishedAt", "lastAttemptedAt", "scheduledAt" AS at
    FROM delayed_queue_task_result
    WHERE task = %(task)s
        AND id >= %(first)s::uuid
    ORDER BY id DESC
    LIMIT %(limit)s::integer
) AS recent
WHERE "finishedAt" IS NOT NULL
GROUP BY 1
ORDER BY 1
"""


def under_way(
    kinds: Sequence[str], *, using: str = DEFAULT_DB_ALIAS, states: str = "", limit: int = 50,
    texts: Sequence[bytes] | None = None, first: str | None = None, last: str | None = None,
) -> list[int]:  # fmt: skip
    """Return ids of messages; ``states`` is "waiting", "running", or empty for both."""
    params = {
        "kinds": list(kinds), "states": states, "limit": limit, "texts": texts, "first": first,
        "last": last, "now": None,
        "scanned": max(limit, SCANNED // (len(kinds) or 1)) if texts else limit,
    }  # fmt: skip
    return list(dict.fromkeys(column_of(fetch(using, UNDER_WAY, params))))


def search_results(*, using: str = DEFAULT_DB_ALIAS, **wanted: Any) -> list[str]:
    """Return the ids of results by ``first`` and ``last`` id, ``tasks`` and ``text``."""
    return column_of(fetch(using, SEARCH_RESULTS, wanted | {"scanned": SCANNED, "limit": 200}))


def task_steps(task: str, first: str, step: int, *, using: str = DEFAULT_DB_ALIAS) -> list[Any]:
    """Return (step, finished, failed, [p50, p99] in milliseconds, earliest) of a path."""
    params = {"task": task, "first": first, "step": step, "limit": 2 * SCANNED}
    return list(fetch(using, TASK_STEPS, params))
