"""Results as Django's API shows them, made of rows, messages and dead letters."""

from __future__ import annotations

import json
import types
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.messages import from_milliseconds
from delayed_queue.queue.base import awaited
from delayed_queue.tasks._api import AnyResult, TaskError, TaskResultStatus
from delayed_queue.tasks.ids import time_of
from delayed_queue.tasks.payloads import TaskGone, id_in, task_at
from delayed_queue.tasks.policies import QueueTask
from delayed_queue.tasks.priorities import split_kind
from delayed_queue.tasks.store import FoundRow

_REFRESHED: Final = (
    "errors", "_return_value", "finished_at", "started_at", "last_attempted_at", "status",
    "enqueued_at", "worker_ids", "metadata",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTaskResult(AnyResult):
    """A result with the progress of its task in ``metadata``."""

    started_at: datetime | None = None
    last_attempted_at: datetime | None = None
    finished_at: datetime | None = None
    errors: list[TaskError] = field(default_factory=list)
    worker_ids: list[str] = field(default_factory=list)
    _return_value: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Do not normalize: arguments are JSON already."""

    def refresh(self) -> None:
        """Reload what is stored by now, progress included."""
        found = self.task.get_backend().get_result(self.id)
        change(self, **{name: getattr(found, name) for name in _REFRESHED})

    arefresh = awaited(refresh)


class Results(Sequence[Any]):
    """Results of tasks that were enqueued together, each made at its first access.

    ``bare`` has what they share, ``calls`` the id, args and kwargs of each.
    """

    def __init__(self, bare: Any, calls: Sequence[tuple[str, Any, Any]]) -> None:
        self.bare, self.calls = bare, calls
        self._made: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[each] for each in range(len(self))[at]]
        at = range(len(self))[at]
        if at not in self._made:
            task_id, args, kwargs = self.calls[at]
            own: dict[str, Any] = {"errors": [], "worker_ids": [], "metadata": {}}
            self._made[at] = replace(self.bare, id=task_id, args=args, kwargs=kwargs, **own)
        return self._made[at]


# Tasks of results


def as_enqueued(task: Any, **changes: Any) -> Any:
    """Return the task with what it was enqueued with, without validation by a backend."""
    return change(copy(task), **changes)


def change(frozen: Any, **changes: Any) -> Any:
    """Set attributes of a frozen task or result; return it."""
    for name, value in changes.items():
        object.__setattr__(frozen, name, value)
    return frozen


def _task_for_reading(path: str, **enqueued_with: Any) -> Any:
    """Return the task at a path as enqueued; if it is gone, one that cannot be run."""
    try:
        return as_enqueued(task_at(path), **enqueued_with)
    except TaskGone as error:
        made, function = object.__new__(QueueTask), _missing(path, error)
        return change(made, func=function, takes_context=False, **enqueued_with)


def _missing(path: str, error: TaskGone) -> Any:
    """Return a function with the name of a task that cannot be imported; it raises the reason."""

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise error

    module, _, name = path.rpartition(".")
    made = types.FunctionType(missing.__code__, globals(), name, None, missing.__closure__)
    made.__module__, made.__qualname__ = module, name
    return made


# Results of rows


def result_of(task_id: str, rows: Sequence[FoundRow]) -> Any:
    """Return the result that rows of the store make; None if they are of no task.

    A message comes first: its task is to run, or runs. A dead letter comes last.
    """
    stored = rows[0].stored if rows else None
    for message in (row.message for row in rows):
        if message and task_id == _id_in(message):
            return _active(task_id, stored, message)
    if stored and stored["status"]:
        return _made(task_id, stored, stored, TaskResultStatus(stored["status"]))
    for letter in (row.letter for row in rows):
        if letter and task_id == _id_in(letter):
            return _dead(task_id, stored, letter)
    # An operator dropped its message while it ran.
    return _made(task_id, stored, stored, TaskResultStatus.FAILED) if stored else None


Row = dict[str, Any]


def _id_in(row: Row) -> str:
    return id_in(_payload_of(row), row["pKind"], row["pKey"], row["scheduledAtInitially"])


def _payload_of(row: Row) -> Any:
    try:
        return json.loads(bytes.fromhex(row["payload"].removeprefix("\\x")))
    except ValueError:
        return None


def _active(task_id: str, stored: Row | None, message: Row) -> Any:
    is_leased = message["is_leased"]
    status = TaskResultStatus.RUNNING if is_leased else TaskResultStatus.READY
    # The current attempt has no record yet.
    workers = _workers(stored, message["attempts"] - is_leased)
    if is_leased:
        workers.append(f"lease:{message['lockUuid']}")
    return _made(task_id, stored, message, status, worker_ids=workers, finished_at=None)


def _dead(task_id: str, stored: Row | None, letter: Row) -> Any:
    result = _made(
        task_id, stored, letter, TaskResultStatus.FAILED,
        finished_at=_instant(letter["diedAt"]), worker_ids=_workers(stored, letter["attempts"]),
    )  # fmt: skip
    if not result.errors:
        path = f"{DelayedQueueError.__module__}.{DelayedQueueError.__qualname__}"
        text = letter["lastError"] or letter["reason"] or ""
        result.errors.append(TaskError(exception_class_path=path, traceback=text))
    return result


def _workers(stored: Row | None, attempts: int) -> list[str]:
    """Return the worker of each attempt; "" if its process died before it was recorded."""
    found: list[str] = stored["workerIds"] if stored else []
    return found + [""] * (attempts - len(found))


def _made(task_id: str, stored: Row | None, source: Row, status: Any, **differs: Any) -> Any:
    """Return the result of what is stored, and of the row that has its payload."""
    payload, known = _payload_of(source), stored or {}
    said = payload if isinstance(payload, dict) else {}
    queue, priority = split_kind(source["pKind"])
    backend = known.get("backend") or str(said.get("backend", "default"))
    # The payload of a deferred task has the time; the id of another one contains it.
    deferred = said.get("enqueued")
    is_deferred = isinstance(deferred, int)
    due = source.get("scheduledAtInitially", known.get("scheduledAt"))
    attributes: dict[str, Any] = {
        "task": _task_for_reading(
            str(said.get("task", known.get("task", ""))), backend=backend, queue_name=queue,
            priority=priority, run_after=_instant(due) if is_deferred else None,
        ),
        "id": task_id, "status": status,
        "enqueued_at": _instant(deferred if is_deferred else time_of(task_id)),
        "started_at": _instant(known.get("startedAt")),
        "finished_at": _instant(known.get("finishedAt")),
        "last_attempted_at": _instant(known.get("lastAttemptedAt")),
        "args": said.get("args", []), "kwargs": said.get("kwargs", {}), "backend": backend,
        "errors": [TaskError(**each) for each in known.get("errors", ())],
        "worker_ids": known.get("workerIds", []),
        "_return_value": known.get("returnValue"),
        "metadata": known.get("metadata", {}),
    }  # fmt: skip
    return QueueTaskResult(**attributes | differs)


def _instant(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else from_milliseconds(milliseconds)
