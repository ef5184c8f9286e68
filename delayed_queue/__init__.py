"""A delayed message queue and workers for Django on PostgreSQL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayed_queue.batch import Batch as Batch
    from delayed_queue.cron.registry import CronEntry as CronEntry
    from delayed_queue.cron.rules import CronMessage as CronMessage
    from delayed_queue.cron.schedules import CronSchedule as CronSchedule
    from delayed_queue.cron.schedules import DailySchedule as DailySchedule
    from delayed_queue.cron.schedules import PeriodicSchedule as PeriodicSchedule
    from delayed_queue.declaring import handler as handler
    from delayed_queue.exceptions import DelayedQueueError as DelayedQueueError
    from delayed_queue.facade import DelayedQueue as DelayedQueue
    from delayed_queue.handlers import Reject as Reject
    from delayed_queue.handlers import Retry as Retry
    from delayed_queue.handlers import Snooze as Snooze
    from delayed_queue.messages import DeliveryType as DeliveryType
    from delayed_queue.messages import Envelope as Envelope
    from delayed_queue.messages import OfferOutcome as OfferOutcome
    from delayed_queue.messages import ScheduledMessage as ScheduledMessage
    from delayed_queue.queue.batches import MessageBatch as MessageBatch
    from delayed_queue.retries import Groups as Groups
    from delayed_queue.retries import RetryPolicy as RetryPolicy

__version__ = "0.1.0"

# Imported on first use (PEP 562): the package must be importable before Django's apps are
# ready, and the parts without Django on a Spark executor that does not have it.
_HOMES = {
    "Batch": "batch",
    "CronEntry": "cron.registry",
    "CronMessage": "cron.rules",
    "CronSchedule": "cron.schedules",
    "DailySchedule": "cron.schedules",
    "DelayedQueue": "facade",
    "DelayedQueueError": "exceptions",
    "DeliveryType": "messages",
    "Envelope": "messages",
    "Groups": "retries",
    "MessageBatch": "queue.batches",
    "OfferOutcome": "messages",
    "PeriodicSchedule": "cron.schedules",
    "Reject": "handlers",
    "Retry": "handlers",
    "RetryPolicy": "retries",
    "ScheduledMessage": "messages",
    "Snooze": "handlers",
    "handler": "declaring",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
