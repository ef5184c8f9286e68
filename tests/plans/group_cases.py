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
        Case("TAKE_TURN", KIND, set(), rows=0),
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
    ]  # fmt: skip


def claims() -> list[Case]:
    """As many messages as groups are looked at, and a few; no more are read or sorted for it."""
    claim: dict[str, Any] = {
        "rest": 0, "id": 0, "rows": 100, "now": NOW, "lease_id": "mine", "retaken_id": "again",
        "lease": LEASE, "wait": None,
    }  # fmt: skip
    return [
        Case(
            "CLAIM_BY_GROUP",
            {**claim, **kind, "since": since, "limit": n, "groups": n, "at": at},
            {GROUPS, DUE, PRIMARY, PAUSES}, n=n + 110, rows=12, buffers=120, fixed=600,
        )
        for kind, at in ((KIND, NO_FLOOR), (ONE, NOW - 3000), (ORDERED, NO_FLOOR))
        for n in (1, 100, 256)
        for since in ("", "group-190")
    ]  # fmt: skip


def limits() -> list[Case]:
    none = {"concurrency": None, "interval": None, "burst": None}
    rules = {
        **none, "declared": "{}", "is_change": False, "is_ordered": False, "is_fair": True,
        "blocks_on_dead": False, "queue_interval": None, "queue_burst": None,
    }  # fmt: skip
    group = {**KIND, "group": "group-010"}
    return [
        Case("DECLARE", {**KIND, **rules}, {PAUSES}, rows=4, buffers=40),
        Case("DECLARE", {"kind": "new|json", **rules}, {PAUSES}, rows=4, buffers=40),
        Case("LIMIT_GROUP", {**group, **none, "weight": 2}, {PAUSES}, buffers=40),
        Case("PASS_DEAD", {**group, "now": NOW}, {PAUSES}, rows=4, buffers=40),
        Case("COPY_LIMITS", {**KIND, "kinds": ["other|json"]}, {PAUSES}, n=22, rows=4, buffers=40),
        Case("LOWER_SPENT", {**KIND, "now": NOW}, {PAUSES}, n=22, rows=3, buffers=20),
        Case("TIDY", {**KIND, "now": NOW}, {PAUSES}, n=22, rows=2, buffers=20),
    ]  # fmt: skip


GROUP_CASES: Final = [*looks(), *claims(), *limits()]
