"""The cases of callbacks: endpoints, hosts, slots, attempts."""

from __future__ import annotations

from tests.plans.case import (
    ATTEMPT_KEY,
    ATTEMPT_STARTED,
    DUE,
    ENDPOINT,
    ENDPOINTS,
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
    return [*endpoints(), *hosts(), *recalled(), *held(), *slots(), *attempts()]


def endpoints() -> list[Case]:
    return [
        Case(
            "ENDPOINTS", {"origin": "https://host-100", "limit": 10_000}, {ENDPOINTS}, n=10, rows=3,
        ),
        *(
            Case(
                "ADD_ENDPOINT",
                {"origin": origin, "prefix": origin, "secret": "x", "now": NOW},
                {ENDPOINTS}, buffers=60,
            )
            for origin in ("https://host-100", "https://new")
        ),
        Case(
            "DISABLE_ENDPOINT",
            {"id": 1_000_100, "reason": "gone", "now": NOW}, {ENDPOINT}, buffers=60,
        ),
    ]  # fmt: skip


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
        Case("CLOSE_HOST", {"host": "host-100:443"}, {HOSTS}, buffers=60),
        Case("SHUT_HOST", {**host, "pause": 10**15, "reason": "x"}, {HOSTS}, buffers=60),
    ]  # fmt: skip


def recalled() -> list[Case]:
    return [
        *(
            Case(
                "DEFERRED_JOBS",
                {"kind": "scheduled|json", "horizon": 10**8, "after": after, "after_id": 0,
                 "limit": limit, "now": NOW},
                {DUE}, n=limit, rows=1,
            )
            for after in (0, NOW + 1000)
            for limit in (1, 500)
        ),
        *(
            Case(
                "RECALL_JOBS", {"ids": n, "wait": 0, "spread": 1000, "now": NOW}, {PRIMARY},
                n=n, rows=3, buffers=60,
            )
            for n in (1, 500)
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
    many = 200
    attempt = {
        "keys": ["k"] * many, "topics": ["t"] * many, "kinds": ["t|callback"] * many,
        "webhook_ids": ["msg_x"] * many, "attempts": [1] * many, "started_ats": [NOW] * many,
        "durations": [1] * many, "statuses": [None] * many, "failures": [""] * many,
        "details": [""] * many, "addresses": [""] * many, "excerpts": [""] * many,
        "are_ambiguous": [False] * many, "endpoint_ids": [1] * many,
        "urls": ["https://host-1/hook"] * many,
    }  # fmt: skip
    page = {"after": 0, "limit": 100}
    return [
        Case("ADD_ATTEMPTS", attempt, set(), n=many, rows=0, buffers=40, fixed=300),
        *(
            Case("ATTEMPTS_OF_JOB", {**page, "key": "key-7", "topic": topic}, {ATTEMPT_KEY}, n=100)
            for topic in (None, "topic-7")
        ),
        *(
            Case(
                "PRUNE_ATTEMPTS", {"age": 0, "limit": limit, "now": NOW}, {ATTEMPT_STARTED},
                n=limit, rows=4, buffers=20,
            )
            for limit in (100, 1000)
        ),
    ]  # fmt: skip
