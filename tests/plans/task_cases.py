"""The cases of the tasks: what is recorded of attempts, how results are found, cancelled, kept."""

from __future__ import annotations

from typing import Any, Final

from tests.plans.case import DEAD_KEYS, DUE, KEYS, LEASES, PAUSES, PRIMARY, Case, lease_ids
from tests.plans.conftest import NOW

RESULTS: Final = "delayed_queue_task_result_rest_pkey"
PRIORITIES: Final = "task_priority_queue"
TASK: Final = "delayed_queue_task_result_rest_task_id_idx"
TABLE: Final = "delayed_queue_task_result_rest"


def _id(number: int) -> str:
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _attempts(n: int) -> dict[str, Any]:
    """Attempts at leased messages, whose ids the test puts in."""
    return {
        "ids": n, "messages": n, "leases": lease_ids(10), "workers": "[]", "now": NOW,
        "results": [_id(1_000_000 + each) for each in range(n)], "tasks": ["a.b", "a.c"],
        "backends": ["default"] * 2, "names": [1, 2] * (n // 2), "began": [5] * n,
        "ended": [1] * n, "values": ["1"] * n, "errors": None, "metadata": None,
    }  # fmt: skip


def tasks() -> list[Case]:
    cost: dict[str, Any] = {"rows": 6, "buffers": 60, "fixed": 300}
    attempts: dict[str, Any] = {"reads": {PRIMARY}, "or_reads": {LEASES}, "n": 100} | cost
    attempts["before_16"] = {"rows": 25}  # whole leases for ids
    kinds = ["bulk!7|json", "due|json", "bulk|json"]
    ranked: dict[str, Any] = {
        "kind": "due|json", "kinds": kinds, "lease_id": "x", "retaken_id": "y", "lease": 10**11,
        "now": NOW,
    }  # fmt: skip
    one = {"id": _id(700), "task": "a.b", "backend": "default"}
    cancel = {"message": 7, "created_at": NOW - 1_000_000, "errors": "[]", "now": NOW}
    enqueued = {"kind": "due|json", "key": "k", "payload": b"{}", "schedule_at": None, "now": NOW}
    return [
        Case("ACKNOWLEDGE_TASKS", _attempts(100), **attempts),
        Case("RECORD_ATTEMPTS", _attempts(100), **attempts),
        Case("NOTE_ENQUEUED", one | enqueued, {"delayed_queue_task_result_pkey"}, buffers=60),
        Case("FIND_RESULT", {"id": _id(700), "now": NOW}, {RESULTS, KEYS, DEAD_KEYS}, rows=6),
        Case("LOCK_KEY", {"key": "k"}, set(), rows=0),
        Case("FIND_KEY", {"key": "key-7"}, {KEYS}),
        Case("CANCEL", one | cancel, {PRIMARY}, rows=6, buffers=80),
        Case("CANCELLED_AMONG", {"results": [_id(7), _id(8)]}, {RESULTS}, n=2),
        Case("HASTEN", {"message": 7, "now": NOW}, {PRIMARY}, buffers=60),
        Case("USE_PRIORITY", {"queue": "queue-7", "priority": 7}, {PRIORITIES}),
        Case("PRIORITIES", {}, set(), n=2000, scans={"delayed_queue_task_priority"}),
        Case("TASK_NAMES", {"limit": 10}, {TASK}, n=10, rows=3, buffers=60),
        Case("TAKE_KEEPING", {"table": TABLE, "now": NOW}, set(), rows=0),
        # The catalogue: a row for each partition and index.
        Case(
            "DAYS", {"table": "delayed_queue_task_result"}, set(), n=1000, buffers=10,
            scans={"pg_inherits", "pg_class"},
        ),
        Case(
            "MISSING_RIGHTS", {"tables": [TABLE, "delayed_queue"]}, set(), n=1000, buffers=10,
            scans={"pg_class", "pg_partitioned_table"},
        ),
        Case(
            "PRUNE_REST", {"age": 1, "limit": 100, "now": NOW}, {RESULTS}, n=100_000, buffers=2,
            rows=2, scans={TABLE},
        ),
        Case("CLAIM_RANKED", ranked | {"limit": 100}, {DUE, PAUSES, PRIMARY}, n=100, **cost),
    ]  # fmt: skip
