"""Batches of tasks: a task that is enqueued when a set of others has finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from delayed_queue.queue.base import awaited
from delayed_queue.queue.batches import OpenBatch, joining_of_id
from delayed_queue.queue.offering import Offering
from delayed_queue.tasks._api import InvalidTask, Task
from delayed_queue.tasks.backend import DelayedQueueBackend, declared
from delayed_queue.tasks.priorities import TaskQueue


class TaskBatch(OpenBatch):
    """A batch of tasks of any queues and backends of one database.

    ``then`` is the result of the task that follows; None in a batch that was joined.
    """

    def __init__(self, backend: Any, queue: Offering, joining: Any, then: Any = None) -> None:
        super().__init__(queue, joining)
        self._backend, self.then = backend, then

    def enqueue(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Enqueue a task as a member; return its result. Raises BatchClosed."""
        return _backend_of(task, self._queue.using).enqueue(task, args, kwargs, batch=self)

    def enqueue_many(self, task: Any, arguments: Iterable[Any]) -> Any:
        """Enqueue members as ``enqueue_many`` of the backend does."""
        return _backend_of(task, self._queue.using).enqueue_many(task, arguments, batch=self)

    aenqueue = awaited(enqueue)
    aenqueue_many = awaited(enqueue_many)

    def close(self) -> bool:
        was_open = super().close()
        self._backend.batch_closed()
        return was_open


def task_batch(
    then: Any,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    on_dead: str = "then",
) -> TaskBatch:
    """Return a batch; the task ``then`` is enqueued when all of its members have finished.

    It is called with ``args`` and ``kwargs``. With ``on_dead="wait"`` a dead letter has not
    finished until it is redriven or deleted. Use it in a ``with`` block, or ``close()`` it.
    """
    backend = _backend_of(then)
    opened, queue, result = backend.open_batch(then, args, kwargs or {}, on_dead)
    return TaskBatch(backend, queue, opened.joining, result)


def join_task_batch(batch_id: int, *, backend: str = "default") -> TaskBatch:
    """Return an open batch by its id, to add members from another place."""
    joining, found = joining_of_id(batch_id), dict(declared()).get(backend)
    if found is None:
        raise InvalidTask(f"TASKS has no backend {backend!r} of delayed_queue.")
    return TaskBatch(found, TaskQueue("default", 0, found.settings.database), joining)


def _backend_of(task: Any, using: str | None = None) -> DelayedQueueBackend:
    """Return the backend of a task that can be in a batch, of that database; raise InvalidTask."""
    if not isinstance(task, Task):
        raise InvalidTask(f"{task!r} is not a task: decorate it with @task.")
    backend, path = task.get_backend(), task.module_path
    if not isinstance(backend, DelayedQueueBackend):
        raise InvalidTask(f"{path} is a task of TASKS[{task.backend!r}], which has no batches.")
    own = backend.settings.database
    if using is not None and using != own:
        raise InvalidTask(f"{path} is stored in the database {own!r}, but the batch in {using!r}.")
    return backend
