"""The cases of the pipeline: the ledger, the merges, the streams, the archives."""

from __future__ import annotations

from typing import Any, Final

from tests.plans.case import (
    DEAD_DIED,
    DUE,
    KEYS,
    LEASE,
    LEASES,
    PAUSES,
    PRIMARY,
    SAMPLES,
    SCHEDULES,
    Case,
)
from tests.plans.conftest import NOW

ARCHIVES: Final = "delayed_queue_archive_pkey"
UNFINISHED: Final = "archive_unfinished"
FILES: Final = "archive_file_name"
REPORTS: Final = "delayed_queue_report_pkey"

LEDGER: Final = "delayed_queue_offer_ledger_pkey"
CHUNKS: Final = "offer_ledger_chunk"
RECORDED: Final = "offer_ledger_recorded"
ATTEMPTS: Final = "offer_stage_attempt"
STAGED: Final = "offer_stage_recorded"


def chunks_of_jobs() -> list[Case]:
    job = {"job": "job-700", "batch": 0}
    claim = {**job, "partition": 3, "chunk": 5, "digest": "new", "rows": 1000,
             "created": 1000, "now": NOW}  # fmt: skip
    hour, day = 3_600_000, 24 * 3_600_000
    prune: dict[str, Any] = {"n": 1000, "rows": 4, "buffers": 30, "fixed": 300}
    return [
        *(
            Case("CLAIM_CHUNK", {**claim, "job": name}, {CHUNKS}, buffers=60)
            for name in ("job-700", "new")
        ),
        *(
            Case("CLOSE_JOB", {**claim, "job": name, "partition": -1}, {CHUNKS}, buffers=60)
            for name in ("job-700", "new")
        ),
        *(
            Case("OPEN_JOB", {**claim, "job": name, "partition": -2}, {CHUNKS}, buffers=60)
            for name in ("job-700", "new")
        ),
        *(
            Case("COUNT_ENDED", {**claim, "job": name, "digest": "done"}, {CHUNKS}, buffers=60)
            for name in ("job-700", "new")
        ),
        Case("ENDED_OF", {"job": "job-701", "batch": 0}, {CHUNKS}, n=10, rows=4, buffers=60),
        Case("SETTLE_CHUNK", {"id": 1, "created": 1, "updated": 0}, {LEDGER}, buffers=60),
        Case("IS_CLOSED", job, {CHUNKS}),
        Case("ANSWER_OF", {"job": "job-7"}, {CHUNKS}),
        Case("NOTE_ANSWER", {"job": "job-7", "answer": "{}"}, {CHUNKS}, buffers=60),
        Case("COUNT_JOB", job, {CHUNKS}, n=10, rows=3),
        Case("OFFERED_OF", {"job": "job-700"}, {CHUNKS}, n=10, rows=3),
        *(
            Case("PRUNE_LEDGER", {"age": age, "limit": 1000, "now": NOW}, {RECORDED}, **prune)
            for age in (hour, day)
        ),
        Case("NOTIFY_KINDS", {"channels": ["one", "two"]}, set(), rows=0),
        Case("LOOK_AROUND", {}, set(), rows=0, buffers=30),
        Case("WHICH_DATABASE", {}, set(), rows=1, buffers=30),
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
        Case("COUNT_STAGED", which, {ATTEMPTS}, n=500, rows=4),
        Case("CLEAR_STAGE", {"job": "job-7"}, {ATTEMPTS}, **cost),
        Case(
            "PRUNE_STAGE", {"age": 600_000, "limit": 1000, "now": NOW}, {STAGED}, **cost
        ),
    ]  # fmt: skip


def streams() -> list[Case]:
    lease = {"lease_id": "mine", "lease": LEASE, "now": NOW}
    held = {"lease_id": "lease-1760", "now": NOW}
    kind = {"kind": "leased|json"}
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
        *(
            Case(
                "BACKLOG", {"kind": kind, "cap": 100, "now": NOW}, {DUE}, n=100, rows=6,
                buffers=6, fixed=100,
            )
            for kind in ("bulk|json", "due|json", "mixed|json")
        ),
        Case("QUEUE_RULES", {"kind": "bulk|json"}, {DUE, PAUSES}, rows=8, buffers=60),
        Case(
            "QUEUE_RULES", {"kind": "nothing|json"},
            {DUE, DEAD_DIED, PAUSES, SCHEDULES, SAMPLES}, rows=8, buffers=60,
        ),
        Case("LEASED_PIECES", {**held, "most": 8, "least": 10}, {LEASES}, n=100, rows=6),
        # With what other cases have rolled back of the lease.
        Case("RENEW_LEASE", {**lease, **held}, {LEASES}, n=100, rows=6, buffers=40, fixed=300),
        Case(
            "COUNT_DELIVERY", {"id": 1760, "lease_id": "lease-1760"}, {PRIMARY}, buffers=60,
            or_reads={LEASES},
        ),
        # Of leases of their own: each of the six runs (three states of the statistics, two plans)
        # leaves dead versions under the id that it was for.
        *(
            Case(
                "TAKE_OVER_LEASE",
                {**lease, **kind, "lease_id": to, "lease_ids": [of, to], "deliveries": 1},
                {LEASES},
                n=100, rows=8, buffers=40, fixed=300,
            )
            for of, to in (("lease-1761", "lease-1761"), ("lease-1762", "new"))
        ),
        *(
            Case(
                "SAMPLED_CUTS", {"kind": kind, "parts": 8, "pages": 20}, set(), n=2000, rows=4,
                scans={"delayed_queue"},
            )
            for kind in ("bulk|json", None)
        ),
        Case("ID_RANGE", {"now": NOW}, {PRIMARY}, n=2, rows=2, fixed=300),
        Case("READ_RANGE", ids, {PRIMARY}, n=1000, rows=3, buffers=5, fixed=100),
        Case("READ_LEASED", {**held, **kind, "first": 0, "last": 10**9}, {LEASES}, n=100, rows=6),
    ]  # fmt: skip


def archives() -> list[Case]:
    held = {"id": 2600, "holder": "host:1:x", "now": NOW}
    plan = {
        "source": "table-60", "path": "lake", "holder": "me", "lease": LEASE, "now": NOW,
    }  # fmt: skip
    step = {"state": "written", "to": "pruned", "rows": None, "deleted": 1, "changed": 0}
    names = [f"new-{n}" for n in range(100)]
    files = {"id": 2600, "names": names, **dict.fromkeys(("sizes", "rows", "checksums"), [1] * 100)}
    batch = {"name": "part-7", "from": 0, "to": 500, "deleted": 500, "changed": 0}
    return [
        Case("PLAN_ARCHIVE", plan, {UNFINISHED}, rows=0, buffers=60),
        Case("UNFINISHED_ARCHIVE", {"source": "table-20", "now": NOW}, {UNFINISHED}),
        Case("HOLD_ARCHIVE", {**held, "dead": "x", "lease": LEASE}, {ARCHIVES}, buffers=60),
        Case("ADVANCE_ARCHIVE", {**held, **step}, {ARCHIVES}, buffers=60),
        Case("DROP_ARCHIVE", held, {ARCHIVES}, buffers=60),
        Case("SAVE_FILES", files, set(), n=100, rows=4, buffers=60),
        Case("FILES_OF", {"id": 2600}, {FILES}, n=100, rows=4),
        Case("FILE_TO_PRUNE", {**held, "name": "part-7"}, {FILES, ARCHIVES}),
        Case("COUNT_BATCH", {**held, **batch}, {FILES, ARCHIVES}, buffers=60),
        Case(
            "SAVE_REPORT", {"figures": "{}", "plots": "{}", "keep": 30, "now": NOW}, {REPORTS},
            n=130, rows=3, buffers=6,
        ),
    ]  # fmt: skip


PIPELINE_CASES: Final = [*archives(), *chunks_of_jobs(), *merges(), *streams()]
