"""The statements of dead letters and bulk runs."""

from __future__ import annotations

from typing import Any, Final

from delayed_queue.queue.store.dead_letters import family_params
from tests.plans.case import (
    DEAD_DIED,
    DEAD_GROUPS,
    DEAD_KEYS,
    DEAD_PRIMARY,
    KEYS,
    TOPICS,
    Each,
    cases,
)
from tests.plans.rows import NOW

DUE: Final = "due|json"
LETTERS: Final = [
    *cases("REDRIVE", DEAD_PRIMARY, KEYS, ids=Each(1, 1000), overwrite=Each(False, True),
           kind=Each(DUE, None), max_rows=6,
           scans={"delayed_queue_batch"}, **family_params()),
    *cases("LOCK_TOPICS_OF_LETTERS", ids=Each(1, 1000), kind=Each(DUE), most=200),
    *cases("LOCK_TOPICS_OF_LETTERS", DEAD_PRIMARY, ids=Each(1, 1000), kind=Each(None), most=200),
    *cases("LOCK_JOBS_OF_LETTERS", DEAD_PRIMARY, TOPICS, ids=Each(1, 200), kind=Each(DUE, None),
           most=200),
    *cases("LOCK_JOBS_OF_LETTERS", TOPICS, ids=Each(1, 200), kind=Each("no topic|json"), most=200),
    # Above the limit no job is locked.
    *cases("LOCK_JOBS_OF_LETTERS", ids=Each(1000), kind=DUE, most=200, max_rows=0),
    *cases("PRUNE_DEAD_LETTERS", DEAD_DIED, DEAD_PRIMARY, kind=Each("bulk|json", DUE), age=0,
           limit=1000),
    # 150 groups of a thousand or two; the statement counts ten of them.
    *(
        case
        for cap in (1, 1000)
        for case in cases(
            "DEAD_LETTER_GROUPS", DEAD_GROUPS, DEAD_PRIMARY, kinds=Each([DUE], None), limit=5000,
            shown=10, cap=Each(cap), n=150 + 10 * cap, max_rows=8,
        )
    ),
    *cases("DROP_DEAD_LETTERS", DEAD_PRIMARY, ids=Each(1, 1000)),
    *cases("COUNT_LETTERS", DEAD_PRIMARY, ids=Each(1, 1000), kind=DUE),
]  # fmt: skip

_RANGE: Final[dict[str, Any]] = {
    "group": None, "key_from": None, "key_before": None, "until": NOW,
}  # fmt: skip
_PAGE: Final[dict[str, Any]] = _RANGE | {"kind": DUE, "reason": Each(None, "rejected")}
_PREVIEW: Final[dict[str, Any]] = _PAGE | {
    "group": Each(None, "acme"),
    "since": 0,
    "cap": 1000,
    "n": 1000,
    "max_rows": 3,
    "max_buffers": 4,
}
_NEXT: Final[dict[str, Any]] = _PAGE | {
    "newest": 10**9, "after_at": 0, "after": 0, "limit": 900, "max_rows": 8, "max_buffers": 8,
}  # fmt: skip
_RUN: Final[dict[str, Any]] = _RANGE | {
    "newest": 1, "action": "redrive", "pace": 50, "most": None, "canary": 0, "deaths": 1,
    "since": 0, "total": 1, "is_cut": False, "why": "",
}  # fmt: skip
_GROUP: Final = f"{8:016}"
RUNS: Final = [
    *cases("START_RUN", "bulk_run_in_progress", **_RUN, kind=Each("kind-7", "new"),
           fingerprint="a"),
    *cases("START_RUN", "bulk_run_in_progress", **_RUN, kind=Each("kind-8"), fingerprint=None),
    *cases("PREVIEW_QUEUE", DEAD_DIED, **_PREVIEW),
    *cases("PREVIEW_GROUP", DEAD_GROUPS, **_PREVIEW, fingerprint=_GROUP),
    *cases("NEXT_OF_QUEUE", DEAD_DIED, DEAD_KEYS, **_NEXT, fingerprint=None),
    *cases("NEXT_OF_GROUP", DEAD_GROUPS, DEAD_KEYS, **_NEXT, fingerprint=_GROUP),
    *cases("LOCK_RUN", "bulk_run_next", now=NOW + 20_000),
    *cases("NEXT_RUN", "bulk_run_next"),
    *cases("ADVANCE_RUN", "delayed_queue_bulk_run_pkey", id=5, last_died_at=1, last_id=1, done=1,
           skipped=0, canary_keys="[]", is_canary_over=False, state="running", note="", wait=0),
    *cases("SWITCH_RUN", "delayed_queue_bulk_run_pkey", id=5, state="paused", states=["running"]),
    *cases("CANARY", KEYS, DEAD_KEYS, keys=[f"dead-{100_000 + n}" for n in range(100)], kind=DUE,
           fingerprints=[""] * 100, newest=0, n=100),
]  # fmt: skip

DEAD_LETTER_CASES: Final = [*LETTERS, *RUNS]
