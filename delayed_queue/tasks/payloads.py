"""Tasks as payloads of messages: ``{"task": path, "args": […], "kwargs": {…}}`` and options."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any, Final

from django.utils.module_loading import import_string

from delayed_queue.messages import to_milliseconds
from delayed_queue.tasks._api import Task
from delayed_queue.tasks.ids import id_of_key, is_id

_signature: Final = lru_cache(maxsize=1000)(inspect.signature)


class TaskGone(Exception):
    """The task cannot be run: it does not import, or its arguments do not fit."""


def payload_of(result: Any) -> dict[str, Any]:
    """Return the payload of an enqueued task. The format is documented for other writers."""
    task = result.task
    payload = common_payload(task, result.backend) | with_arguments(result.args, result.kwargs)
    if task.run_after is not None:
        payload["enqueued"] = to_milliseconds(result.enqueued_at)
    return payload


def common_payload(task: Any, alias: str) -> dict[str, Any]:
    """Return the part that is the same for all messages of a task."""
    payload: dict[str, Any] = {"task": task.module_path}
    if alias != "default":
        payload["backend"] = alias
    if task.priority:
        payload["priority"] = int(task.priority)
    return payload


def with_arguments(args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the part with the arguments, without empty ones."""
    payload: dict[str, Any] = {"args": args} if args else {}
    if kwargs:
        payload["kwargs"] = kwargs
    return payload


def unpack(payload: Any) -> tuple[str, str]:
    """Return the path of the task and the alias of its backend; raise TaskGone."""
    if not isinstance(payload, dict) or not isinstance(payload.get("task"), str):
        raise TaskGone(
            "The message is not a task: its payload must be a dict with 'task', the path of a task."
        )
    return payload["task"], str(payload.get("backend", "default"))


def id_in(payload: Any, kind: str, key: str, scheduled_at_ms: int) -> str:
    """Return the id of a task: from its payload, its key, or derived from its message."""
    found = payload.get("id", key) if isinstance(payload, dict) else key
    return found if is_id(found) else id_of_key(kind, key, scheduled_at_ms)


def task_at(path: str) -> Any:
    """Return the task at a path; raise TaskGone."""
    try:
        found = import_string(path)
    # Importing runs the project's own code.
    except Exception as error:
        raise TaskGone(
            f"The task {path!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Task):
        raise TaskGone(f"{path!r} is a {type(found).__name__}, not a task: decorate it with @task.")
    return found


def check_call(task: Any, args: Any, kwargs: Any) -> None:
    """Raise TaskGone if the task cannot be called with these arguments."""
    try:
        context = [None] if task.takes_context else []
        _signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as error:
        raise TaskGone(f"The arguments of {task.module_path} do not fit: {error}.") from error
