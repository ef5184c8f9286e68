"""The cases of claims by group, and of the limits."""

from __future__ import annotations

from typing import Any, Final

from delayed_queue.queue.store.claim import NO_FLOOR
from tests.plans.case import BEGUN, DUE, GROUPS, LEASE, PAUSES, Case
from tests.plans.conftest import NOW

KIND: Final = {"kind": "grouped|json"}
ONE: Final = {"kind": "one|json"}


def looks() -> list[Case]:
    """Of a group the first message, what is leased, and the last that waits: however many wait."""
    return [
        Case("TAKE_TURN", KIND, set(), rows=0),
        *(
            Case("RULES", {**kind, "now": NOW}, {PAUSES})
            for kind in (KIND, {"kind": "bulk|json"}, {"kind": "paused-1000|json"})
        ),
        *(
            Case(
                "GROUPS_AHEAD", {**KIND, "since": since, "groups": n, "now": NOW},
                {GROUPS, BEGUN, PAUSES}, n=n, rows=8, buffers=40, fixed=60,
            )
            for n in (1, 32, 256)
            for since in ("", "group-190")
        ),
        Case(
            "GROUPS_AHEAD", {**ONE, "since": "zz", "groups": 32, "now": NOW}, {GROUPS, PAUSES},
            rows=4, buffers=60,
        ),
        *(
            Case(
                "UNGROUPED_AHEAD", {"kind": kind, "at": at, "id": 0, "rows": 500, "now": NOW},
                {DUE}, n=500, rows=1, buffers=3,
            )
            for kind, at in (("grouped|json", NO_FLOOR), ("one|json", NOW - 3000))
        ),
    ]  # fmt: skip


def leased() -> list[Case]:
    lease: dict[str, Any] = {
        **KIND, "lease_id": "mine", "retaken_id": "again", "lease": LEASE, "now": NOW,
        "heads": [1], "head_groups": [None],
    }  # fmt: skip
    return [
        Case(
            "LEASE_GROUPS",
            {
                **lease, "groups": [f"group-{each:03}" for each in range(n)], "numbers": [2] * n,
                "retaken": [1] * n, "fresh": [2] * n, "takes_any": [False] * n,
            },
            {GROUPS, BEGUN}, n=n, rows=12, buffers=120, fixed=300,
        )
        for n in (1, 100)
    ]  # fmt: skip


def limits() -> list[Case]:
    none = {"concurrency": None, "interval": None, "burst": None}
    rules = {
        **none, "declared": "{}", "is_change": False, "is_ordered": False, "is_fair": True,
        "blocks_on_dead": False, "queue_interval": None, "queue_burst": None,
    }  # fmt: skip
    group = {**KIND, "group": "group-010"}
    return [
        Case("SPEND", {**KIND, "groups": ["group-010", "new"], "times": [1.0, 1.0], "now": NOW},
             {PAUSES}, n=2, buffers=40),
        Case("DECLARE", {**KIND, **rules}, {PAUSES}, rows=4, buffers=40),
        Case("DECLARE", {"kind": "new|json", **rules}, {PAUSES}, rows=4, buffers=40),
        Case("LIMIT_GROUP", {**group, **none, "weight": 2}, {PAUSES}, buffers=40),
        Case("PASS_DEAD", {**group, "now": NOW}, {PAUSES}, rows=4, buffers=40),
        Case("COPY_LIMITS", {**KIND, "kinds": ["other|json"]}, {PAUSES}, n=22, rows=4, buffers=40),
        Case("TIDY", {**KIND, "now": NOW}, {PAUSES}, n=22, rows=2, buffers=20),
    ]  # fmt: skip


GROUP_CASES: Final = [*looks(), *leased(), *limits()]
