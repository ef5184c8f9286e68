"""Every hand-written statement of the package, each with its guarantee, shape and index.

Rules that all of them keep:

* One instant per statement. ``%(now)s`` is the caller's clock in epoch milliseconds or NULL;
  NULL means the database's ``statement_timestamp()``, so skewed host clocks cannot matter.
* A write to a leased row names the lease (``"lockUuid"``): a stale write changes nothing.
  ``IS NOT DISTINCT FROM`` lets the same statement act on a row that is *not* leased, which is
  how an operator drops or brings forward a message without racing a worker.
* Arrays are read in place (``= ANY``, ``unnest``): no statement grows with its input, so none
  meets the protocol's 65,535-parameter limit and each is prepared once.
* Arrays travel in binary, ``%(…)b``: left the choice, psycopg sends them as text, which takes
  a thousand payloads 16 times as long, and the server must parse it. Not jsonb: its array is
  one of text on the way there.
"""

from __future__ import annotations

from delayed_queue.sql.archiving import (
    ADVANCE_ARCHIVE,
    COUNT_PRUNED,
    HOLD_ARCHIVE,
    PLAN_ARCHIVE,
    UNFINISHED_ARCHIVE,
)
from delayed_queue.sql.inspection import (
    CONTAINS,
    DROP,
    DROP_ALL,
    KINDS,
    LIMIT_WAITS,
    OVERVIEW,
    READ,
    STATS,
)
from delayed_queue.sql.leasing import (
    ACKNOWLEDGE,
    ACKNOWLEDGE_LEASE,
    ACKNOWLEDGE_LEASES,
    ACKNOWLEDGE_MEMBERS,
    BURY,
    CLAIM,
    CONSUME,
    COUNT_CRASH,
    EXPIRE,
    EXTEND,
    HELD,
    LEASED_MEMBERS,
    NEXT_DUE,
    RELEASE,
    RELEASE_LEASES,
    RESTORE,
)
from delayed_queue.sql.letters import (
    DEAD_LETTER_IDS,
    DEAD_LETTER_KINDS,
    DROP_DEAD_LETTERS,
    PRUNE_DEAD_LETTERS,
    REDRIVE,
)
from delayed_queue.sql.offering import (
    NOTIFY,
    OFFER_BATCH_IF_NOT_EXISTS,
    OFFER_BATCH_OR_UPDATE,
    OFFER_IF_NOT_EXISTS,
    OFFER_OR_UPDATE,
)
from delayed_queue.sql.pauses import IS_PAUSED, PAUSE, RESUME
from delayed_queue.sql.pipeline import (
    CLAIM_CHUNK,
    CLEAR_STAGE,
    CLOSE_JOB,
    COUNT_JOB,
    COUNT_STAGED,
    DRAW_IDS,
    ID_RANGE,
    IS_CLOSED,
    LEASE_DUE,
    LEASED_RANGE,
    LOOK_AROUND,
    MERGE_IF_NOT_EXISTS,
    MERGE_OR_UPDATE,
    MERGE_STAGE_IF_NOT_EXISTS,
    MERGE_STAGE_OR_UPDATE,
    PRUNE_LEDGER,
    PRUNE_STAGE,
    READ_LEASED,
    READ_RANGE,
    RENEW_LEASE,
    SETTLE_CHUNK,
)
from delayed_queue.sql.reporting import SAVE_REPORT
from delayed_queue.sql.schedules import (
    DESCRIBE_SCHEDULE,
    DESCRIBED_SCHEDULES,
    DROP_TICKS,
    LOCK_SCHEDULE,
    PENDING_TICKS,
    READ_SCHEDULE,
    SAVE_SCHEDULE,
)
from delayed_queue.sql.workers import BEAT, ENLIST, PRUNE_WORKERS, RETIRE, THROUGHPUT

__all__ = [
    "ACKNOWLEDGE",
    "ACKNOWLEDGE_LEASE",
    "ACKNOWLEDGE_LEASES",
    "ACKNOWLEDGE_MEMBERS",
    "ADVANCE_ARCHIVE",
    "BEAT",
    "BURY",
    "CLAIM",
    "CLAIM_CHUNK",
    "CLEAR_STAGE",
    "CLOSE_JOB",
    "CONSUME",
    "CONTAINS",
    "COUNT_CRASH",
    "COUNT_JOB",
    "COUNT_PRUNED",
    "COUNT_STAGED",
    "DEAD_LETTER_IDS",
    "DEAD_LETTER_KINDS",
    "DESCRIBED_SCHEDULES",
    "DESCRIBE_SCHEDULE",
    "DRAW_IDS",
    "DROP",
    "DROP_ALL",
    "DROP_DEAD_LETTERS",
    "DROP_TICKS",
    "ENLIST",
    "EXPIRE",
    "EXTEND",
    "HELD",
    "HOLD_ARCHIVE",
    "ID_RANGE",
    "IS_CLOSED",
    "IS_PAUSED",
    "KINDS",
    "LEASED_MEMBERS",
    "LEASED_RANGE",
    "LEASE_DUE",
    "LIMIT_WAITS",
    "LOCK_SCHEDULE",
    "LOOK_AROUND",
    "MERGE_IF_NOT_EXISTS",
    "MERGE_OR_UPDATE",
    "MERGE_STAGE_IF_NOT_EXISTS",
    "MERGE_STAGE_OR_UPDATE",
    "NEXT_DUE",
    "NOTIFY",
    "OFFER_BATCH_IF_NOT_EXISTS",
    "OFFER_BATCH_OR_UPDATE",
    "OFFER_IF_NOT_EXISTS",
    "OFFER_OR_UPDATE",
    "OVERVIEW",
    "PAUSE",
    "PENDING_TICKS",
    "PLAN_ARCHIVE",
    "PRUNE_DEAD_LETTERS",
    "PRUNE_LEDGER",
    "PRUNE_STAGE",
    "PRUNE_WORKERS",
    "READ",
    "READ_LEASED",
    "READ_RANGE",
    "READ_SCHEDULE",
    "REDRIVE",
    "RELEASE",
    "RELEASE_LEASES",
    "RENEW_LEASE",
    "RESTORE",
    "RESUME",
    "RETIRE",
    "SAVE_REPORT",
    "SAVE_SCHEDULE",
    "SETTLE_CHUNK",
    "STATS",
    "THROUGHPUT",
    "UNFINISHED_ARCHIVE",
]
