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
from delayed_queue.managers.schedules import ScheduleManager, ScheduleRow, TickRow
from delayed_queue.managers.workers import (
    EnlistedRow,
    ThroughputRow,
    WorkerCounts,
    WorkerManager,
)

__all__ = [
    "ConsumedRow",
    "DeadLetterManager",
    "EnlistedRow",
    "ExtendedRow",
    "LeasedRow",
    "MessageManager",
    "OverviewRow",
    "PausedQueueManager",
    "RedrivenRow",
    "ScheduleManager",
    "ScheduleRow",
    "StatsRow",
    "StoredRow",
    "ThroughputRow",
    "TickRow",
    "WorkerCounts",
    "WorkerManager",
]
