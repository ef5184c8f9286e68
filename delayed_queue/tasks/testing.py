"""For tests of projects: run what was enqueued, on the connection of the test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections

from delayed_queue.db.sql import Step
from delayed_queue.db.statements import fetch, fetch_all
from delayed_queue.exceptions import HandlerNotFound, did_you_mean
from delayed_queue.handlers import Verdict
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.queue.store.settle import acknowledging_members, dead_lettering, releasing
from delayed_queue.tasks.backend import DelayedQueueBackend
from delayed_queue.tasks.serving import Serving, TaskQueue, declared, priorities, servings
from delayed_queue.testing.draining import Drained, mended

_END: Final = "failed"
_LIMIT: Final = 1_000


def drain(*queues: str, limit: int = _LIMIT, using: str | None = None) -> Drained:
    """Run tasks that are due until none is left, as a worker would; return how they ended.

    Of all declared queues, or of those named, the most urgent first; of each database that TASKS
    names, or of ``using`` alone. Inside a test's transaction too: nothing is committed, and
    results are found as after a worker. At most ``limit``.
    """
    ends: Counter[str] = Counter()
    errors: list[Exception] = []
    before = -1
    # Again, for a task of one database may enqueue in another.
    while before < ends.total():
        before = ends.total()
        for each in _databases() if using is None else [using]:
            _run_due(queues, each, limit, ends, errors)
    return Drained(**ends, errors=tuple(errors))


def _databases() -> Iterable[str]:
    return dict.fromkeys(each.settings.database for _, each in declared()) or ["default"]


def _run_due(
    queues: Sequence[str], using: str, limit: int, ends: Counter[str], errors: list[Exception]
) -> None:
    priorities.read(using)
    while ends.total() < limit and (found := _next(queues, using)) is not None:
        error = _handled(*found, using)
        end = _settled(*found, error, using)
        ends[end] += 1
        if end == _END and isinstance(error, Exception):
            errors.append(error)


def _next(queues: Sequence[str], using: str) -> tuple[Serving, Envelope] | None:
    for name in queues or servings:
        if name not in servings:
            raise HandlerNotFound(
                "No backend of delayed_queue in TASKS declares the queue "
                f"{name!r}.{did_you_mean(name, servings)}"
            )
        for priority in servings[name].priorities:
            if (found := TaskQueue(name, priority, using).try_poll()) is not None:
                return servings[name], found
    return None


def _handled(serving: Serving, envelope: Envelope, using: str) -> BaseException | None:
    try:
        with mended(using):
            if serving.manner(envelope).is_async:
                async_to_sync(serving.acall)(envelope)
            else:
                serving.call(envelope)
    except KeyboardInterrupt:  # who asks for an end gets it, as of Django's own backend
        raise
    # A task may raise anything, and here as in a worker that is an answer.
    except BaseException as error:
        return error
    return None


def _settled(serving: Serving, envelope: Envelope, error: BaseException | None, using: str) -> str:
    """Write what a worker writes about it, in one transaction; return the word for its end."""
    if error is None:
        step = serving.acknowledging([envelope]) or _acknowledging(envelope)
        is_settled = envelope.is_settled or bool(fetch(using, *step))
        return "handled" if is_settled else "lost"
    verdict = serving.verdict(error, envelope)
    steps = [*serving.recording([(envelope, error, verdict)]), _ending(envelope, verdict)]
    if not fetch_all(using, steps)[-1]:
        return "lost"
    return _END if verdict.counts else "snoozed"


def _acknowledging(envelope: Envelope) -> Step:
    return acknowledging_members([envelope.lease_id], [envelope.message_id])


def _ending(envelope: Envelope, verdict: Verdict) -> Step:
    if verdict.delay is None:
        return dead_lettering(
            envelope.lease_id, envelope.message_id, verdict.reason or "rejected",
            verdict.error or None,
        )  # fmt: skip
    return releasing(
        envelope.lease_id, [envelope.message_id], verdict.delay // MILLISECOND,
        0 if verdict.counts else 1, verdict.error or None,
    )  # fmt: skip


class ImmediateBackend(DelayedQueueBackend):
    """For development: each task is run where it is enqueued, on the same way as in a worker.

    Stored, leased, run, recorded and settled before the call returns, and inside the transaction
    that is open there.
    """

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        self._run(task, [result])
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        return await sync_to_async(self.enqueue, thread_sensitive=True)(task, args, kwargs)

    def enqueue_many(self, task: Any, arguments: Iterable[Any]) -> Sequence[Any]:
        results = super().enqueue_many(task, arguments)
        self._run(task, results)
        return results

    def _run(self, task: Any, results: Sequence[Any]) -> None:
        # Where QUEUES is empty, tasks of any queue are run.
        servings.setdefault(task.queue_name, Serving(task.queue_name))
        drain(task.queue_name, limit=_LIMIT + len(results), using=self.settings.database)
        if self.supports_get_result and not connections[self.settings.database].needs_rollback:
            for each in results:
                each.refresh()


__all__ = ["Drained", "ImmediateBackend", "drain"]
