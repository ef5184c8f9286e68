"""The tables of the core, where Django finds them."""

from __future__ import annotations

from delayed_queue.cron.models import Schedule, ScheduleRun
from delayed_queue.observe.models import Sample
from delayed_queue.observe.workers import Worker
from delayed_queue.queue.models import (
    BulkRun,
    DeadLetter,
    Limit,
    LimitManager,
    Message,
    MessageManager,
    QueueOverview,
    StoredBatch,
)

__all__ = [
    "BulkRun", "DeadLetter", "Limit", "LimitManager", "Message", "MessageManager",
    "QueueOverview", "Sample", "Schedule", "ScheduleRun", "StoredBatch", "Worker",
]  # fmt: skip
