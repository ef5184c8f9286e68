"""The rows by which workers tell operators what they do; nothing is decided by them."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import CLOCK

# A new row for each call: the same worker may have one that it lost sight of, and PRUNE_WORKERS
# removes that. Reads: nothing.
ENLIST: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_worker (
    name, host, pid, process, queues, version, "startedAt", "heartbeatAt"
)
SELECT
    %(name)s, %(host)s, %(pid)s, %(process)s, %(queues)s::jsonb, %(version)s,
    COALESCE(%(started_at)s::bigint, now), now
FROM clock
RETURNING id, "startedAt"
"""
)

# Say that the worker lives, and what it has done. No row: somebody removed it, and the worker
# enlists anew. Reads: the primary key.
BEAT: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue_worker
SET "heartbeatAt" = (SELECT now FROM clock),
    "inFlight" = %(in_flight)s,
    done = %(done)s,
    failed = %(failed)s,
    dead = %(dead)s,
    lost = %(lost)s,
    rates = %(rates)s::jsonb,
    "leaseIds" = %(lease_ids)s::jsonb
WHERE id = %(id)s
"""
)

# Reads: the primary key.
RETIRE: Final[LiteralString] = """
DELETE FROM delayed_queue_worker
WHERE id = %(id)s
"""

# Delete rows that have been silent for longer than the age, the most silent first, passing over
# those that another prune or a late heartbeat holds. Their messages are none of its business:
# leases run out by themselves. Reads: worker_heartbeat, then the primary key.
PRUNE_WORKERS: Final[LiteralString] = (
    CLOCK
    + """
DELETE FROM delayed_queue_worker
WHERE id = ANY (ARRAY(
    SELECT id
    FROM delayed_queue_worker
    WHERE "heartbeatAt" < (SELECT now FROM clock) - %(age)s::bigint
    ORDER BY "heartbeatAt", id
    LIMIT (SELECT %(limit)s::integer)
    FOR UPDATE SKIP LOCKED
))
"""
)

# For each queue name, how many workers serve it that gave a sign of life within the age, and how
# many messages per second they have handled of late. Of so many workers at most; the limit is one
# that the planner cannot see, for the reason given at _EARLIEST_DUE. Reads: worker_heartbeat.
THROUGHPUT: Final[LiteralString] = (
    CLOCK
    + """,
alive AS MATERIALIZED (
    SELECT queues, rates
    FROM delayed_queue_worker
    WHERE "heartbeatAt" > (SELECT now FROM clock) - %(age)s::bigint
    ORDER BY "heartbeatAt" DESC, id DESC
    LIMIT (SELECT %(limit)s::integer)
)
SELECT queue.name, count(*), COALESCE(sum((rates ->> queue.name)::float8), 0)
FROM alive
CROSS JOIN LATERAL jsonb_array_elements_text(queues) AS queue (name)
GROUP BY queue.name
"""
)
