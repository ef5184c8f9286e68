"""The statements of topics, jobs, callbacks, tokens and rates."""

from __future__ import annotations

from typing import Any, Final

from delayed_queue.http.jobs.kinds import Way, kinds_of_topic
from tests.plans.case import (
    DEAD_IDS,
    DEAD_KEYS,
    DEAD_PRIMARY,
    DUE,
    KEYS,
    LEASE,
    LEASES,
    LIMITS,
    PRIMARY,
    TOPICS,
    Each,
    cases,
    leased,
)
from tests.plans.rows import NOW


def adding(n: int) -> dict[str, Any]:
    """Return parameters of jobs; every other id is stored, in scrambled order."""
    ids = [f"key-{each * 7919 % 100_000}" if each % 2 else f"new-{each}" for each in range(n)]
    return {
        "topic": "bulk", "shards": 4, "hosts": "", "places": kinds_of_topic("bulk", 4),
        "keys": ids, "kind": None, "kinds": ["bulk#1|json"] * n, "payloads": [b"y"] * n,
        "schedules": [None] * n, "delay": None, "delays": [0] * n, "headers": ['{"a": 1}'] * n,
        "groups": None, "expiries": None, "lives": None, "now": NOW,
    }  # fmt: skip


_BULK: Final[dict[str, Any]] = {"topic": "bulk"}
TOPIC_CASES: Final = [
    *cases("CREATE_TOPIC", TOPICS, topic=Each("bulk", "new")),
    *cases("KEEP_PLANS", timeout=100, max_rows=0),
    *cases("LOCK_TOPIC", **_BULK, max_rows=0),
    *cases("TRY_KEY", scope="a", key="b", max_rows=0),
    *cases("LOCK_JOBS", **_BULK, keys=["1"]),
    *cases("LOCK_JOBS", **_BULK, keys=Each([str(each) for each in range(200)]), n=200),
    *cases("READ_ANSWER", "idempotency_scope_key", scope="token-5", age=10**8),
    *cases("SAVE_ANSWER", "idempotency_scope_key", scope="token-5", key=Each("key-5", "new"),
           request_hash=b"x", status=202, answer="{}"),
    *cases("PRUNE_ANSWERS", "idempotency_created", age=10**6, limit=1000),
    # Granted, refused, and a new bucket.
    *cases("TAKE_PERMITS", "rate_name", name=Each("rate-10", "rate-10010", "new"), least=1,
           most=100, interval=1000.0, burst=100_000, now=NOW * 1000),
]  # fmt: skip

JOBS: Final = [
    *(
        case
        for name in ("ADD_JOBS", "PUT_JOBS")
        for n in (1, 200)
        for case in cases(
            name, TOPICS, KEYS, **{**adding(n), "keys": Each(adding(n)["keys"])}, n=n, max_rows=12,
            fixed=60,
        )
    ),
    *cases("FIND_JOB", TOPICS, KEYS, DEAD_KEYS, **_BULK, max_rows=20, fixed=40),
    *cases("DROP_JOB", TOPICS, KEYS, PRIMARY, **_BULK, max_rows=20, fixed=40),
    *cases("DROP_DEAD_JOB", TOPICS, DEAD_KEYS, **_BULK, key="dead-5", max_rows=20, fixed=40),
    *cases("POP_JOBS", DUE, PRIMARY, LIMITS, limit=Each(1, 100), ttr=None, default_ttr=LEASE,
           kinds=Each(*(kinds_of_topic(each, 4, Way.PULLED) for each in ("bulk", "due", "mixed"))),
           lease_id="mine", max_buffers=40, fixed=400),
    *cases("HOLD_FOR", PRIMARY, ids=Each(1), ttrs=[LEASE], max_rows=110, or_reads=LEASES),
    *cases("HOLD_FOR", PRIMARY, ids=Each(100), ttrs=[LEASE] * 100, max_rows=8, or_reads=LEASES),
    *(
        case
        for limit in (10, 1000)
        for case in cases(
            "DEAD_JOBS", DEAD_IDS, kinds=["bulk|json", "due|json"], after=Each(0, 1000),
            limit=Each(limit), n=2 * limit, max_buffers=8, fixed=60, or_reads=DEAD_PRIMARY,
        )
    ),
    *cases("READ_DEAD_JOB", DEAD_PRIMARY, id=5),
    *(
        case
        for topic, is_due, is_leased in (
            ("bulk", True, False), ("scheduled", False, False), ("leased", False, True),
            ("mixed", False, True), ("scheduled", False, True),
        )
        for case in cases(
            "PEEK_JOBS", DUE, kinds=Each(kinds_of_topic(topic, 4)), limit=10, depth=1000,
            is_due=Each(is_due), is_leased=Each(is_leased), n=1000, max_rows=3, max_buffers=3,
            fixed=60,
        )
    ),
]  # fmt: skip

_ENDPOINT: Final = "delayed_queue_endpoint_pkey"
_HOST: Final[dict[str, Any]] = {"host": "host-100:443"}
CALLBACKS: Final = [
    *leased("HOLD_LEASED"),
    *cases("READ_HOST", "host_name", **_HOST),
    *cases("OPEN_HOST", "host_name", **_HOST, pause=1000, reason="x"),
    *cases("PROBE_HOST", "host_name", **_HOST, by="me", timeout=1000),
    *cases("END_PROBE", "host_name", **_HOST, by="me", event="FAIL", pause=1, longest=9),
    *cases("LOCK_SLOTS", _ENDPOINT, id=1_000_100),
    *cases("TAKE_SLOT", "slot_endpoint_holder", id=1_000_100, holder="me", concurrency=5,
           timeout=1000, n=10),
    *cases("PRUNE_ATTEMPTS", "attempt_started", age=0, limit=Each(100, 1000)),
]  # fmt: skip

HTTP_CASES: Final = [*TOPIC_CASES, *JOBS, *CALLBACKS]
