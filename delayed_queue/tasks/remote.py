"""Tasks with ``http=True``, which callers of the HTTP API may enqueue."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.tasks._api import InvalidTask, Task
from delayed_queue.tasks.backend import declared
from delayed_queue.tasks.payloads import TaskGone, check_call
from delayed_queue.tasks.policies import policy_of


@dataclass(frozen=True, slots=True)
class OpenTasks:
    """The open tasks, as ``hooks.RemoteCalls``."""

    def is_open(self, name: str) -> bool:
        return _open_task(name) is not None

    def call(
        self, name: str, args: list[Any], kwargs: dict[str, Any], at: datetime | None
    ) -> dict[str, Any]:
        """Enqueue the task at the commit of the open transaction."""
        task = _open_task(name)
        try:
            check_call(task, args, kwargs)
            result = task.using(run_after=at).enqueue(*args, **kwargs)
        except (InvalidTask, TaskGone, TypeError, ValueError) as error:
            raise InvalidMessage(f"The task cannot be enqueued: {error}") from error
        return {"taskId": result.id, "task": name, "queue": task.queue_name}


def _open_task(name: str) -> Any:
    """Return the open task of a path, or None. A caller cannot cause the import of a module."""
    module, _, attribute = name.rpartition(".")
    task = getattr(sys.modules.get(module), attribute, None)
    is_open = isinstance(task, Task) and policy_of(task).http and task.backend in dict(declared())
    return task if is_open else None
