"""Results as Django's API shows them, made of rows, messages and dead letters."""

from __future__ import annotations

import inspect
import json
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.utils.module_loading import import_string

from delayed_queue.exceptions import DelayedQueueError, InvalidMessage
from delayed_queue.messages import check_text, from_milliseconds
from delayed_queue.tasks._api import (
    AnyResult,
    InvalidTask,
    Task,
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
)
from delayed_queue.tasks.options import id_of_key, is_id, split_kind, time_of
from delayed_queue.tasks.policies import QueueTask, advice_on, leaves, policy_of
from delayed_queue.tasks.store import FoundRow

# Largest return value, in characters of JSON; a result is read as a whole.
_MOST_VALUE: Final = 10_000_000
# As dumps() makes it, but once.
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class TaskGone(Exception):
    """The task cannot be run: it does not import, or its arguments do not fit."""


class UnstorableResult(Exception):
    """The return value cannot be stored: the task failed and is not run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTaskResult(AnyResult):
    """A result with what its task says of its progress: ``metadata``."""

    metadata: dict[str, Any] = field(default_factory=dict)

    def refresh(self) -> None:
        """Reload what the store knows by now, progress included."""
        self._take_over(self.task.get_backend().get_result(self.id))

    async def arefresh(self) -> None:
        await sync_to_async(self.refresh)()

    def _take_over(self, found: Any) -> None:
        for name in _REFRESHED:
            object.__setattr__(self, name, getattr(found, name))


_REFRESHED: Final = (
    "errors", "_return_value", "finished_at", "started_at", "last_attempted_at", "status",
    "enqueued_at", "worker_ids", "metadata",
)  # fmt: skip


def bare_result(**attributes: Any) -> Any:
    """Return a result of what is JSON already, without going through it again."""
    result, put = object.__new__(QueueTaskResult), object.__setattr__
    for name, value in attributes.items():
        put(result, name, value)
    return result


class Results(Sequence[Any]):
    """Results of tasks that were enqueued together; each is made, once, when it is looked at."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self._positions, self._make = range(length), lru_cache(None)(make)

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, at: Any) -> Any:
        found = self._positions[at]
        return [*map(self._make, found)] if isinstance(found, range) else self._make(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTaskContext(TaskContext):
    """The context of a running task that ``takes_context``."""

    run: Any

    @property
    def attempt(self) -> int:
        attempt: int = self.run.envelope.attempt
        return attempt

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody asked for the task to end; raise ``Cancelled`` to do so."""
        is_cancelled: bool = self.run.envelope.is_cancelled
        return is_cancelled

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far the task is, from 0 to 1; written at most once a second, as metadata."""
        if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ValueError(f"progress is a number from 0 to 1, not {fraction!r}.")
        self.run.note({"progress": fraction, "message": check_text("message", str(message))})


def unpack(payload: Any, kind: str, key: str, scheduled_at_ms: int) -> tuple[str, str, str]:
    """Return id, path and backend of a task by its message; raises TaskGone for what is none."""
    if not isinstance(payload, dict) or not isinstance(payload.get("task"), str):
        raise TaskGone(
            "The message is not a task: its payload must be a dict with 'task', the path of a task."
        )
    known = id_in(payload, kind, key, scheduled_at_ms)
    return known, payload["task"], str(payload.get("backend", "default"))


def id_in(payload: dict[str, Any], kind: str, key: str, scheduled_at_ms: int) -> str:
    """Return the id of a task by its message: what that says, its key, or what is made of it."""
    found = payload.get("id", key)
    return found if is_id(found) else id_of_key(kind, key, scheduled_at_ms)


def task_at(path: str) -> Any:
    """Return the task at a path; raises TaskGone."""
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


_signature: Final = lru_cache(maxsize=1000)(inspect.signature)


class OpenTasks:
    """The tasks that say ``http=True``, as ``hooks.RemoteCalls``."""

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
    """Return the task of that path if it is open; no caller has a module imported by its name."""
    from delayed_queue.tasks.serving import declared

    module, _, attribute = name.rpartition(".")
    task = getattr(sys.modules.get(module), attribute, None)
    is_open = isinstance(task, Task) and policy_of(task).http and task.backend in dict(declared())
    return task if is_open else None


def as_stored(task: Any, value: Any) -> tuple[Any, str]:
    """Return a return value as JSON has it, and its text for jsonb; raise UnstorableResult."""
    try:
        plain = normalize_json(value)
        text = _encode(plain)
        text.encode()
    # Mappings and sequences may be the project's own, and run its code.
    except Exception as error:
        raise UnstorableResult(_refusal(task, value, error)) from None
    if len(text) > _MOST_VALUE:
        fault = f"it has {len(text)} characters of JSON: store it elsewhere and return its key"
        raise UnstorableResult(_cannot_store(task, "return value", fault))
    if "\\u0000" in text:
        for where, each in leaves("return value", plain):
            if isinstance(each, str) and "\x00" in each:
                fault = "it has a NUL character, which PostgreSQL cannot store"
                raise UnstorableResult(_cannot_store(task, where, fault))
    return plain, text


def _refusal(task: Any, value: Any, error: Exception) -> str:
    """Return the fault of a value that is no JSON, with the path of the part that has it."""
    if isinstance(error, RecursionError):
        fault = "it is nested too deeply, or contains itself"
        return _cannot_store(task, "return value", fault)
    if isinstance(error, TypeError | ValueError):
        for where, each in leaves("return value", value):
            if advice := advice_on(each):
                return _cannot_store(task, f"{where}, {type(each).__name__},", advice)
    return _cannot_store(task, "return value", f"{type(error).__name__}: {error}")


def _cannot_store(task: Any, where: str, fault: str) -> str:
    return f"{task.module_path}: the {where} cannot be stored: {fault}."


def task_for_reading(path: str, **attributes: Any) -> Any:
    """Return the task at a path, as enqueued; one that cannot be run if there is none any more."""
    try:
        return as_enqueued(task_at(path), **attributes)
    except TaskGone as error:
        return as_enqueued(_Missing(path, error), **attributes)


class _Missing:
    """In the place of a task that cannot be imported: its name, and the reason."""

    def __init__(self, path: str, error: TaskGone) -> None:
        def missing(*args: Any, **kwargs: Any) -> Any:
            raise error

        module, _, name = path.rpartition(".")
        self.func = types.FunctionType(
            missing.__code__, missing.__globals__, name, None, missing.__closure__
        )
        self.func.__module__, self.func.__qualname__ = module, name
        self.takes_context = False


def as_enqueued(
    task: Any, *, backend: str, queue: str, priority: int, run_after: datetime | None
) -> Any:
    """Return the task with what it was enqueued with; no backend is asked whether it may be."""
    made = object.__new__(type(task) if isinstance(task, Task) else QueueTask)
    for name in _fields_of(type(made)):
        default = _DEFAULTS.get(name)
        object.__setattr__(made, name, getattr(task, name, default))
    for name, value in {
        "backend": backend, "queue_name": queue, "priority": priority, "run_after": run_after,
    }.items():  # fmt: skip
        object.__setattr__(made, name, value)
    return made


_DEFAULTS: Final = {"transactional": False, "replace": False, "http": False}


def _fields_of(cls: type[Any]) -> tuple[str, ...]:
    return tuple(cls.__dataclass_fields__)


def result_of(task_id: str, rows: Sequence[FoundRow]) -> Any:
    """Return the result that rows of the store make; None where they know of none.

    A message that is there says more than anything else: the task is to run, or running.
    """
    for row in rows:
        if row.message_id is not None and _is_of(
            task_id,
            row.message_kind,
            row.message_key,
            row.message_payload,
            row.message_scheduled_at,
        ):
            return _active(task_id, row)
    if rows and rows[0].status:
        return _stored(task_id, rows[0], TaskResultStatus(rows[0].status))
    for row in rows:
        if row.letter_id is not None and _is_of(
            task_id, row.letter_kind, row.letter_key, row.letter_payload, row.letter_scheduled_at
        ):
            return _dead(task_id, row)
    # Dropped by an operator, in the midst: it ended, and nobody knows how.
    return _stored(task_id, rows[0], TaskResultStatus.FAILED) if rows and rows[0].task else None


def _is_of(task_id: str, kind: Any, key: Any, data: Any, scheduled_at: Any) -> bool:
    try:
        return unpack(_read(data), kind, key, scheduled_at)[0] == task_id
    except TaskGone:
        return bool(key == task_id)


def _read(data: Any) -> Any:
    try:
        return json.loads(bytes(data))
    except ValueError:
        return None


def _active(task_id: str, row: FoundRow) -> Any:
    status = TaskResultStatus.RUNNING if row.is_leased else TaskResultStatus.READY
    # The current attempt has no record yet.
    workers = _workers(row, (row.message_attempts or 0) - bool(row.is_leased))
    if row.is_leased:
        workers.append(f"lease:{row.lease_id}")
    return _made(
        task_id, row, status, row.message_kind, row.message_payload,
        row.message_scheduled_at, worker_ids=workers, finished_at=None,
    )  # fmt: skip


def _stored(task_id: str, row: FoundRow, status: Any) -> Any:
    return _made(task_id, row, status, row.kind, row.payload, row.scheduled_at)


def _dead(task_id: str, row: FoundRow) -> Any:
    result = _made(
        task_id, row, TaskResultStatus.FAILED, row.letter_kind, row.letter_payload,
        row.letter_scheduled_at, finished_at=_instant(row.died_at),
        worker_ids=_workers(row, row.letter_attempts or 0),
    )  # fmt: skip
    if not result.errors:
        path = f"{DelayedQueueError.__module__}.{DelayedQueueError.__qualname__}"
        text = row.last_error or row.reason or ""
        result.errors.append(TaskError(exception_class_path=path, traceback=text))
    return result


def _workers(row: FoundRow, attempts: int) -> list[str]:
    """Return the worker of each attempt; "" for one whose process died before it left a record."""
    found: list[str] = json.loads(row.worker_ids or "[]")
    return found + [""] * (attempts - len(found))


def _made(
    task_id: str, row: FoundRow, status: Any, kind: Any, data: Any, scheduled_at: Any,
    **differs: Any,
) -> Any:  # fmt: skip
    payload = _read(data)
    said = payload if isinstance(payload, dict) else {}
    queue, priority = split_kind(kind)
    backend = row.backend or str(said.get("backend", "default"))
    # Of a deferred one it is said; of others the id does: so it is the same wherever it is asked.
    deferred = said.get("enqueued")
    is_later = isinstance(deferred, int)
    enqueued_at = deferred if isinstance(deferred, int) else time_of(task_id)
    attributes: dict[str, Any] = {
        "task": task_for_reading(
            str(said.get("task", row.task or "")),
            backend=backend, queue=queue, priority=priority,
            run_after=_instant(scheduled_at) if is_later else None,
        ),
        "id": task_id, "status": status, "enqueued_at": _instant(enqueued_at),
        "started_at": _instant(row.started_at), "finished_at": _instant(row.finished_at),
        "last_attempted_at": _instant(row.last_attempted_at),
        "args": said.get("args", []), "kwargs": said.get("kwargs", {}), "backend": backend,
        "errors": [TaskError(**each) for each in json.loads(row.errors or "[]")],
        "worker_ids": json.loads(row.worker_ids or "[]"),
        "_return_value": json.loads(row.return_value or "null"),
        "metadata": json.loads(row.metadata or "{}"),
    }  # fmt: skip
    return bare_result(**{**attributes, **differs})


def _instant(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else from_milliseconds(milliseconds)
