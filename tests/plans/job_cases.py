"""The cases of topics and jobs."""

from __future__ import annotations

from typing import Any

from delayed_queue.http.jobs.kinds import Way, kinds_of_topic
from tests.plans.case import (
    ANSWERS,
    DEAD_IDS,
    DEAD_KEYS,
    DEAD_PRIMARY,
    DUE,
    KEYS,
    LEASE,
    LEASES,
    OLD_ANSWERS,
    PAUSES,
    PRIMARY,
    TOPICS,
    Case,
)
from tests.plans.conftest import NOW
from tests.plans.lease_cases import rows_of


def topics() -> list[Case]:
    settings = {"shards": 4, "ladder": "", "jitter": 0.0, "ttr": None, "hosts": "a:443"}
    return [
        *(
            Case("CREATE_TOPIC", {"topic": topic, "now": NOW}, {TOPICS}, buffers=60)
            for topic in ("bulk", "new")
        ),
        Case("READ_TOPIC", {"topic": "bulk"}, {TOPICS}),
        Case("HOLD_TOPIC", {"topic": "bulk"}, {TOPICS}),
        Case("TOPICS", {"after": "topic-2", "limit": 100}, {TOPICS}, n=100, fixed=150),
        Case("CONFIGURE_TOPIC", {"topic": "topic-5", **settings}, {TOPICS}, buffers=60),
        Case("KEEP_PLANS", {"timeout": 100}, set(), rows=0),
        Case("LOCK_TOPIC", {"topic": "bulk"}, set(), rows=0),
        Case("TRY_KEY", {"lock": 1}, set(), rows=0),
        *(
            Case("LOCK_JOBS", {"topic": "bulk", "keys": [str(each) for each in range(n)]}, set(),
                 n=n)
            for n in (1, 200)
        ),
        Case("READ_ANSWER", {"scope": "token-5", "key": "key-5", "age": 10**8, "now": NOW},
             {ANSWERS}),
        *(
            Case(
                "SAVE_ANSWER",
                {"scope": "token-5", "key": key, "request_hash": b"x", "status": 202,
                 "answer": "{}", "now": NOW},
                {ANSWERS}, buffers=60,
            )
            for key in ("key-5", "new")
        ),
        Case("PRUNE_ANSWERS", {"age": 10**6, "limit": 1000, "now": NOW}, {OLD_ANSWERS},
             n=1000, rows=4, buffers=20),
    ]  # fmt: skip


def jobs() -> list[Case]:
    return [*stored_jobs(), *dead_and_next_jobs(), *peeked_jobs()]


def stored_jobs() -> list[Case]:
    one = {"topic": "bulk", "key": "key-5"}
    return [
        *(
            Case(name, adding(n), {TOPICS, KEYS}, n=n, rows=12, buffers=60, fixed=60)
            for name in ("ADD_JOBS", "PUT_JOBS")
            for n in (1, 200)
        ),
        Case("FIND_JOB", {**one, "now": NOW}, {TOPICS, KEYS, DEAD_KEYS}, rows=20, fixed=40),
        Case("DROP_JOB", one, {TOPICS, KEYS, PRIMARY}, rows=20, fixed=40),
        Case("DROP_DEAD_JOB", {**one, "key": "dead-5"}, {TOPICS, DEAD_KEYS}, rows=20, fixed=40),
        Case(
            "FINISH_JOB", {"topic": "leased", "key": "key-170000", "lease_id": "lease-1700"},
            {TOPICS, KEYS}, rows=20, fixed=60,
        ),
        *(
            Case(
                "POP_JOBS",
                {"kinds": kinds_of_topic(topic, 4, Way.PULLED), "limit": limit,
                 "lease_id": "mine", "ttr": None, "default_ttr": LEASE, "now": NOW},
                {DUE, PRIMARY, PAUSES}, n=limit, rows=5, buffers=40, fixed=400,
            )
            for topic in ("bulk", "due", "mixed")
            for limit in (1, 100)
        ),
        *(
            Case(
                "HOLD_FOR", {"lease_id": "lease-1700", "ids": n, "ttrs": [LEASE] * n, "now": NOW},
                {PRIMARY}, n=n, rows=rows_of(n), buffers=40, fixed=300, or_reads={LEASES},
            )
            for n in (1, 100)
        ),
    ]  # fmt: skip


def dead_and_next_jobs() -> list[Case]:
    return [
        *(
            Case(
                "DEAD_JOBS", {"kinds": ["bulk|json", "due|json"], "after": after, "limit": limit},
                {DEAD_IDS}, n=2 * limit, rows=4, buffers=8, fixed=60, or_reads={DEAD_PRIMARY},
            )
            for after in (0, 1000)
            for limit in (10, 1000)
        ),
        Case("READ_DEAD_JOB", {"id": 5}, {DEAD_PRIMARY}),
    ]  # fmt: skip


def peeked_jobs() -> list[Case]:
    return [
        *(
            Case(
                "PEEK_JOBS",
                {"kinds": kinds_of_topic(topic, 4), "limit": 10, "depth": 1000, "is_due": is_due,
                 "is_leased": is_leased, "now": NOW},
                {DUE}, n=1000, rows=3, buffers=3, fixed=60,
            )
            for topic, is_due, is_leased in (
                ("bulk", True, False), ("scheduled", False, False), ("leased", False, True),
                ("mixed", False, True), ("scheduled", False, True),
            )
        ),
    ]  # fmt: skip


def adding(n: int) -> dict[str, Any]:
    """Jobs of which every other id is stored, in neither input nor key order."""
    ids = [f"key-{each * 7919 % 100_000}" if each % 2 else f"new-{each}" for each in range(n)]
    return {
        "topic": "bulk", "shards": 4, "hosts": "", "places": kinds_of_topic("bulk", 4),
        "keys": ids, "kind": None, "kinds": ["bulk#1|json"] * n, "payloads": [b"y"] * n,
        "schedules": [None] * n, "delay": None, "delays": [0] * n, "headers": ['{"a": 1}'] * n,
        "groups": None, "now": NOW,
    }  # fmt: skip
