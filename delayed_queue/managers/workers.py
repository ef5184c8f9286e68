"""The statements by which workers tell what they do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue import sql
from delayed_queue.statements import execute, fetch

MAX_SUMMED: Final = 10_000

M = TypeVar("M", bound=models.Model)


class WorkerCounts(NamedTuple):
    """What a worker holds and has done since it started."""

    in_flight: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0


class EnlistedRow(NamedTuple):
    """A worker's new row, and when the worker started."""

    id: int
    started_at: int


class ThroughputRow(NamedTuple):
    """A queue by its name: how many live workers serve it, and their messages per second."""

    queue: str
    workers: int
    rate: float


class WorkerManager(models.Manager[M]):
    """The statements of the heartbeat, in the manner of MessageManager."""

    def enlist(
        self,
        name: str,
        host: str,
        pid: int,
        *,
        process: int = 0,
        queues: Sequence[str] = (),
        version: str = "",
        started_at: int | None = None,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> EnlistedRow:
        """Add a worker's row; ``started_at`` keeps the time of one that was lost."""
        params = {
            "name": name, "host": host, "pid": pid, "process": process,
            "queues": json.dumps(list(queues)), "version": version, "started_at": started_at,
            "now": now,
        }  # fmt: skip
        return EnlistedRow._make(fetch(using, sql.ENLIST, params)[0])

    def beat(
        self,
        id: int,  # noqa: A002 - the column's name, as in every other row
        counts: WorkerCounts,
        *,
        rates: Mapping[str, float] | None = None,
        lease_ids: Sequence[str] = (),
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:
        """Say that the worker lives; False when its row is gone and it must enlist anew."""
        params = {
            **counts._asdict(), "id": id, "rates": json.dumps(dict(rates or {})),
            "lease_ids": json.dumps(list(lease_ids)), "now": now,
        }  # fmt: skip
        return execute(using, sql.BEAT, params) > 0

    def retire(self, id: int, *, using: str = DEFAULT_DB_ALIAS) -> bool:  # noqa: A002
        """Remove the worker's row; return whether it was there."""
        return execute(using, sql.RETIRE, {"id": id}) > 0

    def prune(
        self, age: int, limit: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> int:
        """Remove up to ``limit`` rows that have been silent for longer; return how many."""
        return execute(using, sql.PRUNE_WORKERS, {"age": age, "limit": limit, "now": now})

    def throughput(
        self, age: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> list[ThroughputRow]:
        """Sum up the workers that gave a sign of life within the age, by queue."""
        rows = fetch(using, sql.THROUGHPUT, {"age": age, "limit": MAX_SUMMED, "now": now})
        return [ThroughputRow._make(row) for row in rows]
