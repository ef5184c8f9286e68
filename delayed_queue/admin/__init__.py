"""The Django admin of the queues: what is stored and held, and operations on it."""

from __future__ import annotations

from delayed_queue.admin.batches import BatchAdmin
from delayed_queue.admin.bulk_runs import BulkRunAdmin
from delayed_queue.admin.dead_letters import DeadLetterAdmin
from delayed_queue.admin.messages import MessageAdmin, QueueOverviewAdmin
from delayed_queue.admin.schedules import ScheduleAdmin
from delayed_queue.admin.workers import WorkerAdmin

__all__ = [
    "BatchAdmin",
    "BulkRunAdmin",
    "DeadLetterAdmin",
    "MessageAdmin",
    "QueueOverviewAdmin",
    "ScheduleAdmin",
    "WorkerAdmin",
]
