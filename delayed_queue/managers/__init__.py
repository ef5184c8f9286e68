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
from delayed_queue.managers.schedules import ScheduleManager, ScheduleRow, TickRow

__all__ = [
    "ConsumedRow",
    "DeadLetterManager",
    "ExtendedRow",
    "LeasedRow",
    "MessageManager",
    "OverviewRow",
    "RedrivenRow",
    "ScheduleManager",
    "ScheduleRow",
    "StatsRow",
    "StoredRow",
    "TickRow",
]
