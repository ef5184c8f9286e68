"""The rows of workers: the statements, and the manager that runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.sql import CLOCK, row_of, rows_of
from delayed_queue.db.statements import execute, fetch

# A new row for each call: the same worker may have one that it lost sight of, and PRUNE_WORKERS
# removes that. Reads: nothing.
ENLIST: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_worker (
    name, host, pid, process, queues, version, holder, "startedAt", "heartbeatAt"
)
SELECT
    %(name)s, %(host)s, %(pid)s, %(process)s, %(queues)s::jsonb, %(version)s,
    %(holder)s,
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
    "leaseIds" = %(lease_ids)s::jsonb,
    scanned = %(scanned)s,
    "scanSeconds" = %(scan_seconds)s,
    refused = %(refused)s::jsonb
WHERE id = %(id)s
"""
)

# Reads: the primary key.
RETIRE: Final[LiteralString] = """
DELETE FROM delayed_queue_worker
WHERE id = %(id)s
"""

# Delete the row of a process that died, found by the id with which its lease ids begin.
# Reads: worker_holder.
RETIRE_HOLDER: Final[LiteralString] = """
DELETE FROM delayed_queue_worker
WHERE holder = %(holder)s
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

# For each queue name, the number of workers that serve it and have beaten within the age, and how
# many messages per second they have handled of late. Of so many workers at most; the limit is one
# that the planner cannot see, as in select_due. Reads: worker_heartbeat.
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

# Writes that the database refuses workers that have beaten within the age, by queue and SQLSTATE.
# Reads: worker_heartbeat, for at most as many workers as THROUGHPUT.
REFUSED_WRITES: Final[LiteralString] = (
    CLOCK
    + """,
alive AS MATERIALIZED (
    SELECT refused
    FROM delayed_queue_worker
    WHERE "heartbeatAt" > (SELECT now FROM clock) - %(age)s::bigint
    ORDER BY "heartbeatAt" DESC, id DESC
    LIMIT (SELECT %(limit)s::integer)
)
SELECT queue.name, state.code, sum(state.count::bigint)::bigint
FROM alive
CROSS JOIN LATERAL jsonb_each(refused) AS queue (name, states)
CROSS JOIN LATERAL jsonb_each_text(states) AS state (code, count)
GROUP BY queue.name, state.code
ORDER BY queue.name, state.code
"""
)

MAX_SUMMED: Final = 10_000

M = TypeVar("M", bound=models.Model)


class WorkerCounts(NamedTuple):
    """The leases and counts of a worker since it started."""

    in_flight: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0


class SlowestScan(NamedTuple):
    """The queue of which a full scan takes a worker the longest; none before the first."""

    scanned: str = ""
    scan_seconds: float = 0.0


NOT_SCANNED: Final = SlowestScan()


class EnlistedRow(NamedTuple):
    """A worker's new row, and when the worker started."""

    id: int
    started_at: int


class ThroughputRow(NamedTuple):
    """A queue by its name: how many live workers serve it, and their messages per second."""

    queue: str
    workers: int
    rate: float


class RefusedRow(NamedTuple):
    """Writes about messages of a queue that the database refused lately with one SQLSTATE."""

    queue: str
    sqlstate: str
    number: int


class WorkerManager(models.Manager[M]):
    """The statements of the heartbeat, in the manner of MessageManager."""

    def enlist(
        self,
        name: str,
        host: str,
        pid: int,
        *,
        process: int = 0,
        holder: str = "",
        queues: Sequence[str] = (),
        version: str = "",
        started_at: int | None = None,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> EnlistedRow:
        """Add a worker's row; ``started_at`` keeps the time of one that was lost."""
        params = {
            "name": name, "host": host, "pid": pid, "process": process,
            "queues": json.dumps(list(queues)), "version": version, "holder": holder,
            "started_at": started_at, "now": now,
        }  # fmt: skip
        return row_of(EnlistedRow, fetch(using, ENLIST, params))

    def beat(
        self,
        id: int,  # noqa: A002 - the column's name, as in every other row
        counts: WorkerCounts,
        *,
        rates: Mapping[str, float] | None = None,
        lease_ids: Sequence[str] = (),
        scan: SlowestScan = NOT_SCANNED,
        refused: Mapping[str, Mapping[str, int]] | None = None,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:
        """Say that the worker lives; False when its row is gone and it must enlist anew."""
        params = {
            **counts._asdict(), **scan._asdict(), "id": id, "now": now,
            "rates": json.dumps(dict(rates or {})), "lease_ids": json.dumps(list(lease_ids)),
            "refused": json.dumps(dict(refused or {})),
        }  # fmt: skip
        return execute(using, BEAT, params) > 0

    def retire(self, id: int, *, using: str = DEFAULT_DB_ALIAS) -> bool:  # noqa: A002
        """Remove the worker's row; return whether it was there."""
        return execute(using, RETIRE, {"id": id}) > 0

    def remove_holder(self, holder: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Remove the row of a process that died; return whether it was there."""
        return execute(using, RETIRE_HOLDER, {"holder": holder}) > 0

    def prune(
        self, age: int, limit: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> int:
        """Remove up to ``limit`` rows that have been silent for longer; return how many."""
        return execute(using, PRUNE_WORKERS, {"age": age, "limit": limit, "now": now})

    def throughput(
        self, age: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> list[ThroughputRow]:
        """Sum up the workers that gave a sign of life within the age, by queue."""
        rows = fetch(using, THROUGHPUT, {"age": age, "limit": MAX_SUMMED, "now": now})
        return rows_of(ThroughputRow, rows)

    def refused(
        self, age: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> list[RefusedRow]:
        """Return the writes refused lately to workers that have beaten within the age."""
        params = {"age": age, "limit": MAX_SUMMED, "now": now}
        return rows_of(RefusedRow, fetch(using, REFUSED_WRITES, params))
