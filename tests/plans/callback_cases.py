"""The cases of callbacks: endpoints, hosts, slots, attempts."""

from __future__ import annotations

from tests.plans.case import (
    ATTEMPT_STARTED,
    ENDPOINT,
    HOSTS,
    LEASES,
    PRIMARY,
    SLOTS,
    Case,
    lease_ids,
)
from tests.plans.conftest import NOW
from tests.plans.lease_cases import rows_of


def callbacks() -> list[Case]:
    return [*hosts(), *held(), *slots(), *attempts()]


def held() -> list[Case]:
    return [
        Case(
            "HOLD_LEASED", {"ids": n, "lease_ids": lease_ids(held)}, {PRIMARY}, n=n,
            rows=rows_of(n), buffers=40, fixed=300, or_reads={LEASES},
        )
        for n, held in ((1, 1), (100, 1), (500, 10))
    ]  # fmt: skip


def hosts() -> list[Case]:
    host = {"host": "host-100:443", "now": NOW}
    return [
        Case("READ_HOST", host, {HOSTS}),
        Case("OPEN_HOST", {**host, "pause": 1000, "reason": "x"}, {HOSTS}, buffers=60),
        Case("PROBE_HOST", {**host, "by": "me", "timeout": 1000}, {HOSTS}, buffers=60),
        Case(
            "END_PROBE",
            {**host, "by": "me", "event": "FAIL", "pause": 1, "longest": 9}, {HOSTS},
        ),
    ]  # fmt: skip


def slots() -> list[Case]:
    held = {
        "id": 1_000_100, "holder": "me", "wanted": 3, "used": 0, "concurrency": 5, "timeout": 1000,
    }  # fmt: skip
    return [
        Case("LOCK_SLOTS", {"id": 1_000_100}, {ENDPOINT}, buffers=60),
        Case("HOLD_SLOTS", {**held, "now": NOW}, {SLOTS}, n=10, rows=5, buffers=60),
    ]  # fmt: skip


def attempts() -> list[Case]:
    return [
        *(
            Case(
                "PRUNE_ATTEMPTS", {"age": 0, "limit": limit, "now": NOW}, {ATTEMPT_STARTED},
                n=limit, rows=4, buffers=20,
            )
            for limit in (100, 1000)
        ),
    ]  # fmt: skip
