"""The statements of the queue: offers, claims, settlements, limits of groups, counts."""

from __future__ import annotations

from typing import Any, Final

from delayed_queue.queue.store.claim import NO_FLOOR
from tests.plans.case import (
    BEGUN,
    DEAD_DIED,
    DUE,
    GROUPS,
    HELD,
    KEYS,
    LEASE,
    LEASES,
    LIMITS,
    PRIMARY,
    SAMPLES,
    Each,
    cases,
    lease_ids,
    leased,
)
from tests.plans.rows import NOW, ROWS

# Half of them are stored, in scrambled order.
_KEYS: Final = [
    f"{prefix}-{each * 7919 % 100_000}" for prefix in ("key", "new") for each in range(500)
]
_BATCH: Final[dict[str, Any]] = {
    "keys": _KEYS, "payloads": [b"y"] * 1000, "schedules": [None] * 1000,
    "headers": ['{"a": 1}'] * 1000, "groups": [None, "a"] * 500, "expiries": [None, NOW] * 500,
}  # fmt: skip
_STORED: Final[dict[str, Any]] = {
    name: _BATCH[name] for name in ("keys", "payloads", "headers", "groups", "expiries")
}
_STORED["lives"] = [None, 1] * 500

OFFERS: Final = [
    *cases("OFFER_OR_UPDATE", KEYS, key=Each("key-5", "new"), delay=0),
    *cases("OFFER_DEBOUNCED", KEYS, key=Each("key-5", "new"), delay=0, latest=1000),
    *cases("OFFER_IF_NOT_EXISTS", KEYS, key=Each("key-5", "new"), delay=0),
    *cases("OFFER_BATCH_OR_UPDATE", KEYS, **_BATCH, n=1000, max_buffers=40),
    *cases("OFFER_BATCH_IF_NOT_EXISTS", KEYS, **_BATCH, n=1000, max_buffers=40),
    *cases("STORED_OFFERS", KEYS, kinds=Each(["bulk|json"]), now=None,
           **{name: values[:1] for name, values in _STORED.items()}),
    *cases("STORED_OFFERS", KEYS, kinds=Each(["bulk|json"] * 1000), now=None, **_STORED, n=1000),
    *cases("LOST_SESSIONS", pids=[1], seconds=1.0, max_rows=200),
]  # fmt: skip

# The last floor lies within the bulk, which is due at one instant.
_FLOORS: Final = ((NO_FLOOR, 0), (NOW - 150_000, 0), (NOW - 60_000, 100_000))
_MINE: Final[dict[str, Any]] = {"lease_id": "mine"}
CLAIMS: Final = [
    *(
        case
        for name, more in (
            ("CLAIM", _MINE), ("CLAIM_STRICT", {**_MINE, "waits": False}), ("CONSUME", {})
        )
        for floor, floor_id in _FLOORS
        for case in cases(
            name, DUE, PRIMARY, LIMITS, kind=Each("bulk|json", "due|json", "mixed|json"),
            limit=Each(1, 100, 1000), floor=Each(floor), floor_id=floor_id, max_buffers=40,
            fixed=400, **more,
        )
    ),
    *cases("CLAIM_RANKED", DUE, LIMITS, PRIMARY, kind="due|json", **_MINE, fixed=300,
           kinds=["bulk!7|json", "due|json", "bulk|json"], max_rows=6),
    *cases("TRY_LOCK", max_rows=0),
    *cases("NEXT_DUE_OF_KINDS", DUE, kinds=["bulk|json"] + [f"none-{n}|json" for n in range(499)],
           floors=[NO_FLOOR] * 500, horizon=Each(3_000), n=500, max_rows=1),
    *cases("NEXT_DUE_OF_KINDS", DUE, kinds=["bulk|json"] + [f"none-{n}|json" for n in range(499)],
           floors=[NOW - 150_000] * 500, horizon=Each(10_000), n=500, max_rows=1),
    # The bulk is 100,000 messages that are all next.
    *cases("NEXT_DUE", DUE, horizon=Each(3_000, LEASE), now=NOW - 60_001,
           kinds=Each(["bulk|json"], ["bulk|json", "bulk#1|json"])),
    *cases("NEXT_DUE", DUE, horizon=Each(3_000, LEASE), now=Each(NOW),
           kinds=Each(["mixed|json"], ["mixed|json", "leased|json"])),
    *cases("NEXT_DUE", DUE, horizon=3_000, n=3,
           kinds=Each(["bulk!7|json", "due|json", "bulk|json"])),
]  # fmt: skip

_RESTORED: Final[dict[str, Any]] = {
    "id": 10**9, "key": "restored", "due_at": NOW, "scheduled_at": NOW, "created_at": NOW,
    "attempts": 1, "first_error": None, "last_error": None,
    "batch_id": None,
}  # fmt: skip
SETTLEMENTS: Final = [
    *cases("ACKNOWLEDGE", PRIMARY, ids=Each(1, 100)),
    *cases("ACKNOWLEDGE", PRIMARY, ids=100, lease_id=Each(None)),
    *cases("ACKNOWLEDGE_LEASE", LEASES, lease_id="lease-1750", n=100),
    *leased("ACKNOWLEDGE_MEMBERS"),
    # Earlier runs leave dead versions under the same leases.
    *cases("ACKNOWLEDGE_LEASES", LEASES, lease_ids=Each(lease_ids(1)), n=100, max_rows=10,
           fixed=300),
    *cases("ACKNOWLEDGE_LEASES", LEASES, lease_ids=Each(lease_ids(10)), n=1000, max_rows=10),
    *cases("LEASED_MEMBERS", PRIMARY, kind="leased|json", ids=Each(1), or_reads=LEASES,
           max_rows=110),
    *cases("LEASED_MEMBERS", PRIMARY, kind="leased|json", ids=Each(100), or_reads=LEASES,
           max_rows=8),
    *leased("EXTEND"),
    *cases("RELEASE", PRIMARY, ids=Each(1, 100), delay=LEASE, refund=0),
    *cases("RELEASE", PRIMARY, ids=Each(2, 99), delay=None, refund=1),
    *cases("DEAD_LETTER", PRIMARY, ids=Each(1, 100), reason="rejected", fingerprint=""),
    *cases("RESTORE", **_RESTORED, lease_id="mine", max_rows=0),
    # Separate leases: each run leaves dead versions under its lease.
    *cases("RELEASE_LEASES", LEASES, ids=8, lease_ids=Each(["lease-1770"]), now=NOW + LEASE,
           n=100, max_rows=10),
    *cases("RELEASE_LEASES", LEASES, ids=8, lease_ids=Each(lease_ids(10)), now=NOW + LEASE,
           n=1000, max_rows=10),
    *cases("GIVE_BACK", LEASES, lease_ids=["lease-1771"], begun=[1, 2], suspects=["lease-1771"],
           refund=1, mark="crashed", now=NOW + LEASE, n=100, max_rows=10, fixed=300),
    *cases("HELD", PRIMARY, ids=Each(1, 100, 1000), max_rows=8),
    *cases("COUNT_CRASH", PRIMARY, ids=Each(1, 100), lease_id="crashed", count=1,
            stays=False, now=NOW + LEASE),
]  # fmt: skip

_GROUPED: Final = "grouped|json"
_RULES: Final[dict[str, Any]] = {"concurrency": None, "interval": None, "burst": None}
_DECLARED: Final[dict[str, Any]] = _RULES | {
    "declared": "{}", "is_change": False, "is_ordered": False, "is_fair": True,
    "blocks_on_dead": False, "queue_interval": None, "queue_burst": None,
}  # fmt: skip
LIMITS_OF_GROUPS: Final = [
    *cases("TAKE_TURN", kind=_GROUPED, idle=5_000, max_rows=0),
    *cases("RULES", LIMITS, kind=Each(_GROUPED, "bulk|json", "paused-1000|json")),
    *(
        case
        for kind, indexes in ((_GROUPED, ()), ("ordered|json", (BEGUN,)))
        for n in (1, 32, 256)
        for case in cases(
            "GROUPS_AHEAD", GROUPS, HELD, LIMITS, *indexes, kind=Each(kind), groups=Each(n), n=n,
            since=Each("", "group-190"), max_rows=8, max_buffers=40, fixed=60,
        )
    ),
    *cases("GROUPS_AHEAD", GROUPS, HELD, LIMITS, kind=Each("one|json"), since="zz", groups=32,
           max_rows=6),
    *cases("UNGROUPED_AHEAD", DUE, kind=_GROUPED, at=Each(NO_FLOOR), id=0, rows=500, n=500,
           max_rows=1, max_buffers=3),
    *cases("UNGROUPED_AHEAD", DUE, kind="one|json", at=Each(NOW - 3000), id=0, rows=500,
           n=500, max_rows=1),
    # The leased messages and a few more; it reads and sorts no others.
    *(
        case
        for n in (1, 100)
        for case in cases(
            "LEASE_GROUPS", GROUPS, HELD, PRIMARY, kind=_GROUPED, lease_id="mine", limit=1000, n=n,
            ungrouped=[1], number=1, heads=[1], head_groups=["group-000"], retaken=[1] * n,
            groups=Each([f"group-{each:03}" for each in range(n)]), numbers=[2] * n,
            fresh=[2] * n, max_rows=12, max_buffers=120, fixed=300,
        )
    ),
    *cases("SPEND", LIMITS, kind=_GROUPED, groups=["group-010", "new"], until=[1.0, 1.0], n=2),
    *cases("DECLARE", LIMITS, kind=Each(_GROUPED, "new|json"), **_DECLARED),
    *cases("LIMIT_GROUP", LIMITS, kind=_GROUPED, group="group-010", **_RULES, weight=2),
    *cases("PASS_DEAD", LIMITS, kind=_GROUPED, group="group-010"),
    *cases("COPY_LIMITS", LIMITS, kind=_GROUPED, kinds=["other|json"], n=22),
    *cases("LOWER_SPENT", LIMITS, kind=_GROUPED, n=22),
    *cases("TIDY", LIMITS, kind=_GROUPED, n=22),
    *cases("PAUSE", LIMITS, kind=Each("paused-1000|json", "bulk|json"), group="", reason=""),
    *cases("RESUME", LIMITS, kind="paused-1000|json", group=""),
    *cases("IS_PAUSED", LIMITS, kind="paused-1000|json", group=""),
]  # fmt: skip

_KINDS: Final = ["bulk|json", "due|json", "scheduled|json", "leased|json", "mixed|json"]
_SYSTEM: Final = ("pg_authid", "pg_database")
INSPECTIONS: Final = [
    *cases("READ", KEYS),
    *cases("CONTAINS", KEYS),
    *cases("DROP", KEYS),
    # A generic plan assumes an average kind, for which a table scan is right.
    *cases("DROP_ALL", DUE, kind="leased|json", n=10_000, max_rows=ROWS // 10_000 + 1, or_reads=DUE,
           may_scan_generically=True),
    *cases("IS_READ_ONLY"),
    *cases("NOW"),
    *cases("OLDEST_SNAPSHOT", n=100, scans=_SYSTEM),
    # The slowest scan of a hundred live workers.
    *cases("SNAPSHOT_COST", "worker_heartbeat", n=100, max_rows=200, scans=_SYSTEM),
    *cases("NOTIFY", channel="delayed_queue_x", max_rows=0),
    *cases("TELL_HOLDERS", lease_ids=["lease-1700"], max_rows=0),
    *cases("LIMIT_WAITS", milliseconds=1000, max_rows=0),
    # One row for each kind.
    *cases("KINDS", DUE, n=10, max_rows=1),
    *cases("DEAD_LETTER_KINDS", DEAD_DIED, n=4, max_rows=1),
    *(
        case
        for cap in (10, 1000)
        for case in cases(
            "OVERVIEW", DUE, LEASES, DEAD_DIED, kinds=_KINDS, cap=Each(cap), lease_cap=cap,
            due_caps=[cap] * 5, later_caps=[cap] * 5, dead_caps=[cap] * 5, n=cap, max_rows=25,
            fixed=400,
        )
    ),
    *(
        case
        for cap in (10, 1000)
        for kind, dead in (("bulk", [DEAD_DIED]), ("scheduled", []), ("mixed", [DEAD_DIED]))
        for case in cases(
            "STATS", DUE, LEASES, *dead, kind=Each(f"{kind}|json"), cap=Each(cap), n=cap,
            max_rows=6, fixed=400,
        )
    ),
]  # fmt: skip

_MINUTE: Final = NOW // 60_000
_COUNTED: Final = [f"kind-{each}" for each in range(100)]
_DAY: Final[dict[str, Any]] = {"since": _MINUTE - 1440, "until": _MINUTE, "step": 15}
_DEPTHS: Final[dict[str, Any]] = {
    each: [1] * 100 for each in ("due", "scheduled", "leased", "dead", "late")
}
_TABLE_OF_SAMPLES: Final = "delayed_queue_sample_pkey"
SAMPLED: Final = [
    *cases("TAKE_MINUTE", "worker_heartbeat", SAMPLES, age=1, or_reads=_TABLE_OF_SAMPLES),
    *cases("SAVE_DEPTHS", _TABLE_OF_SAMPLES, kinds=_COUNTED, minute=_MINUTE, n=100,
           **_DEPTHS),
    *cases("ADD_COUNTS", _TABLE_OF_SAMPLES, kinds=_COUNTED, times=[f"{{{(5 << 25) + 1}}}"] * 100,
           done=[1] * 100, failed=[1] * 100, died=[1] * 100, expired=[0] * 100, n=100, max_rows=8),
    # A bitmap and a sort: each row counts twice, and so do both ends of the day.
    *cases("HISTORY", SAMPLES, kinds=Each(["kind-7"]), **_DAY, n=1441, max_rows=2, max_buffers=1,
           fixed=300),
    *cases("HISTORY", SAMPLES, kinds=Each(["kind-1", "kind-7"]), since=_MINUTE - 60, until=_MINUTE,
           step=1, n=120, max_rows=3, max_buffers=1),
    # Two buckets a minute.
    *cases("HISTOGRAMS", SAMPLES, kind="kind-7", **_DAY, n=2880, max_rows=2, max_buffers=1,
           fixed=300),
    *cases("SAMPLED", SAMPLES, **_DAY, n=1440, max_rows=2, max_buffers=1, fixed=300),
    *cases("LAST_SAMPLED", SAMPLES),
    # A hundred pages of fifty rows, which it may sort.
    *cases("ESTIMATES", small=100.0, pages=50.0, n=10_000, max_rows=1, max_buffers=1),
    *cases("PRUNE_SAMPLES", age=1, n=200_000, max_rows=2, max_buffers=2,
           scans={"delayed_queue_sample_rest"}),
]  # fmt: skip

_PREFIX: Final[dict[str, Any]] = {"kind": "scheduled|json", "key_prefix": "tick-50"}
_QUEUE: Final[dict[str, Any]] = {"queue": "scheduled", "codec": "json"}
SCHEDULES_OF_CRON: Final = [
    *cases("LOCK_SCHEDULE", "schedule_kind_prefix", kind="scheduled|json",
           key_prefix=Each("tick-50", "new"), **_QUEUE),
    *cases("READ_SCHEDULE", "schedule_kind_prefix", kind="scheduled|json",
           key_prefix=Each("tick-50", "none")),
    *cases("DESCRIBED_SCHEDULES", "schedule_described", n=100),
    *cases("PENDING_TICKS", KEYS, **_PREFIX, n=100, max_buffers=10),
    *cases("DROP_TICKS", PRIMARY, ids=Each(1, 100)),
    *cases("SAVE_SCHEDULE", "schedule_kind_prefix", **_PREFIX, config_hash="a", interval=1000,
           retired_hashes="[]", last_tick=NOW, installed_at=NOW),
    *cases("DESCRIBE_SCHEDULE", "schedule_kind_prefix", **_PREFIX, **_QUEUE, type="cron",
           expression="* * * * *", timezone="", gap="shift", fold="", missed="latest",
           missed_cap=100, declared_in="app.handlers"),
    *cases("RECORD_RUNS", PRIMARY, kind="scheduled|json", worker="w",
           keys=["tick-400/a/1700000000000"], prefixes=["tick-400"], planned=[1_700_000_000_000],
           began=[1], ended=[0], outcomes=["done"], attempts=[1], ids=1, leases=["-"],
           scans={"delayed_queue_schedule_run"}, max_rows=20),
]  # fmt: skip

QUEUE_CASES: Final = [
    *OFFERS, *CLAIMS, *SETTLEMENTS, *LIMITS_OF_GROUPS, *INSPECTIONS, *SAMPLED, *SCHEDULES_OF_CRON
]  # fmt: skip
