"""The Django admin of the queues: what is stored, what is held, and what to do about it."""

from __future__ import annotations

from delayed_queue.admin.dead_letters import DeadLetterAdmin
from delayed_queue.admin.failures import BulkRunAdmin
from delayed_queue.admin.messages import MessageAdmin, QueueOverviewAdmin
from delayed_queue.admin.schedules import ScheduleAdmin
from delayed_queue.admin.workers import WorkerAdmin

__all__ = [
    "BulkRunAdmin",
    "DeadLetterAdmin",
    "MessageAdmin",
    "QueueOverviewAdmin",
    "ScheduleAdmin",
    "WorkerAdmin",
]
