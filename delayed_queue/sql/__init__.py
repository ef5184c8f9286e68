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

from delayed_queue.sql.consuming import (
    DEAD_JOBS,
    FINISH_JOB,
    NEXT_JOB,
    PEEK_JOBS,
    POP_JOBS,
    READ_DEAD_JOB,
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
from delayed_queue.sql.jobs import (
    ADD_JOBS,
    DROP_DEAD_JOB,
    DROP_JOB,
    FIND_JOB,
    JOB_LETTERS,
    KICK_JOBS,
    PUT_JOBS,
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
from delayed_queue.sql.rates import TAKE_PERMITS
from delayed_queue.sql.schedules import (
    DESCRIBE_SCHEDULE,
    DESCRIBED_SCHEDULES,
    DROP_TICKS,
    LOCK_SCHEDULE,
    PENDING_TICKS,
    READ_SCHEDULE,
    SAVE_SCHEDULE,
)
from delayed_queue.sql.tokens import FIND_TOKEN, USE_TOKEN
from delayed_queue.sql.topics import (
    CONFIGURE_TOPIC,
    CREATE_TOPIC,
    LOCK_JOBS,
    LOCK_TOPIC,
    PRUNE_ANSWERS,
    READ_ANSWER,
    READ_TOPIC,
    SAVE_ANSWER,
    TOPICS,
    TRY_KEY,
)
from delayed_queue.sql.workers import BEAT, ENLIST, PRUNE_WORKERS, RETIRE, THROUGHPUT

__all__ = [
    "ACKNOWLEDGE",
    "ACKNOWLEDGE_LEASE",
    "ACKNOWLEDGE_LEASES",
    "ACKNOWLEDGE_MEMBERS",
    "ADD_JOBS",
    "BEAT",
    "BURY",
    "CLAIM",
    "CONFIGURE_TOPIC",
    "CONSUME",
    "CONTAINS",
    "COUNT_CRASH",
    "CREATE_TOPIC",
    "DEAD_JOBS",
    "DEAD_LETTER_IDS",
    "DEAD_LETTER_KINDS",
    "DESCRIBED_SCHEDULES",
    "DESCRIBE_SCHEDULE",
    "DROP",
    "DROP_ALL",
    "DROP_DEAD_JOB",
    "DROP_DEAD_LETTERS",
    "DROP_JOB",
    "DROP_TICKS",
    "ENLIST",
    "EXPIRE",
    "EXTEND",
    "FIND_JOB",
    "FIND_TOKEN",
    "FINISH_JOB",
    "HELD",
    "IS_PAUSED",
    "JOB_LETTERS",
    "KICK_JOBS",
    "KINDS",
    "LIMIT_WAITS",
    "LOCK_JOBS",
    "LOCK_SCHEDULE",
    "LOCK_TOPIC",
    "NEXT_DUE",
    "NEXT_JOB",
    "NOTIFY",
    "OFFER_BATCH_IF_NOT_EXISTS",
    "OFFER_BATCH_OR_UPDATE",
    "OFFER_IF_NOT_EXISTS",
    "OFFER_OR_UPDATE",
    "OVERVIEW",
    "PAUSE",
    "PEEK_JOBS",
    "PENDING_TICKS",
    "POP_JOBS",
    "PRUNE_ANSWERS",
    "PRUNE_DEAD_LETTERS",
    "PRUNE_WORKERS",
    "PUT_JOBS",
    "READ",
    "READ_ANSWER",
    "READ_DEAD_JOB",
    "READ_SCHEDULE",
    "READ_TOPIC",
    "REDRIVE",
    "RELEASE",
    "RELEASE_LEASES",
    "RESTORE",
    "RESUME",
    "RETIRE",
    "SAVE_ANSWER",
    "SAVE_SCHEDULE",
    "STATS",
    "TAKE_PERMITS",
    "THROUGHPUT",
    "TOPICS",
    "TRY_KEY",
    "USE_TOKEN",
]
