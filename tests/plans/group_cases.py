"""The cases of claims by group, and of the limits."""

from __future__ import annotations

from typing import Any, Final

from delayed_queue.queue.store.claim import NO_FLOOR
from tests.plans.case import BEGUN, DUE, GROUPS, HELD, LEASE, PAUSES, PRIMARY, Case
from tests.plans.conftest import NOW

KIND: Final = {"kind": "grouped|json"}
ONE: Final = {"kind": "one|json"}
ORDERED: Final = {"kind": "ordered|json"}


def looks() -> list[Case]:
    """Of a group the first message, its leases, and the last that waits: however many wait."""
    return [
        Case("TAKE_TURN", {**KIND, "idle": 5_000}, set(), rows=0),
        *(
            Case("RULES", {**kind, "now": NOW}, {PAUSES})
            for kind in (KIND, {"kind": "bulk|json"}, {"kind": "paused-1000|json"})
        ),
        *(
            Case(
                "GROUPS_AHEAD", {**kind, "since": since, "groups": n, "now": NOW},
                {GROUPS, HELD, PAUSES, *begun}, n=n, rows=8, buffers=40, fixed=60,
            )
            for kind, begun in ((KIND, ()), (ORDERED, (BEGUN,)))
            for n in (1, 32, 256)
            for since in ("", "group-190")
        ),
        Case(
            "GROUPS_AHEAD", {**ONE, "since": "zz", "groups": 32, "now": NOW},
            {GROUPS, HELD, PAUSES}, rows=6, buffers=60,
        ),
        *(
            Case(
                "UNGROUPED_AHEAD", {"kind": kind, "at": at, "id": 0, "rows": 500, "now": NOW},
                {DUE}, n=500, rows=1, buffers=3,
            )
            for kind, at in (("grouped|json", NO_FLOOR), ("one|json", NOW - 3000))
        ),
    ]  # fmt: skip


def leases() -> list[Case]:
    """As many messages as are leased, and a few; no more are read or sorted for it."""
    lease: dict[str, Any] = {
        **KIND, "lease_id": "mine", "retaken_id": "again", "lease": LEASE, "now": NOW,
        "ungrouped": [1], "number": 1, "limit": 1000, "heads": [1], "head_groups": ["group-000"],
    }  # fmt: skip

    def shares(groups: list[str]) -> dict[str, Any]:
        n = len(groups)
        return {"groups": groups, "numbers": [2] * n, "retaken": [1] * n, "fresh": [2] * n}

    return [
        *(
            Case(
                "LEASE_GROUPS", {**lease, **shares([f"group-{each:03}" for each in range(n)])},
                {GROUPS, HELD, PRIMARY}, n=n, rows=12, buffers=120, fixed=300,
            )
            for n in (1, 100)
        ),
    ]  # fmt: skip


def limits() -> list[Case]:
    none = {"concurrency": None, "interval": None, "burst": None}
    rules = {
        **none, "declared": "{}", "is_change": False, "is_ordered": False, "is_fair": True,
        "blocks_on_dead": False, "queue_interval": None, "queue_burst": None,
    }  # fmt: skip
    group = {**KIND, "group": "group-010"}
    return [
        Case(
            "SPEND", {**KIND, "groups": ["group-010", "new"], "until": [1.0, 1.0]}, {PAUSES},
            n=2, buffers=40,
        ),
        Case("DECLARE", {**KIND, **rules}, {PAUSES}, rows=4, buffers=40),
        Case("DECLARE", {"kind": "new|json", **rules}, {PAUSES}, rows=4, buffers=40),
        Case("LIMIT_GROUP", {**group, **none, "weight": 2}, {PAUSES}, buffers=40),
        Case("PASS_DEAD", {**group, "now": NOW}, {PAUSES}, rows=4, buffers=40),
        Case("COPY_LIMITS", {**KIND, "kinds": ["other|json"]}, {PAUSES}, n=22, rows=4, buffers=40),
        Case("LOWER_SPENT", {**KIND, "now": NOW}, {PAUSES}, n=22, rows=3, buffers=20),
        Case("TIDY", {**KIND, "now": NOW}, {PAUSES}, n=22, rows=2, buffers=20),
    ]  # fmt: skip


GROUP_CASES: Final = [*looks(), *leases(), *limits()]
