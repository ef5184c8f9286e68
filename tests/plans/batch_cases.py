"""The statements of batches."""

from __future__ import annotations

from typing import Any, Final

from tests.plans.case import KEYS, Each, cases, leased
from tests.plans.rows import NOW

_BATCHES: Final = "delayed_queue_batch_pkey"
_MEMBERS: Final = "message_of_batch"
_LETTERS: Final = "dead_letter_of_batch"
# There are few batches, here 1,000: the planner may read all of them. PostgreSQL 15 does.
_FEW: Final = {"delayed_queue_batch"}

_NEW: Final = [f"joined-{each * 7919 % 100_000}" for each in range(500)]
_JOINED: Final[dict[str, Any]] = {
    "batch_id": 7, "message_id": None, "lease_id": None, "is_inside": True, "delay": 0,
    "kind": "members|json",
}  # fmt: skip


def _offers(n: int) -> dict[str, Any]:
    keys = [f"member-{each}" for each in range(n)] + _NEW[:n]
    return {
        "keys": Each(keys), "payloads": [b"y"] * 2 * n, "schedules": [NOW + 1] * 2 * n,
        "headers": [None] * 2 * n, "groups": [None] * 2 * n, "expiries": [None] * 2 * n,
    }  # fmt: skip


def _removed(n: int) -> dict[str, Any]:
    return {
        "batches": Each(list(range(1, n + 1))), "outcomes": ["done"] * n, "numbers": [1] * n,
    }  # fmt: skip


BATCH_CASES: Final = [
    *cases("NEXT_BATCH", max_rows=1),
    *cases("OPEN_BATCH", id=8_000, waits=False, then_kind="then|json", max_rows=10),
    *(
        case
        for name in ("JOIN_OR_UPDATE", "JOIN_IF_NOT_EXISTS")
        for n in (1, 500)
        for case in cases(
            name, _BATCHES, KEYS, **_JOINED, **_offers(n), n=2 * n, max_buffers=40,
            fixed=60,
        )
    ),
    *cases("MOVE_MEMBERS", KEYS, batch=8, kind="members|json", n=100,
           keys=[f"member-{each}" for each in range(100)]),
    *cases("HOLD_BATCH", _BATCHES, batch_id=7, message_id=None, lease_id=None, is_inside=False),
    *cases("CLOSE_BATCH", _BATCHES, id=9),
    *cases("CANCEL_BATCH", _BATCHES, id=9),
    *leased("COUNT_MEMBERS", dead=[], dropped=[], expired=[], scans=_FEW),
    *cases("COUNT_KEY", KEYS, key="member-7", kind="members|json", n=1_000,
           scans=_FEW),
    *cases("COUNT_KIND", _MEMBERS, kind=Each("members|json", "bulk|json"), n=10_000,
           max_rows=6, max_buffers=10, scans=_FEW),
    *(
        case
        for n in (1, 100)
        for case in cases("COUNT_REMOVED", **_removed(n), n=1_000, max_rows=8, scans=_FEW)
    ),
    *cases("FINISH_BATCHES", _MEMBERS, batches=Each([7], list(range(1, 101))), n=1_000,
           scans=_FEW),
    *cases("SWEEP_BATCHES", _MEMBERS, n=1_000, max_buffers=6, scans=_FEW),
    *cases("UNFINISHED_BATCHES", n=1_000, max_rows=2, max_buffers=3,
           scans=_FEW),
    *(
        case
        for n in (1, 100)
        for case in cases("COUNT_LEFT", _MEMBERS, _LETTERS, batches=Each(list(range(1, n + 1))),
                          cap=100, n=10 * n)
    ),
    *cases("FIRST_LEFT", _MEMBERS, _LETTERS, batch=7, limit=25),
    *cases("DROP_MEMBER", KEYS, key="member-7", kind="members|json"),
]  # fmt: skip
