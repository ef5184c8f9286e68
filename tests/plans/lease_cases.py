"""The cases of claims and leases."""

from __future__ import annotations

from typing import Any

from delayed_queue.queue.store.claim import NO_FLOOR
from tests.plans.case import DUE, LEASE, LEASES, PAUSES, PRIMARY, Case, lease_ids, of_ids
from tests.plans.conftest import NOW


def claims() -> list[Case]:
    return [*taken(), Case("TRY_LOCK", {"kind": "bulk|json"}, set(), rows=0), *next_due()]


def taken() -> list[Case]:
    due: list[dict[str, Any]] = [
        {"kind": kind, "limit": limit, "floor": floor, "floor_id": floor_id, "now": NOW}
        # The last in the midst of the bulk, which is due at that one instant.
        for floor, floor_id in ((NO_FLOOR, 0), (NOW - 150_000, 0), (NOW - 60_000, 100_000))
        for kind in ("bulk|json", "due|json", "mixed|json")
        for limit in (1, 100, 1000)
    ]
    lease = {"lease_id": "mine", "retaken_id": "again", "lease": LEASE}
    cost: dict[str, Any] = {"rows": 5, "buffers": 40, "fixed": 400}
    return [
        *(
            Case(name, {**each, **more}, {DUE, PRIMARY, PAUSES}, n=each["limit"], **cost)
            for name, more in (
                ("CLAIM", lease), ("CLAIM_STRICT", {**lease, "waits": False}), ("CONSUME", {}),
            )
            for each in due
        ),
    ]  # fmt: skip


def next_due() -> list[Case]:
    return [
        *(
            Case(
                "NEXT_DUE_OF_KINDS",
                {
                    "kinds": ["bulk|json"] * 100 + [f"none-{n}|json" for n in range(400)],
                    "floors": [floor] * 500, "horizon": horizon, "now": NOW,
                },
                {DUE}, n=500, rows=1,
            )
            for floor, horizon in ((NO_FLOOR, 3_000), (NOW - 150_000, 10_000))
        ),
        *(
            Case(
                "NEXT_DUE", {"kinds": kinds, "now": now, "horizon": horizon}, {DUE}, n=len(kinds),
                rows=1,
            )
            for horizon in (3_000, LEASE)
            # The bulk is 100,000 messages that are all next.
            for kinds, now in (
                (["bulk|json"], NOW - 60_001), (["scheduled|json"], NOW), (["mixed|json"], NOW),
                (["leased|json"], NOW), (["bulk|json", "bulk#1|json"], NOW - 60_001),
                (["mixed|json", "leased|json"], NOW),
            )
        ),
        Case(
            "NEXT_DUE", {"kinds": ["bulk!7|json", "due|json", "bulk|json"], "horizon": 3000,
            "now": NOW}, {DUE}, n=3, rows=3,
        ),
    ]  # fmt: skip


def rows_of(n: int) -> int:
    """Return how many rows of a lease may be read for each id.

    Drained, PostgreSQL 15 looks for one id through its whole lease, of a hundred messages.
    """
    return 8 if n > 1 else 110


def leases() -> list[Case]:
    return [*acknowledged(), *of_the_dead(), *given_back()]


def acknowledged() -> list[Case]:
    lease = {"lease_id": "lease-1700"}
    return [
        *(
            Case(
                "LEASED_MEMBERS",
                {"ids": n, "lease_id": lease_ids(1)[0], "kind": "leased|json"},
                {PRIMARY}, n=n, rows=rows_of(n), buffers=40, fixed=300, or_reads={LEASES},
            )
            for n in (1, 100)
        ),
        *of_ids("ACKNOWLEDGE", PRIMARY, (1, 100), **lease),
        *of_ids("ACKNOWLEDGE", PRIMARY, (100,), lease_id=None),
        Case("ACKNOWLEDGE_LEASE", {"lease_id": "lease-1750"}, {LEASES}, n=100),
        *(
            Case(
                "ACKNOWLEDGE_MEMBERS", {"ids": n, "lease_ids": lease_ids(held)},
                {PRIMARY}, n=n, rows=rows_of(n), buffers=40, fixed=300, or_reads={LEASES},
            )
            for n, held in ((1, 1), (100, 1), (1000, 10))
        ),
        *(
            Case(
                "ACKNOWLEDGE_LEASES", {"lease_ids": lease_ids(held)},
                # The earlier ones leave dead versions under the same lease.
                {LEASES}, n=held * 100, rows=10, fixed=300,
            )
            for held in (1, 10)
        ),
    ]  # fmt: skip


def of_the_dead() -> list[Case]:
    return [
        *(
            Case(
                "RELEASE_LEASES", {"ids": 8, "lease_ids": lease_ids(held), "now": NOW + LEASE},
                {LEASES}, n=held * 100, rows=10, buffers=40, fixed=300,
            )
            for held in (1, 10)
        ),
        *(
            Case(
                "GIVE_BACK",
                {
                    "lease_ids": lease_ids(held), "begun": [1, 2], "suspects": lease_ids(1),
                    "refund": 1, "mark": "crashed", "error": "signal 9", "now": NOW + LEASE,
                },
                {LEASES}, n=held * 100, rows=10, buffers=40, fixed=300,
            )
            for held in (1, 10)
        ),
        *(
            # It looks twice at what it tells of, and earlier cases left dead versions.
            Case("HELD", {"ids": n}, {PRIMARY}, n=n, rows=8, buffers=40, fixed=300)
            for n in (1, 100, 1000)
        ),
        *of_ids(
            "COUNT_CRASH", PRIMARY, (1, 100), lease_id="crashed", count=1, error="signal 9",
            now=NOW + LEASE,
        ),
    ]  # fmt: skip


def given_back() -> list[Case]:
    lease = {"lease_id": "lease-1700"}
    error = {"error": "Traceback", "now": NOW}
    release = {**lease, **error, "delay": LEASE, "refund": 0}
    restored = {
        "id": 10**9, "key": "restored", "kind": "due|json", "payload": b"y", "due_at": NOW,
        "scheduled_at": NOW, "lease_id": "mine", "created_at": NOW, "attempts": 1,
        "headers": None, "group": None, "first_error": None, "last_error": None,
    }  # fmt: skip
    return [
        *of_ids("RELEASE", PRIMARY, (1, 100), **release),
        *of_ids("RELEASE", PRIMARY, (2, 99), **{**release, "delay": None, "refund": 1}),
        *of_ids(
            "DEAD_LETTER", PRIMARY, (1, 100), **lease, **error, reason="rejected", fingerprint=""
        ),
        *(
            Case(
                "EXTEND", {"ids": n, "lease_ids": lease_ids(held), "lease": LEASE, "now": NOW},
                # Its own earlier runs leave dead versions under the same lease.
                {PRIMARY}, n=n, rows=rows_of(n), buffers=40, fixed=300, or_reads={LEASES},
            )
            for n, held in ((1, 1), (100, 1), (1000, 10))
        ),
        Case("RESTORE", restored, set(), rows=0),
    ]  # fmt: skip
