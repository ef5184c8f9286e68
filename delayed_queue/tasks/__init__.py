"""The backend of Django's tasks: ``@task`` functions as messages of queues, and their results.

``task`` is Django's own, or that of the backport where Django has none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayed_queue.tasks._api import task as task
    from delayed_queue.tasks.backend import DelayedQueueBackend as DelayedQueueBackend
    from delayed_queue.tasks.batches import join_task_batch as join_task_batch
    from delayed_queue.tasks.batches import task_batch as task_batch
    from delayed_queue.tasks.policies import Cancelled as Cancelled
    from delayed_queue.tasks.policies import Expired as Expired
    from delayed_queue.tasks.policies import cron as cron
    from delayed_queue.tasks.policies import policy as policy

# Imported on first use: the app is imported before there are models, and settings before apps.
_HOMES = {
    "Cancelled": "policies",
    "DelayedQueueBackend": "backend",
    "Expired": "policies",
    "cron": "policies",
    "join_task_batch": "batches",
    "policy": "policies",
    "task": "_api",
    "task_batch": "batches",
}
__all__ = [
    "Cancelled", "DelayedQueueBackend", "Expired", "cron", "join_task_batch", "policy", "task",
    "task_batch",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
