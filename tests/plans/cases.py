"""What every statement of ``sql`` is asked for, and what it may cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from delayed_queue.managers import NO_FLOOR
from tests.plans.conftest import NOW, ROWS

PRIMARY: Final = "delayed_queue_pkey"
KEYS: Final = "delayed_queue__PKeyPlusKindUniqueIndex"
DUE: Final = "delayed_queue__KindPlusScheduledAtIndex"
LEASES: Final = "delayed_queue__LockUuidPlusIdIndex"
SCHEDULES: Final = "schedule_kind_prefix"
DESCRIBED: Final = "schedule_described"
WORKERS: Final = "delayed_queue_worker_pkey"
HEARTBEATS: Final = "worker_heartbeat"
PAUSES: Final = "paused_kind"
DEAD_PRIMARY: Final = "delayed_queue_dead_letter_pkey"
DEAD_DIED: Final = "dead_letter_kind_died"
DEAD_IDS: Final = "dead_letter_kind_id"
ARCHIVES: Final = "delayed_queue_archive_pkey"
UNFINISHED: Final = "archive_unfinished"
REPORTS: Final = "delayed_queue_report_pkey"

LEDGER: Final = "delayed_queue_offer_ledger_pkey"
CHUNKS: Final = "offer_ledger_chunk"
RECORDED: Final = "offer_ledger_recorded"
ATTEMPTS: Final = "offer_stage_attempt"
STAGED: Final = "offer_stage_recorded"

KINDS: Final = ["bulk|json", "due|json", "scheduled|json", "leased|json", "mixed|json"]

# So far ahead that the dead versions rolled-back claims leave are in no other case's way.
LEASE: Final = 10**11


@dataclass(frozen=True)
class Case:
    """A statement, parameters as the queue would give them, and what it may cost.

    ``n`` is how many rows it is asked for. ``rows`` is how many it may look at for each of
    them, over all scans (a bitmap counts twice), ``buffers`` the pages, ``fixed`` a base of them.
    """

    statement: str
    params: dict[str, Any]
    reads: set[str]
    n: int = 1
    rows: int = 2
    buffers: int = 10
    fixed: int = 20
    or_reads: set[str] = field(default_factory=set)
    may_scan_generically: bool = False
    scans: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        kind = str(self.params.get("kind")).partition("|")[0]
        rest = [
            str(self.params[name])
            for name in (
                "key",
                "key_prefix",
                "lease_id",
                "reason",
                "overwrite",
                "floor",
                "horizon",
                "job",
                "cutoff",
                "age",
            )
            if name in self.params
        ]
        return "-".join([self.statement, kind, str(self.n), *rest])


def lease_ids(number: int) -> list[str]:
    return [f"lease-{1700 + each}" for each in range(number)]


def of_ids(statement: str, reads: str, sizes: tuple[int, ...], **params: Any) -> list[Case]:
    """Cases over that many ids; the test puts real ones in the place of their number."""
    return [
        Case(
            statement, {**params, "ids": n}, {reads}, n=n, rows=4, buffers=40, fixed=300,
        )
        for n in sizes
    ]  # fmt: skip


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
    cost: dict[str, Any] = {"rows": 5, "buffers": 40, "fixed": 400}
    return [
        *(
            Case(name, {**each, **more}, {DUE, PRIMARY, PAUSES}, n=each["limit"], **cost)
            for name, more in (("CLAIM", lease), ("CONSUME", {}))
            for each in due
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
        *(
            Case(
                "LEASED_MEMBERS", {"ids": n, "lease_id": lease_ids(1)[0]}, {PRIMARY}, n=n, rows=8,
                buffers=40, fixed=300, or_reads={LEASES},
            )
            for n in (1, 100)
        ),
        *of_ids("COUNT_CRASH", PRIMARY, (1, 100), lease_id="crashed", now=NOW + LEASE),
        *of_ids("RELEASE", PRIMARY, (1, 100), **release),
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


def chunks_of_jobs() -> list[Case]:
    job = {"job": "job-700", "batch": 0}
    claim = {**job, "partition": 3, "chunk": 5, "digest": "new", "rows": 1000, "now": NOW}
    hour, day = 3_600_000, 24 * 3_600_000
    prune: dict[str, Any] = {"n": 1000, "rows": 4, "buffers": 30, "fixed": 300}
    return [
        *(
            Case("CLAIM_CHUNK", {**claim, "job": name}, {CHUNKS}, buffers=60)
            for name in ("job-700", "new")
        ),
        *(
            Case("CLOSE_JOB", {**claim, "job": name}, {CHUNKS}, buffers=60)
            for name in ("job-700", "new")
        ),
        Case("SETTLE_CHUNK", {"id": 1, "created": 1, "updated": 0}, {LEDGER}, buffers=60),
        Case("IS_CLOSED", job, {CHUNKS}),
        Case("COUNT_JOB", job, {CHUNKS}, n=10, rows=3),
        *(
            Case("PRUNE_LEDGER", {"age": age, "limit": 1000, "now": NOW}, {RECORDED}, **prune)
            for age in (hour, day)
        ),
        Case("LOOK_AROUND", {}, set(), rows=0, buffers=30),
        Case("DRAW_IDS", {"count": 1000}, set(), rows=0, n=1000),
    ]


def merges() -> list[Case]:
    turn = {"kind": "bulk|json", "now": NOW, "turn": 0}
    whole = {**turn, "job": "job-7", "attempts": ["attempt-14", "attempt-15"]}
    cost: dict[str, Any] = {"n": 1000, "rows": 4, "buffers": 40, "fixed": 300}
    staged = {"delayed_queue_offered"}
    which = {"job": "job-7", "attempts": ["attempt-14"]}
    return [
        Case("MERGE_IF_NOT_EXISTS", turn, {KEYS}, scans=staged, **cost),
        Case("MERGE_OR_UPDATE", turn, {KEYS}, scans=staged, **cost),
        Case("MERGE_STAGE_IF_NOT_EXISTS", whole, {KEYS, ATTEMPTS}, **cost),
        Case("MERGE_STAGE_OR_UPDATE", whole, {KEYS, ATTEMPTS}, **cost),
        Case("COUNT_STAGED", which, {ATTEMPTS}, n=500, rows=3),
        Case("CLEAR_STAGE", {"job": "job-7"}, {ATTEMPTS}, **cost),
        Case(
            "PRUNE_STAGE", {"age": 600_000, "limit": 1000, "now": NOW}, {STAGED}, **cost
        ),
    ]  # fmt: skip


def streams() -> list[Case]:
    lease = {"lease_id": "mine", "lease": LEASE, "now": NOW}
    held = {"lease_id": "lease-1750", "now": NOW}
    ids = {"first": 50_000, "last": 51_000, "now": NOW}
    return [
        *(
            Case(
                "LEASE_DUE",
                {"kind": kind, "limit": limit, "cutoff": cutoff, **lease},
                {DUE, PRIMARY, PAUSES},
                n=limit, rows=5, buffers=40, fixed=400,
            )
            for kind in ("bulk|json", "due|json", "mixed|json")
            for limit in (100, 1000)
            for cutoff in (None, NOW)
        ),
        Case("LEASED_RANGE", held, {LEASES}, n=2, rows=2),
        Case("RENEW_LEASE", {**lease, **held}, {LEASES}, n=100, rows=4, buffers=40, fixed=300),
        Case("ID_RANGE", {"now": NOW}, {PRIMARY}, n=2, rows=2, fixed=300),
        Case("READ_RANGE", ids, {PRIMARY}, n=1000, rows=3, buffers=5, fixed=100),
        Case("READ_LEASED", {**held, "first": 0, "last": 10**9}, {LEASES}, n=100, rows=6),
    ]  # fmt: skip


def archives() -> list[Case]:
    held = {"id": 2600, "holder": "host:1:x", "now": NOW}
    plan = {
        "source": "table-60", "key": "id", "age": "at", "lower": "1", "upper": "2",
        "only": "{}", "cutoff": 0, "expected": 1, "destination": "lake", "holder": "me",
        "lease": LEASE, "now": NOW,
    }  # fmt: skip
    step = {
        "state": "published", "to": "pruned", "staging": None, "rows": None, "digest": None,
        "files": None, "changed": 0,
    }  # fmt: skip
    return [
        Case("PLAN_ARCHIVE", plan, {UNFINISHED}, rows=0, buffers=60),
        Case("UNFINISHED_ARCHIVE", {"source": "table-20", "now": NOW}, {UNFINISHED}),
        Case("HOLD_ARCHIVE", {**held, "dead": "x", "lease": LEASE}, {ARCHIVES}, buffers=60),
        Case("ADVANCE_ARCHIVE", {**held, **step}, {ARCHIVES}, buffers=60),
        Case("COUNT_PRUNED", {**held, "deleted": 1, "lease": LEASE}, {ARCHIVES}, buffers=60),
        Case(
            "SAVE_REPORT", {"figures": "{}", "plots": "{}", "keep": 30, "now": NOW}, {REPORTS},
            n=130, rows=3, buffers=6,
        ),
    ]  # fmt: skip


CASES: Final = [
    *archives(),
    *offers(), *claims(), *leases(), *inspections(), *letters(), *schedules(), *workers(),
    *pauses(), *chunks_of_jobs(), *merges(), *streams(),
]  # fmt: skip
