"""What every statement of ``sql`` is asked for, and what it may cost."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from delayed_queue.queue.store.dead_letters import family_params
from tests.plans.callback_cases import callbacks
from tests.plans.case import (
    DEAD_DIED,
    DEAD_GROUPS,
    DEAD_IDS,
    DEAD_KEYS,
    DEAD_PRIMARY,
    DESCRIBED,
    DUE,
    HEARTBEATS,
    KEYS,
    KINDS,
    LEASES,
    NEXT_RUNS,
    PAUSES,
    PRIMARY,
    RATES,
    RUNS,
    RUNS_IN_PROGRESS,
    SAMPLES,
    SAMPLES_TABLE,
    SCHEDULES,
    TOKEN_IDS,
    TOKENS,
    TOPICS,
    Case,
    of_ids,
)
from tests.plans.conftest import NOW, ROWS
from tests.plans.group_cases import GROUP_CASES
from tests.plans.job_cases import jobs, topics
from tests.plans.lease_cases import claims, leases
from tests.plans.pipeline_cases import PIPELINE_CASES
from tests.plans.task_cases import tasks


def offers() -> list[Case]:
    one = {"payload": b"y", "schedule_at": None, "delay": 0, "headers": None, "now": NOW} | {
        "group": None
    }
    many: dict[str, Any] = {
        "kind": "bulk|json",
        # Half of them stored already, in neither input nor key order.
        "keys": [f"key-{each * 7919 % 100_000}" for each in range(500)]
        + [f"new-{each * 7919 % 100_000}" for each in range(500)],
        "payloads": [b"y"] * 1000,
        "schedules": [None] * 1000,
        "headers": ['{"a": 1}'] * 1000,
        "groups": [None, "a"] * 500,
        "now": NOW,
    }
    return [
        *(
            Case(name, {**one, "kind": "bulk|json", "key": key}, {KEYS}, buffers=60)
            for name in ("OFFER_OR_UPDATE", "OFFER_IF_NOT_EXISTS")
            for key in ("key-5", "new")
        ),
        *(
            Case(
                "STORED_OFFERS",
                {
                    **{each: many[each][:n] for each in ("keys", "payloads", "headers", "groups")},
                    "kinds": ["bulk|json"] * n,
                    "now": None,
                },
                {KEYS},
                n=n,
                rows=3,
            )
            for n in (1, 1000)
        ),
        Case("LOST_SESSIONS", {"pids": [1], "seconds": 1.0}, set(), rows=200),
        Case("OFFER_BATCH_OR_UPDATE", many, {KEYS}, n=1000, buffers=40),
        Case("OFFER_BATCH_IF_NOT_EXISTS", many, {KEYS}, n=1000, buffers=40),
    ]


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
        Case("IS_READ_ONLY", {}, set(), n=1),
        Case("NOW", {}, set(), n=1),
        # The names of users and databases.
        Case("OLDEST_SNAPSHOT", {}, set(), n=100, scans={"pg_authid", "pg_database"}),
        # The slowest scan of a hundred live workers.
        Case(
            "SNAPSHOT_COST", {"now": NOW}, {HEARTBEATS}, n=100, rows=200,
            scans={"pg_authid", "pg_database"},
        ),
        Case("NOTIFY", {"channel": "delayed_queue_x"}, set(), rows=0),
        Case("TELL_HOLDERS", {"lease_ids": ["lease-1700"]}, set(), rows=0),
        Case("LIMIT_WAITS", {"milliseconds": 1000}, set(), rows=0),
        # A row for each of the eight kinds, and one look behind the last.
        Case("KINDS", {"limit": 100}, {DUE}, n=9, rows=1),
        Case("DEAD_LETTER_KINDS", {"limit": 100}, {DEAD_DIED}, n=4, rows=1),
        *(
            Case(
                "OVERVIEW",
                {"kinds": KINDS, "cap": cap, "lease_cap": cap, "now": NOW}
                | {f"{each}_caps": [cap] * len(KINDS) for each in ("due", "later", "dead")},
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


def samples() -> list[Case]:
    minute = NOW // 60_000
    counted = {
        "kinds": ["kind-1", "kind-2"] * 50, "done": [1] * 100, "failed": [0] * 100,
        "died": [0] * 100, "times": [f"{{{(5 << 25) + 1}}}"] * 100, "now": NOW,
    }  # fmt: skip
    counted["kinds"] = [f"kind-{each}" for each in range(100)]
    measured = {each: [1] * 100 for each in ("due", "scheduled", "leased", "dead", "late")}
    day = {"since": minute - 1440, "until": minute, "step": 15}
    cost: dict[str, Any] = {"n": 1440, "rows": 2, "buffers": 1, "fixed": 300}
    hour = {"since": minute - 60, "until": minute, "step": 1}
    return [
        Case("TAKE_MINUTE", {"age": 1, "limit": 100, "now": NOW}, {HEARTBEATS, SAMPLES},
             n=100, or_reads={SAMPLES_TABLE}, buffers=20, fixed=100),
        Case("SAVE_DEPTHS", {"kinds": counted["kinds"], "minute": minute, **measured},
             {SAMPLES_TABLE}, n=100, buffers=20),
        Case("ADD_COUNTS", counted, {SAMPLES_TABLE}, n=100, rows=8, buffers=20),
        # A bitmap and a sort: each row is read twice, and both ends of the day count.
        Case("HISTORY", {"kinds": ["kind-7"], **day}, {SAMPLES}, **cost | {"n": 1441}),
        Case("HISTORY", {"kinds": ["kind-1", "kind-7"], **hour}, {SAMPLES}, n=120, rows=3,
             buffers=1),
        # Two buckets a minute.
        Case("HISTOGRAMS", {"kind": "kind-7", **day}, {SAMPLES}, **cost | {"n": 2880}),
        Case("SAMPLED", day, {SAMPLES}, **cost),
        Case("LAST_SAMPLED", {"now": NOW}, {SAMPLES}),
        # A hundred pages of fifty rows, which it may sort.
        Case("ESTIMATES", {"small": 100.0, "pages": 50.0, "now": NOW}, set(), n=10_000, rows=1,
             buffers=1),
        Case("PRUNE_SAMPLES", {"age": 1, "limit": 100, "now": NOW}, set(), n=200_000, rows=2,
             buffers=2, scans={"delayed_queue_sample_rest"}),
    ]  # fmt: skip


def letters() -> list[Case]:
    return [*redriven(), *listed(), *runs()]


def redriven() -> list[Case]:
    return [
        *(
            Case(
                "REDRIVE",
                {"ids": n, "overwrite": overwrite, "kind": kind, "now": NOW, **family_params()},
                {DEAD_PRIMARY, KEYS}, n=n, rows=5, buffers=50, fixed=300,
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
    ]  # fmt: skip


def listed() -> list[Case]:
    page = {"limit": 1000}
    return [
        *(
            # Half of the letters have another reason, and three quarters another kind.
            Case(
                "DEAD_LETTER_IDS", {**page, "kind": kind, "after": 0, "reason": reason},
                {DEAD_IDS, DEAD_KEYS}, n=1000, rows=11, buffers=5, or_reads={DEAD_PRIMARY},
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
        *(
            # A hundred and fifty groups of a thousand or two, of which ten are counted.
            Case(
                "DEAD_LETTER_GROUPS", {"kinds": kinds, "limit": 5000, "shown": 10, "cap": cap},
                {DEAD_GROUPS, DEAD_PRIMARY}, n=groups + 10 * cap, rows=8, buffers=12,
            )
            for kinds, groups in ((["due|json"], 150), (None, 150))
            for cap in (1, 1000)
        ),
        *of_ids("DROP_DEAD_LETTERS", DEAD_PRIMARY, (1, 1000)),
        *of_ids("COUNT_LETTERS", DEAD_PRIMARY, (1, 1000), kind="due|json"),
    ]  # fmt: skip


def runs() -> list[Case]:
    places: tuple[tuple[str, dict[str, str], str], ...] = (
        ("QUEUE", {"kind": "due|json"}, DEAD_DIED),
        ("GROUP", {"kind": "due|json", "fingerprint": f"{8:016}"}, DEAD_GROUPS),
    )
    begin: dict[str, Any] = {
        "action": "redrive", "reason": None, "pace": 50, "most": None, "canary": 0, "deaths": 1,
        "key_from": None, "key_before": None, "since": 0, "until": NOW, "newest": 1, "total": 1,
        "is_cut": False, "by": "", "why": "", "now": NOW,
    }  # fmt: skip
    to: dict[str, Any] = {
        "last_died_at": 1, "last_id": 1, "done": 1, "skipped": 0, "canary_keys": "[]",
        "is_canary_over": False, "state": "running", "note": "", "wait": 0,
    }  # fmt: skip
    page = {
        "newest": 10**9,
        "until": NOW,
        "after_at": 0,
        "after": 0,
        "fingerprint": None,
        "key_from": None,
        "key_before": None,
    }
    return [
        *(
            Case("START_RUN", {**begin, "kind": kind, "fingerprint": each}, {RUNS_IN_PROGRESS},
                 buffers=60)
            for kind, each in (("kind-7", "a"), ("kind-8", None), ("new", "a"))
        ),
        *(
            Case(
                f"PREVIEW_{place}", {**page, **of, "reason": reason, "since": 0, "cap": 1000},
                {index}, n=1000, rows=3, buffers=4,
            )
            for place, of, index in places
            for reason in (None, "rejected")
        ),
        *(
            Case(
                f"NEXT_OF_{place}", {**page, **of, "reason": reason, "limit": 900},
                {index, DEAD_KEYS}, n=900, rows=8, buffers=8,
            )
            for place, of, index in places
            for reason in (None, "rejected")
        ),
        Case("LOCK_RUN", {"now": NOW + 20_000}, {NEXT_RUNS}),
        Case("NEXT_RUN", {"now": NOW}, {NEXT_RUNS}),
        Case("ADVANCE_RUN", {**to, "id": 5, "now": NOW}, {RUNS}, buffers=60),
        Case(
            "SWITCH_RUN", {"id": 5, "state": "paused", "states": ["running"], "now": NOW}, {RUNS},
            buffers=60,
        ),
        Case(
            "CANARY", {"keys": [f"dead-{100_000 + n}" for n in range(100)], "kind": "due|json",
                       "fingerprints": [""] * 100, "newest": 0}, {KEYS, DEAD_KEYS}, n=100, rows=3,
        ),
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
        # A case before may have left a dead version behind.
        Case("DESCRIBED_SCHEDULES", {"now": NOW}, {DESCRIBED}, n=100, rows=3),
        Case("PENDING_TICKS", {**one, "now": NOW}, {KEYS}, n=100),
        *of_ids("DROP_TICKS", PRIMARY, (1, 100)),
        Case("SAVE_SCHEDULE", {**one, **state}, {SCHEDULES}, buffers=60),
        Case("DESCRIBE_SCHEDULE", {**one, **queue, **definition}, {SCHEDULES}, buffers=60),
    ]


def pauses() -> list[Case]:
    one = {"kind": "paused-1000|json", "group": ""}
    return [
        *(
            Case("PAUSE", {"kind": kind, "group": "", "by": "", "reason": "", "now": NOW}, {PAUSES})
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


def rates() -> list[Case]:
    permit = {"least": 1, "most": 100, "interval": 1000.0, "burst": 100_000, "now": NOW * 1000}
    return [
        # Granted, refused, and a bucket that is new.
        Case("TAKE_PERMITS", {**permit, "name": name}, {RATES}, rows=4, buffers=60)
        for name in ("rate-10", "rate-10010", "new")
    ]


CASES: Final = [
    *offers(), *claims(), *leases(), *inspections(), *letters(),
    *samples(), *schedules(),
    *pauses(), *GROUP_CASES, *rates(), *callbacks(), *tasks(), *topics(),
    *tokens(), *jobs(), *PIPELINE_CASES,
]  # fmt: skip
