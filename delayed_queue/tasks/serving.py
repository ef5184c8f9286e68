"""Serving the queues of tasks: a handler for each queue, and how it treats its messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from django.utils.translation import gettext

from delayed_queue.codecs import codec_named
from delayed_queue.db.sql import Step
from delayed_queue.handlers import Failure, Handler, HandlerSignal, Manner, Verdict, registry
from delayed_queue.messages import Envelope
from delayed_queue.retries import Groups, RetryPolicy
from delayed_queue.tasks.backend import backend_of, declared, forget_declared
from delayed_queue.tasks.payloads import TaskGone, check_call, id_in, task_at, unpack
from delayed_queue.tasks.policies import MAX_ATTEMPTS
from delayed_queue.tasks.priorities import kind_of_priority, priorities
from delayed_queue.tasks.run import (
    Run,
    acall,
    acknowledgement,
    announce_end,
    call,
    forget_runnables,
    runnable_of,
    worker,
)
from delayed_queue.tasks.store import cancelled_among, recording

# The handler's policy. Each task has its own, which is stricter.
UNLIMITED: Final = RetryPolicy((timedelta(seconds=5),), MAX_ATTEMPTS)
servings: Final[dict[str, Serving]] = {}


def serve_declared() -> None:
    """Register a handler for each declared queue that has none."""
    for _, backend in declared():
        for queue in sorted(backend.queues):
            serving = servings.setdefault(queue, Serving(queue))
            if queue not in registry:
                registry.add(serving.handler(backend.settings.groups.get(queue)))


def stop_serving() -> None:
    """Remove the handlers and the cached settings."""
    for queue in servings:
        if queue in registry and is_served(queue):
            registry.remove(queue)
    servings.clear()
    forget_declared()
    forget_runnables()
    priorities.forget()


def is_served(queue: str) -> bool:
    """Return whether the handler of the queue runs tasks."""
    return isinstance(registry.get(queue).treatment, Serving)


class Serving:
    """The treatment of one queue's messages: a run of a task for each."""

    call, acall = staticmethod(call), staticmethod(acall)
    acknowledging = staticmethod(acknowledgement)

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._kind = kind_of_priority(queue, 0)

    def __str__(self) -> str:
        return gettext("tasks")

    def handler(self, groups: Groups | None) -> Handler:
        return Handler(
            self.queue, call, codec_named("json"), self._kind, UNLIMITED, groups=groups,
            treatment=self,
        )  # fmt: skip

    def manner(self, envelope: Envelope) -> Manner:
        runnable = runnable_of(envelope.payload, self.queue)
        envelope.state = Run(runnable, self._id_of(envelope), envelope)
        if runnable.problem is None:
            envelope.handler = runnable.names[0]
        return runnable.manner

    def _id_of(self, envelope: Envelope) -> str:
        return id_in(envelope.payload, self._kind, envelope.key, envelope.scheduled_at_ms)

    def judge(self, error: BaseException, envelope: Envelope) -> Verdict | None:
        run: Run | None = envelope.state
        if run is None:
            return None
        if run.is_running and not isinstance(error, HandlerSignal):
            # Its time is over. A thread may still run it.
            run.failed(error)
            announce_end(run)
        return run.verdict

    def unwanted(self, envelopes: Sequence[Envelope], using: str) -> Iterator[Envelope]:
        running = {self._id_of(each): each for each in envelopes}
        if running:
            yield from (running[each] for each in cancelled_among(list(running), using=using))

    def recording(self, failed: Sequence[Failure]) -> list[Step]:
        runs = list(self._runs_of(failed))
        return [recording(runs, worker.as_json)] if runs else []

    def _runs_of(self, failed: Sequence[Failure]) -> Iterator[Run]:
        """Yield the runs to record: with the verdict on each message, which may be another's."""
        for envelope, error, verdict in failed:
            if envelope.state is None:
                self.manner(envelope)
            run: Run = envelope.state
            if run.runnable.is_kept and (verdict.counts or verdict.is_dead):
                run.settle(error, verdict)
                yield run

    def refusal(self, payload: object) -> str:
        try:
            path, alias = unpack(payload)
            backend_of(alias)
            check_call(task_at(path), payload.get("args", ()), payload.get("kwargs", {}))  # type: ignore[attr-defined] # a dict
        except TaskGone as error:
            return str(error)
        return ""

    def kinds(self) -> Sequence[str]:
        return priorities.kinds(self.queue)
