"""What every statement of ``sql`` is asked for, and what it may cost."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from delayed_queue.managers import NO_FLOOR
from delayed_queue.topics.kinds import Way, kinds_of_topic
from tests.plans.case import (
    ANSWERS,
    ATTEMPT_KEY,
    ATTEMPT_STARTED,
    DEAD_DIED,
    DEAD_IDS,
    DEAD_KEYS,
    DEAD_PRIMARY,
    DESCRIBED,
    DUE,
    ENDPOINT,
    ENDPOINTS,
    HEARTBEATS,
    HOSTS,
    KEYS,
    KINDS,
    LEASE,
    LEASES,
    OLD_ANSWERS,
    PAUSES,
    PRIMARY,
    RATES,
    SCHEDULES,
    SLOTS,
    TOKEN_IDS,
    TOKENS,
    TOPICS,
    WORKERS,
    Case,
    lease_ids,
    of_ids,
)
from tests.plans.conftest import NOW, ROWS
from tests.plans.pipeline_cases import PIPELINE_CASES


def offers() -> list[Case]:
    one = {"payload": b"y", "schedule_at": None, "delay": 0, "headers": None, "now": NOW}
    many = {
        "kind": "bulk|json",
        # Half of them stored already, in neither input nor key order.
        "keys": [f"key-{each * 7919 % 100_000}" for each in range(500)]
        + [f"new-{each * 7919 % 100_000}" for each in range(500)],
        "payloads": [b"y"] * 1000,
        "schedules": [None] * 1000,
        "headers": ['{"a": 1}'] * 1000,
        "now": NOW,
    }
    return [
        *(
            Case(name, {**one, "kind": "bulk|json", "key": key}, {KEYS}, buffers=60)
            for name in ("OFFER_OR_UPDATE", "OFFER_IF_NOT_EXISTS")
            for key in ("key-5", "new")
        ),
        Case("OFFER_BATCH_OR_UPDATE", many, {KEYS}, n=1000, buffers=40),
        Case("OFFER_BATCH_IF_NOT_EXISTS", many, {KEYS}, n=1000, buffers=40),
    ]


def claims() -> list[Case]:
    due: list[dict[str, Any]] = [
        {"kind": kind, "limit": limit, "floor": floor, "now": NOW}
        for floor in (NO_FLOOR, NOW - 150_000)
        for kind in ("bulk|json", "due|json", "mixed|json")
        for limit in (1, 100, 1000)
    ]
    lease = {"lease_id": "mine", "retaken_id": "again", "lease": LEASE}
    passed = {"passed": ["https://host-1/", "https://HOST-1/"], "looked": 1000}
    cost: dict[str, Any] = {"rows": 5, "buffers": 40, "fixed": 400}
    return [
        *(
            Case(name, {**each, **more}, {DUE, PRIMARY, PAUSES}, n=each["limit"], **cost)
            for name, more in (
                ("CLAIM", lease), ("CLAIM_STRICT", {**lease, "waits": False}), ("CONSUME", {}),
            )
            for each in due
        ),
        *(
            Case(
                "CLAIM_PASSING", {**each, **lease, "after": after, "after_id": 0, **passed},
                {DUE, PRIMARY, PAUSES}, n=1000, **cost,
            )
            for each in due
            if each["limit"] == 100
            for after in (0, NOW - 80_000)
        ),
        Case("TRY_ALONE", {"kind": "bulk|json"}, set(), rows=0),
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
            Case("NEXT_DUE", {"kind": kind, "now": now, "horizon": horizon}, {DUE}, rows=1)
            for horizon in (3_000, LEASE)
            # The bulk is 100,000 messages that are all next.
            for kind, now in (
                ("bulk|json", NOW - 60_001), ("scheduled|json", NOW), ("mixed|json", NOW),
                ("leased|json", NOW),
            )
        ),
    ]  # fmt: skip


def leases() -> list[Case]:
    lease = {"lease_id": "lease-1700"}
    error = {"error": "Traceback", "now": NOW}
    release = {**lease, **error, "delay": LEASE, "refund": 0}
    restored = {
        "id": 10**9, "key": "restored", "kind": "due|json", "payload": b"y", "due_at": NOW,
        "scheduled_at": NOW, "lease_id": "mine", "created_at": NOW, "attempts": 1,
        "headers": None, "first_error": None, "last_error": None,
    }  # fmt: skip
    return [
        *(
            Case(
                "LEASED_MEMBERS", {"ids": n, "lease_id": lease_ids(1)[0]}, {PRIMARY}, n=n, rows=8,
                buffers=40, fixed=300, or_reads={LEASES},
            )
            for n in (1, 100)
        ),
        *of_ids("ACKNOWLEDGE", PRIMARY, (1, 100), **lease),
        *of_ids("ACKNOWLEDGE", PRIMARY, (100,), lease_id=None),
        Case("ACKNOWLEDGE_LEASE", {"lease_id": "lease-1750"}, {LEASES}, n=100),
        *(
            Case(
                "ACKNOWLEDGE_MEMBERS", {"ids": n, "lease_ids": lease_ids(held)},
                {PRIMARY}, n=n, rows=8, buffers=40, fixed=300, or_reads={LEASES},
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
        *(
            Case(
                "RELEASE_LEASES", {"ids": 8, "lease_ids": lease_ids(held), "now": NOW + LEASE},
                {LEASES}, n=held * 100, rows=10, buffers=40, fixed=300,
            )
            for held in (1, 10)
        ),
        *(
            Case(
                "EXPIRE", {"ids": n, "lease_ids": lease_ids(1), "now": NOW + LEASE},
                {PRIMARY}, n=n, rows=8, buffers=40, fixed=300, or_reads={LEASES},
            )
            for n in (1, 100)
        ),
        *(
            # It looks twice at what it tells of, and earlier cases left dead versions.
            Case("HELD", {"ids": n}, {PRIMARY}, n=n, rows=8, buffers=40, fixed=300)
            for n in (1, 100, 1000)
        ),
        *of_ids("COUNT_CRASH", PRIMARY, (1, 100), lease_id="crashed", now=NOW + LEASE),
        *of_ids("RELEASE", PRIMARY, (1, 100), **release),
        *of_ids("RELEASE", PRIMARY, (2, 99), **{**release, "delay": None, "refund": 1}),
        *of_ids("BURY", PRIMARY, (1, 100), **lease, **error, reason="rejected"),
        *(
            Case(
                "EXTEND", {"ids": n, "lease_ids": lease_ids(held), "lease": LEASE, "now": NOW},
                # Its own earlier runs leave dead versions under the same lease.
                {PRIMARY}, n=n, rows=8, buffers=40, fixed=300, or_reads={LEASES},
            )
            for n, held in ((1, 1), (100, 1), (1000, 10))
        ),
        Case("RESTORE", restored, set(), rows=0),
    ]  # fmt: skip


def inspections() -> list[Case]:
    one = {"key": "key-5", "kind": "bulk|json"}
    return [
        Case("READ", {**one, "now": NOW}, {KEYS}),
        Case("CONTAINS", one, {KEYS}),
        Case("DROP", one, {KEYS}),
        # For an average kind, which is what a generic plan knows, reading the table is right.
        Case(
            "DROP_ALL", {"kind": "leased|json"}, {DUE}, n=10_000, rows=ROWS // 10_000 + 1,
            or_reads={DUE}, may_scan_generically=True,
        ),
        Case("NOTIFY", {"channel": "delayed_queue_x"}, set(), rows=0),
        Case("LIMIT_WAITS", {"milliseconds": 1000}, set(), rows=0),
        # A row for each of the five kinds, and one look behind the last.
        Case("KINDS", {"limit": 100}, {DUE}, n=6, rows=1),
        Case("DEAD_LETTER_KINDS", {"limit": 100}, {DEAD_DIED}, n=4, rows=1),
        *(
            Case(
                "OVERVIEW", {"kinds": KINDS, "cap": cap, "lease_cap": cap, "now": NOW},
                {DUE, LEASES, DEAD_DIED}, n=cap, rows=5 * len(KINDS), buffers=30, fixed=400,
            )
            for cap in (10, 1000)
        ),
        *(
            Case("STATS", {"kind": kind, "cap": cap, "now": NOW}, reads, n=cap, rows=6, fixed=400)
            for kind, reads in (
                ("bulk|json", {DUE, LEASES, DEAD_DIED}), ("scheduled|json", {DUE, LEASES}),
                ("mixed|json", {DUE, LEASES, DEAD_DIED}),
            )
            for cap in (10, 1000)
        ),
    ]  # fmt: skip


def letters() -> list[Case]:
    page = {"limit": 1000}
    return [
        *(
            Case(
                "REDRIVE", {"ids": n, "overwrite": overwrite, "kind": kind, "now": NOW},
                {DEAD_PRIMARY, KEYS}, n=n, rows=4, buffers=50, fixed=300,
            )
            for n in (1, 1000)
            for overwrite in (False, True)
            for kind in ("due|json", None)
        ),
        *(
            Case(
                "LOCK_TOPICS_OF_LETTERS", {"ids": n, "kind": kind, "most": 200}, reads,
                n=n, rows=2, buffers=4,
            )
            for n in (1, 1000)
            for kind, reads in (("due|json", set[str]()), (None, {DEAD_PRIMARY}))
        ),
        *(
            Case(
                "LOCK_JOBS_OF_LETTERS", {"ids": n, "kind": kind, "most": 200}, {*reads, TOPICS},
                n=n, rows=5, buffers=8,
            )
            for n in (1, 200)
            for kind, reads in (
                ("due|json", {DEAD_PRIMARY}), (None, {DEAD_PRIMARY}), ("no topic|json", set[str]())
            )
        ),
        # No job is locked where there are too many.
        Case(
            "LOCK_JOBS_OF_LETTERS", {"ids": 1000, "kind": "due|json", "most": 200}, set(), n=1000,
            rows=0,
        ),
        *(
            # Half of the letters have another reason, and three quarters another kind.
            Case(
                "DEAD_LETTER_IDS", {**page, "kind": kind, "after": 0, "reason": reason},
                {DEAD_IDS}, n=1000, rows=10, buffers=2, or_reads={DEAD_PRIMARY},
            )
            for kind in ("bulk|json", "due|json")
            for reason in (None, "rejected")
        ),
        *(
            Case(
                "PRUNE_DEAD_LETTERS", {**page, "kind": kind, "now": NOW, "age": 0},
                {DEAD_DIED, DEAD_PRIMARY}, n=1000, rows=4, buffers=12,
            )
            for kind in ("bulk|json", "due|json")
        ),
        *of_ids("DROP_DEAD_LETTERS", DEAD_PRIMARY, (1, 1000)),
    ]  # fmt: skip


def schedules() -> list[Case]:
    one = {"kind": "scheduled|json", "key_prefix": "tick-50"}
    queue = {"queue": "scheduled", "codec": "json"}
    state = {
        "config_hash": "a", "retired_hashes": "[]", "last_tick": NOW, "installed_at": NOW,
        "interval": 1000,
    }  # fmt: skip
    definition = {
        "type": "cron", "expression": "* * * * *", "timezone": "", "gap": "shift", "fold": "",
        "missed": "latest", "missed_cap": 100, "declared_in": "app.handlers",
    }  # fmt: skip
    return [
        *(
            Case("LOCK_SCHEDULE", {**one, "key_prefix": prefix, **queue}, {SCHEDULES}, buffers=60)
            for prefix in ("tick-50", "new")
        ),
        *(
            Case("READ_SCHEDULE", {**one, "key_prefix": prefix, "now": NOW}, {SCHEDULES})
            for prefix in ("tick-50", "none")
        ),
        Case("DESCRIBED_SCHEDULES", {"now": NOW}, {DESCRIBED}, n=100),
        Case("PENDING_TICKS", {**one, "now": NOW}, {KEYS}, n=100),
        *of_ids("DROP_TICKS", PRIMARY, (1, 100)),
        Case("SAVE_SCHEDULE", {**one, **state}, {SCHEDULES}, buffers=60),
        Case("DESCRIBE_SCHEDULE", {**one, **queue, **definition}, {SCHEDULES}, buffers=60),
    ]


def workers() -> list[Case]:
    row = {
        "name": "worker-1", "host": "host", "pid": 1, "process": 0, "queues": "[]",
        "version": "1.0", "started_at": None, "now": NOW,
    }  # fmt: skip
    counts = {"in_flight": 1, "done": 1, "failed": 1, "dead": 1, "lost": 1}
    beat = {"id": 1, **counts, "rates": "{}", "lease_ids": "[]", "now": NOW}
    day = 24 * 3600 * 1000
    return [
        Case("ENLIST", row, set(), rows=0),
        Case("BEAT", beat, {WORKERS}, buffers=60),
        Case("RETIRE", {"id": 1}, {WORKERS}, buffers=60),
        *(
            Case(
                "PRUNE_WORKERS", {"age": age, "limit": limit, "now": NOW}, {HEARTBEATS},
                n=limit, rows=4, buffers=20,
            )
            # Ten thousand seconds of silence are less than a day.
            for age, limit in ((30_000, 100), (day, 1000))
        ),
        Case(
            "THROUGHPUT", {"age": 30_000, "limit": 10_000, "now": NOW}, {HEARTBEATS},
            n=200, buffers=2,
        ),
    ]  # fmt: skip


def pauses() -> list[Case]:
    one = {"kind": "paused-1000|json"}
    return [
        *(
            Case("PAUSE", {"kind": kind, "by": "", "reason": "", "now": NOW}, {PAUSES})
            for kind in (one["kind"], "bulk|json")
        ),
        Case("RESUME", one, {PAUSES}),
        Case("IS_PAUSED", one, {PAUSES}),
    ]  # fmt: skip


def tokens() -> list[Case]:
    digest = sha256(b"5").hexdigest()
    use = {"stale_after": 60_000, "now": NOW}
    return [
        *(
            Case("FIND_TOKEN", {"digest": each, **use}, {TOKENS})
            for each in (digest, sha256(b"none").hexdigest())
        ),
        Case("USE_TOKEN", {"id": 5, **use}, {TOKEN_IDS}, buffers=60),
    ]


def topics() -> list[Case]:
    settings = {"shards": 4, "ladder": "", "jitter": 0.0, "ttr": None}
    return [
        *(
            Case("CREATE_TOPIC", {"topic": topic, "now": NOW}, {TOPICS}, buffers=60)
            for topic in ("bulk", "new")
        ),
        Case("READ_TOPIC", {"topic": "bulk"}, {TOPICS}),
        Case("TOPICS", {"after": "topic-2", "limit": 100}, {TOPICS}, n=100, fixed=150),
        Case("CONFIGURE_TOPIC", {"topic": "topic-5", **settings}, {TOPICS}, buffers=60),
        Case("KEEP_PLANS", {"patience": 100}, set(), rows=0),
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
        Case("JOB_LETTERS", {**one, "key": "dead-5"}, {TOPICS, DEAD_KEYS}, rows=20, fixed=40),
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
                "DEAD_JOBS", {"kinds": ["bulk|json", "due|json"], "after": after, "limit": limit},
                {DEAD_IDS}, n=2 * limit, rows=4, buffers=8, fixed=60, or_reads={DEAD_PRIMARY},
            )
            for after in (0, 1000)
            for limit in (10, 1000)
        ),
        *(
            Case(
                "NEXT_JOB", {"kinds": kinds, "horizon": horizon, "now": now}, {DUE}, n=len(kinds),
                rows=1,
            )
            for horizon in (3_000, LEASE)
            for kinds, now in (
                (["bulk|json", "bulk#1|json"], NOW - 60_001), (["scheduled|json"], NOW),
                (["mixed|json", "leased|json"], NOW),
            )
        ),
        Case("READ_DEAD_JOB", {"id": 5}, {DEAD_PRIMARY}),
        *(
            # The rows of its two CTEs may be joined by nested loops, in memory.
            Case(
                "KICK_JOBS", {"topic": "due", "ids": n, "now": NOW},
                {DEAD_PRIMARY, KEYS, TOPICS}, n=n, rows=300, buffers=60, fixed=300,
            )
            for n in (1, 200)
        ),
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
        "topic": "bulk", "shards": 4, "places": kinds_of_topic("bulk", 4),
        "keys": ids, "kinds": ["bulk#1|json"] * n, "payloads": [b"y"] * n,
        "schedules": [None] * n, "delays": [0] * n, "headers": ['{"a": 1}'] * n, "now": NOW,
    }  # fmt: skip


def rates() -> list[Case]:
    permit = {"least": 1, "most": 100, "interval": 1000.0, "burst": 100_000, "now": NOW * 1000}
    return [
        # Granted, refused, and a bucket that is new.
        Case("TAKE_PERMITS", {**permit, "name": name}, {RATES}, rows=4, buffers=60)
        for name in ("rate-10", "rate-10010", "new")
    ]


def callbacks() -> list[Case]:
    host = {"host": "host-100:443", "now": NOW}
    slots = {
        "id": 1_000_100,
        "holder": "me",
        "wanted": 3,
        "used": 0,
        "concurrency": 5,
        "patience": 1000,
    }
    many = 200
    attempt = {
        "keys": ["k"] * many, "topics": ["t"] * many, "kinds": ["t|callback"] * many,
        "webhook_ids": ["msg_x"] * many, "attempts": [1] * many, "started_ats": [NOW] * many,
        "durations": [1] * many, "statuses": [None] * many, "failures": [""] * many,
        "details": [""] * many, "addresses": [""] * many, "excerpts": [""] * many,
        "are_ambiguous": [False] * many, "endpoint_ids": [1] * many,
    }  # fmt: skip
    page = {"after": 0, "limit": 100}
    backlog = {
        "host": "host-1:443", "prefixes": ["https://host-1/", "https://HOST-1/"], "after_id": 0,
        "ahead": 4000, "spread": 30_000, "half": 20_000, "delay": LEASE,
    }  # fmt: skip
    closed = {**backlog, "kind": "bulk|json", "limit": 2000, "after": 0, "delay": None}
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
        Case("READ_HOST", host, {HOSTS}),
        Case("OPEN_HOST", {**host, "pause": 1000, "reason": "x"}, {HOSTS}, buffers=60),
        Case("PROBE_HOST", {**host, "by": "me", "patience": 1000}, {HOSTS}, buffers=60),
        Case(
            "END_PROBE",
            {**host, "by": "me", "outcome": "failed", "pause": 1, "longest": 9}, {HOSTS},
        ),
        *(
            Case(
                "PUT_OFF_BACKLOG",
                {**backlog, "kind": kind, "limit": limit, "after": after, "now": NOW},
                {DUE, HOSTS}, n=limit, rows=4, buffers=40, fixed=2000,
            )
            for kind, after in [
                ("bulk|json", 0), ("bulk|json", NOW - 60_000), ("due|json", 0), ("mixed|json", 0),
                ("due|json", NOW - 80_000), ("scheduled|json", 0), ("leased|json", 0), ("new", 0),
            ]
            for limit in (10, 1000)
        ),
        # Of a host that is not open, not one is looked at.
        Case("PUT_OFF_BACKLOG", {**closed, "now": NOW}, {HOSTS}, rows=1, buffers=5, fixed=5),
        Case("CLOSE_HOST", {"host": "host-100:443"}, {HOSTS}, buffers=60),
        Case("SHUT_HOST", {**host, "pause": 10**15, "reason": "x"}, {HOSTS}, buffers=60),
        *(
            Case(
                "JOBS_PUT_OFF",
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
        Case("LOCK_SLOTS", {"id": 1_000_100}, {ENDPOINT}, buffers=60),
        Case("HOLD_SLOTS", {**slots, "now": NOW}, {SLOTS}, n=10, rows=5, buffers=60),
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


CASES: Final = [
    *offers(), *claims(), *leases(), *inspections(), *letters(), *schedules(), *workers(),
    *pauses(), *rates(), *callbacks(), *topics(),
    *tokens(), *jobs(), *PIPELINE_CASES,
]  # fmt: skip
