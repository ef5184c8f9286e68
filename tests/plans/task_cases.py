"""The statements of tasks: attempts, results, priorities."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import UUID

from tests.plans.case import DEAD_KEYS, DUE, KEYS, LEASES, PRIMARY, Each, cases, lease_ids
from tests.plans.rows import NOW

RESULTS: Final = "delayed_queue_task_result_rest_pkey"
TABLE: Final = "delayed_queue_task_result_rest"


def _id(number: int) -> str:
    return str(UUID(int=number))


def _attempts(messages: list[int]) -> str:
    return json.dumps([
        {"message": each, "id": _id(1_000_000 + number), "task": "a.b", "backend": "default",
         "began": 5, "ended": 1, "value": 1, "errors": None, "metadata": None}
        for number, each in enumerate(messages)
    ])  # fmt: skip


# Attempts at leased messages; the test inserts their ids.
_ATTEMPTS: Final[dict[str, Any]] = {
    "ids": 100,
    "leases": lease_ids(10),
    "workers": "[]",
    "attempts": _attempts,
}
_ONE: Final[dict[str, Any]] = {"id": _id(700), "task": "a.b", "backend": "default"}
TASK_CASES: Final = [
    # PostgreSQL 15 reads whole leases to find ids.
    *cases("ACKNOWLEDGE_TASKS", PRIMARY, **_ATTEMPTS, or_reads=LEASES, max_rows=25),
    *cases("RECORD_ATTEMPTS", PRIMARY, **_ATTEMPTS, or_reads=LEASES, max_rows=25),
    *cases("NOTE_ENQUEUED", "delayed_queue_task_result_pkey", **_ONE, kind="due|json",
           payload=b"{}"),
    *cases("FIND_RESULT", RESULTS, KEYS, DEAD_KEYS, id=_id(700), max_rows=6),
    *cases("LOCK_KEY", max_rows=0),
    *cases("FIND_KEY", KEYS),
    *cases("CANCEL", PRIMARY, **_ONE, message=7, created_at=NOW - 1_000_000, errors="[]",
           max_rows=6, fixed=60),
    *cases("CANCELLED_AMONG", RESULTS, results=[_id(7), _id(8)], n=2),
    *cases("HASTEN", PRIMARY, message=7),
    *cases("USE_PRIORITY", "task_priority_queue", queue="queue-7", priority=7),
    *cases("PRIORITIES", n=2000, scans={"delayed_queue_task_priority"}),
    # The first of each queue, and among all 20,000 leases those of tasks.
    *cases("UNDER_WAY", LEASES, DUE, kinds=["due|json", "bulk|json"], states=Each(""), texts=None,
           first=None, last=None, scanned=50, n=21_000, max_rows=1, max_buffers=3,
           or_reads=DUE),
    # A search, also by the beginning of a key.
    *cases("UNDER_WAY", DUE, KEYS, kinds=["due|json", "bulk|json"], states=Each("waiting"),
           texts=[b"y"], first="key-5", last="key-6", scanned=1000, n=12_000, max_rows=2),
    *cases("SEARCH_RESULTS", RESULTS, "delayed_queue_task_result_rest_task_id_idx",
           first=_id(7), last=_id(20), tasks=["shop.tasks.task_1", "shop.tasks.task_2"],
           text=b"none", scanned=1000, n=2000, max_rows=3),
    *cases("TASK_STEPS", "delayed_queue_task_result_rest_task_id_idx", task="shop.tasks.task_1",
           first=_id(1), step=900_000, limit=500, n=1000),
    *cases("TASK_NAMES", "delayed_queue_task_result_rest_task_id_idx", limit=Each(10)),
    *cases("TAKE_KEEPING", table=TABLE, max_rows=0),
    # The catalogue has a row for each partition and index.
    *cases("DAYS", table="delayed_queue_task_result", n=1000, scans={"pg_inherits", "pg_class"}),
    *cases("MISSING_RIGHTS", tables=[TABLE, "delayed_queue"], n=1000,
           scans={"pg_class", "pg_partitioned_table"}),
    *cases("PRUNE_REST", RESULTS, age=1, n=100_000, max_rows=2, max_buffers=2, scans={TABLE}),
]  # fmt: skip
