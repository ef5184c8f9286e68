"""``@cron`` on a task: each tick of a schedule enqueues it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from delayed_queue.cron.registry import cron as declare
from delayed_queue.cron.rules import MissedTicks
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.tasks._api import Task, normalize_json
from delayed_queue.tasks.options import kind_of_priority

T = TypeVar("T")


def cron(
    schedule: Any,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timezone: str | None = None,
    missed: MissedTicks | str = MissedTicks.LATEST,
) -> Callable[[T], T]:
    """Have the task below run at the ticks of a schedule, with these arguments; return it.

    Above ``@task``, in a module named ``tasks`` of an installed app, which workers import.
    """

    def register(task: T) -> T:
        if not isinstance(task, Task):
            raise InvalidConfiguration(f"@cron stands above @task; {task!r} is no task.")
        said = {"args": list(args), "kwargs": dict(kwargs or {})}
        payload = {"task": task.module_path, **normalize_json(said)}
        if task.backend != "default":
            payload["backend"] = task.backend

        def tick(at: datetime) -> Any:
            return payload

        tick.__module__, tick.__qualname__ = task.func.__module__, task.func.__qualname__
        declare(
            task.queue_name, task.module_path, schedule, timezone=timezone,
            kind=kind_of_priority(task.queue_name, 0), missed=missed,
        )(tick)  # fmt: skip
        return task

    return register
