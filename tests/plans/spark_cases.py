"""The statements of the pipeline: the ledger, the merges, the streams, the archives."""

from __future__ import annotations

from typing import Any, Final

from tests.plans.case import (
    DEAD_DIED,
    DUE,
    KEYS,
    LEASES,
    LIMITS,
    PRIMARY,
    SAMPLES,
    SCHEDULES,
    Each,
    cases,
)
from tests.plans.rows import NOW

LEDGER: Final = "delayed_queue_offer_ledger_pkey"
CHUNKS: Final = "offer_ledger_chunk"
ATTEMPTS: Final = "offer_stage_attempt"

_JOB: Final[dict[str, Any]] = {"job": "job-700", "batch": 0}
_CHUNK: Final[dict[str, Any]] = {
    "batch": 0, "partition": 3, "chunk": 5, "digest": "new", "rows": 1000, "created": 1000,
    "job": Each("job-700", "new"),
}  # fmt: skip
CHUNKS_OF_JOBS: Final = [
    *cases("CLAIM_CHUNK", CHUNKS, **_CHUNK),
    *cases("CLOSE_JOB", CHUNKS, **_CHUNK | {"partition": -1}),
    *cases("OPEN_JOB", CHUNKS, **_CHUNK | {"partition": -2}),
    *cases("COUNT_ENDED", CHUNKS, **_CHUNK | {"digest": "done"}),
    *cases("ENDED_OF", CHUNKS, **_JOB, n=10),
    *cases("SETTLE_CHUNK", LEDGER, id=1, created=1, updated=0),
    *cases("IS_CLOSED", CHUNKS, **_JOB),
    *cases("COUNT_JOB", CHUNKS, job="job-700", n=10),
    *cases("OFFERED_OF", CHUNKS, job="job-700", n=10),
    *cases("PRUNE_LEDGER", "offer_ledger_recorded", age=Each(3_600_000, 24 * 3_600_000),
           limit=1000, fixed=300),
    *cases("NOTIFY_KINDS", channels=["one", "two"], max_rows=0),
    *cases("LOOK_AROUND", max_rows=0),
    *cases("WHICH_DATABASE", max_rows=1),
]  # fmt: skip

_STAGED: Final[dict[str, Any]] = {"n": 1000, "fixed": 300}
_WHOLE: Final[dict[str, Any]] = {
    "turn": 0,
    "job": "job-7",
    "attempts": ["attempt-14", "attempt-15"],
}
_OFFERED: Final = {"delayed_queue_offered"}
MERGES: Final = [
    *cases("MERGE_IF_NOT_EXISTS", KEYS, turn=0, scans=_OFFERED, **_STAGED),
    *cases("MERGE_OR_UPDATE", KEYS, turn=0, scans=_OFFERED, **_STAGED),
    *cases("MERGE_STAGE_IF_NOT_EXISTS", KEYS, ATTEMPTS, **_WHOLE, **_STAGED),
    *cases("MERGE_STAGE_OR_UPDATE", KEYS, ATTEMPTS, **_WHOLE, **_STAGED),
    *cases("MERGE_MEMBERS_IF_NOT_EXISTS", KEYS, turn=0, batch=7, scans=_OFFERED, **_STAGED),
    *cases("MERGE_MEMBERS_OR_UPDATE", KEYS, turn=0, batch=7, scans=_OFFERED, **_STAGED),
    *cases("MERGE_STAGED_MEMBERS_IF_NOT_EXISTS", KEYS, ATTEMPTS, batch=7, **_WHOLE, **_STAGED),
    *cases("MERGE_STAGED_MEMBERS_OR_UPDATE", KEYS, ATTEMPTS, batch=7, **_WHOLE, **_STAGED),
    *cases("MOVE_UPDATED", PRIMARY, batch=8, ids=100),
    *cases("COUNT_STAGED", ATTEMPTS, job="job-7", attempts=["attempt-14"], n=500),
    *cases("CLEAR_STAGE", ATTEMPTS, job="job-7", **_STAGED),
    *cases("PRUNE_STAGE", "offer_stage_recorded", age=600_000, limit=1000, fixed=300),
]  # fmt: skip

_LEASED: Final[dict[str, Any]] = {"kind": "leased|json"}
_TAKEN_OVER: Final[dict[str, Any]] = {
    "deliveries": 1,
    "n": 100,
    "max_rows": 8,
    "fixed": 300,
    **_LEASED,
}
STREAMS: Final = [
    *cases("LEASE_DUE", DUE, PRIMARY, LIMITS, kind=Each("bulk|json", "due|json", "mixed|json"),
           limit=Each(100, 1000), cutoff=Each(None, NOW), lease_id="mine", max_buffers=40,
           fixed=400),
    *cases("BACKLOG", DUE, kind=Each("bulk|json", "due|json", "mixed|json"), cap=100, n=100,
           max_rows=6, max_buffers=6, fixed=100),
    *cases("QUEUE_RULES", DUE, LIMITS, kind=Each("bulk|json"), max_rows=8),
    *cases("QUEUE_RULES", DUE, DEAD_DIED, LIMITS, SCHEDULES, SAMPLES, kind=Each("nothing|json"),
           max_rows=8),
    *cases("LEASED_CUTS", LEASES, lease_id="lease-1760", shares=[0.25, 0.5], n=100, max_rows=6),
    # Other cases leave dead versions of the lease.
    *cases("RENEW_LEASE", LEASES, lease_id="lease-1760", n=100, max_rows=6, fixed=300),
    *cases("COUNT_DELIVERY", PRIMARY, id=1760, lease_id="lease-1760", or_reads=LEASES),
    # Each run leaves dead versions under its lease: no other case uses these leases.
    *cases("TAKE_OVER_LEASE", LEASES, lease_id=Each("lease-1761"), lease_ids=["lease-1761"] * 2,
           **_TAKEN_OVER),
    *cases("TAKE_OVER_LEASE", LEASES, lease_id=Each("new"), lease_ids=["lease-1762", "new"],
           **_TAKEN_OVER),
    *cases("HAS_BATCHES", scans={"delayed_queue_batch"}),
    *cases("REMOVE_MEMBERS", LEASES, lease_id=Each("lease-1760", "nothing"),
           expired_by=Each(None, NOW), n=100, max_rows=6, scans={"delayed_queue_batch"}),
    *cases("SAMPLED_CUTS", PRIMARY, kind=Each("bulk|json", None), shares=[0.25, 0.5], pages=20,
           n=2000, scans={"delayed_queue"}),
    *cases("READ_RANGE", PRIMARY, first=50_000, last=51_000, n=1000, max_buffers=5, fixed=100),
    *cases("READ_LEASED", LEASES, **_LEASED, lease_id="lease-1760", first=0, last=10**9, n=100,
           max_rows=6),
]  # fmt: skip

_ARCHIVE: Final = "delayed_queue_archive_pkey"
_UNFINISHED: Final = "archive_unfinished"
ARCHIVES: Final = [
    *cases("LOCK_ARCHIVES", source="table-60"),
    *cases("PLAN_ARCHIVE", _UNFINISHED, source="table-60", path="lake", max_rows=0),
    *cases("UNFINISHED_ARCHIVE", _UNFINISHED, source="table-20"),
    *cases("ADVANCE_ARCHIVE", _ARCHIVE, id=1_002_600, state="written", to="pruned", files=None,
           rows=None, deleted=1, changed=0),
    *cases("DROP_ARCHIVE", _ARCHIVE, id=1_002_600),
    *cases("SAVE_REPORT", "delayed_queue_report_pkey", figures="{}", plots="{}", n=130),
]  # fmt: skip

SPARK_CASES: Final = [*ARCHIVES, *CHUNKS_OF_JOBS, *MERGES, *STREAMS]
