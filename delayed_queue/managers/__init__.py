"""Managers whose methods each run one statement of ``sql`` and return plain values."""

from __future__ import annotations

from delayed_queue.managers.letters import DeadLetterManager, RedrivenRow
from delayed_queue.managers.messages import (
    ConsumedRow,
    ExtendedRow,
    LeasedRow,
    MessageManager,
    OverviewRow,
    StatsRow,
    StoredRow,
)
from delayed_queue.managers.pauses import PausedQueueManager
from delayed_queue.managers.rates import PermitsRow, RateManager
from delayed_queue.managers.schedules import ScheduleManager, ScheduleRow, TickRow
from delayed_queue.managers.steps import (
    NO_FLOOR,
    Step,
    acknowledging_leases,
    acknowledging_members,
    burying,
    claiming,
    earliest_first,
    limiting_waits,
    looking_ahead,
    releasing,
    returning_leases,
    run,
    trying_alone,
)
from delayed_queue.managers.tokens import ApiTokenManager, TokenRow
from delayed_queue.managers.topics import (
    AddedRow,
    AnswerRow,
    DeadJobRow,
    IdempotencyKeyManager,
    JobRow,
    OfferedJob,
    PoppedRow,
    TopicManager,
    TopicRow,
)
from delayed_queue.managers.workers import (
    EnlistedRow,
    ThroughputRow,
    WorkerCounts,
    WorkerManager,
)

__all__ = [
    "NO_FLOOR",
    "AddedRow",
    "AnswerRow",
    "ApiTokenManager",
    "ConsumedRow",
    "DeadJobRow",
    "DeadLetterManager",
    "EnlistedRow",
    "ExtendedRow",
    "IdempotencyKeyManager",
    "JobRow",
    "LeasedRow",
    "MessageManager",
    "OfferedJob",
    "OverviewRow",
    "PausedQueueManager",
    "PermitsRow",
    "PoppedRow",
    "RateManager",
    "RedrivenRow",
    "ScheduleManager",
    "ScheduleRow",
    "StatsRow",
    "Step",
    "StoredRow",
    "ThroughputRow",
    "TickRow",
    "TokenRow",
    "TopicManager",
    "TopicRow",
    "WorkerCounts",
    "WorkerManager",
    "acknowledging_leases",
    "acknowledging_members",
    "burying",
    "claiming",
    "earliest_first",
    "limiting_waits",
    "looking_ahead",
    "releasing",
    "returning_leases",
    "run",
    "trying_alone",
]
