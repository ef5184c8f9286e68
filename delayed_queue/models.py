"""The tables of the core, where Django finds them."""

from __future__ import annotations

from delayed_queue.cron.models import Schedule
from delayed_queue.observe.models import Sample
from delayed_queue.queue.models import (
    BulkRun,
    DeadLetter,
    Limit,
    LimitManager,
    Message,
    MessageManager,
    QueueOverview,
)
from delayed_queue.worker.models import Worker

__all__ = [
    "BulkRun", "DeadLetter", "Limit", "LimitManager", "Message", "MessageManager",
    "QueueOverview", "Sample", "Schedule", "Worker",
]  # fmt: skip
