"""Test helpers of projects: run enqueued tasks on the connection of the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.db import connections

from delayed_queue.exceptions import HandlerNotFound, did_you_mean
from delayed_queue.messages import Envelope, has_expired
from delayed_queue.queue.base import awaited
from delayed_queue.tasks.backend import DelayedQueueBackend, declared
from delayed_queue.tasks.priorities import TaskQueue, priorities
from delayed_queue.tasks.serving import UNLIMITED, Serving, servings
from delayed_queue.testing.draining import Drained, deliver_treated

_LIMIT: Final = 1_000


def drain(*queues: str, limit: int = _LIMIT, using: str | None = None) -> Drained:
    """Run due tasks until none is left, as a worker does; return how they ended.

    ``queues``: by default all declared ones; the highest priority first. ``limit``: at most N
    tasks. ``using``: one database instead of each that TASKS names. ``drain`` works inside a
    test's transaction: it commits nothing, and results are as after a worker.
    """
    ends: Counter[str] = Counter()
    errors: list[Exception] = []
    before = -1
    # Repeated, because a task of one database may enqueue in another.
    while before < ends.total():
        before = ends.total()
        for each in _databases() if using is None else [using]:
            _run_due(queues, each, limit, ends, errors)
    return Drained(**ends, errors=tuple(errors))


class _Queue(TaskQueue):
    """A queue whose expired tasks are settled, and so get a result, as by a worker."""

    def _drop_expired(self, envelopes: list[Envelope], lease_id: str) -> list[Envelope]:
        return envelopes


def _databases() -> Iterable[str]:
    return dict.fromkeys(each.settings.database for _, each in declared()) or ["default"]


def _run_due(
    queues: Sequence[str], using: str, limit: int, ends: Counter[str], errors: list[Exception]
) -> None:
    priorities.read(using)
    while ends.total() < limit and (found := _next(queues, using)) is not None:
        serving, envelope = found
        end, error = deliver_treated(envelope, serving.call, serving, UNLIMITED, using)
        if has_expired(envelope):
            continue
        ends[end] += 1
        if end == "failed" and isinstance(error, Exception):
            errors.append(error)


def _next(queues: Sequence[str], using: str) -> tuple[Serving, Envelope] | None:
    for name in queues or servings:
        if name not in servings:
            raise HandlerNotFound(
                "No backend of delayed_queue in TASKS declares the queue "
                f"{name!r}.{did_you_mean(name, servings)}"
            )
        for priority in priorities.of(name):
            if (found := _Queue(name, priority, using).try_poll()) is not None:
                return servings[name], found
    return None


class ImmediateBackend(DelayedQueueBackend):
    """For development: ``enqueue`` runs the task at once, in the same steps as a worker.

    It stores, leases, runs, records and settles the task inside the open transaction.
    """

    def enqueue(self, task: Any, args: Any, kwargs: Any, *, batch: Any = None) -> Any:
        result = super().enqueue(task, args, kwargs, batch=batch)
        self._run(task, [result])
        return result

    aenqueue = awaited(enqueue)

    def enqueue_many(self, task: Any, arguments: Iterable[Any], *, batch: Any = None) -> Any:
        results = super().enqueue_many(task, arguments, batch=batch)
        self._run(task, results)
        return results

    def batch_closed(self) -> None:
        drain(using=self.settings.database)

    def _run(self, task: Any, results: Sequence[Any]) -> None:
        # Where QUEUES is empty, tasks of any queue are run.
        servings.setdefault(task.queue_name, Serving(task.queue_name))
        drain(task.queue_name, limit=_LIMIT + len(results), using=self.settings.database)
        if self.supports_get_result and not connections[self.settings.database].needs_rollback:
            for each in results:
                each.refresh()


__all__ = ["Drained", "ImmediateBackend", "drain"]
