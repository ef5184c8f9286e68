"""Runs of tasks: deliveries of their messages, from the claim to the recorded result."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from django.db import transaction

from delayed_queue.conf import get_settings
from delayed_queue.db.sql import Step
from delayed_queue.durations import ZERO, parse_duration
from delayed_queue.handlers import (
    HandlerSignal,
    Manner,
    Verdict,
    attempts_used_up,
    error_text,
    judge,
    storable,
)
from delayed_queue.messages import Envelope, check_text, encode_headers, from_milliseconds
from delayed_queue.queue.batches import joining_of_member
from delayed_queue.queue.store.finishing import DONE, batches_of, settle_members
from delayed_queue.queue.store.settle import acknowledge_members_step
from delayed_queue.retries import RetryPolicy
from delayed_queue.tasks import payloads
from delayed_queue.tasks._api import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    have_listeners,
    signals,
)
from delayed_queue.tasks.backend import backend_of
from delayed_queue.tasks.batches import TaskBatch
from delayed_queue.tasks.ids import time_of
from delayed_queue.tasks.options import Options
from delayed_queue.tasks.policies import Cancelled, Expired, Policy, policy_of
from delayed_queue.tasks.results import QueueTaskResult, as_enqueued, change
from delayed_queue.tasks.store import Attempt, acknowledging

# Longest path of a task, and alias of a backend, in characters.
_MAX_NAME: Final = 500


class LeaseLost(Exception):
    """Another worker took over the task while it ran; its writes are rolled back."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Runnable:
    """A task and all that is the same for each of its runs; found once per process.

    ``names``: the path of the task and the alias of its backend, as columns store them.
    ``sender``: the class of the backend, which sends the signals.
    ``problem``: why the message cannot be run; then there is no task.
    """

    names: tuple[str, str]
    task: Any = None
    sender: Any = None
    options: Options = Options()  # noqa: RUF009 - it is frozen
    policy: Policy = Policy()  # noqa: RUF009 - it is frozen
    retry: RetryPolicy = RetryPolicy.never()  # noqa: RUF009 - it is frozen
    manner: Manner = Manner(is_async=False)  # noqa: RUF009 - it is frozen
    problem: payloads.TaskGone | None = None

    @property
    def is_kept(self) -> bool:
        """True if results are recorded."""
        return self.options.results is not None


def runnable_of(payload: Any, queue: str) -> Runnable:
    """Return what a payload in the queue names."""
    try:
        path, alias = payloads.unpack(payload)
        priority = payload.get("priority", 0)
        return _runnable(path, alias, queue, priority if isinstance(priority, int) else 0)
    except payloads.TaskGone as error:
        said = payload if isinstance(payload, dict) else {}
        names = _names(str(said.get("task", "")), str(said.get("backend", "default")))
        return Runnable(names=names, problem=error)


# At most N are kept in memory; a task that cannot be run is imported again.
@lru_cache(maxsize=10_000)
def _runnable(path: str, alias: str, queue: str, priority: int) -> Runnable:
    task, backend = payloads.task_at(path), backend_of(alias)
    policy, options = policy_of(task), backend.settings
    return Runnable(
        names=_names(path, alias),
        task=as_enqueued(task, backend=alias, queue_name=queue, priority=priority, run_after=None),
        sender=type(backend),
        options=options,
        policy=policy,
        retry=policy.retry_or(options.retry),
        manner=Manner(inspect.iscoroutinefunction(task.func), policy.seconds_or(options.timeout)),
    )


forget_runnables: Final = _runnable.cache_clear


def _names(path: str, alias: str) -> tuple[str, str]:
    return storable(path)[:_MAX_NAME], storable(alias)[:_MAX_NAME]


class Worker:
    """The worker of this process: its name, and the runs whose progress is not stored yet."""

    def __init__(self) -> None:
        self.unreported: dict[str, Run] = {}
        self.rename(f"{socket.gethostname()}-{os.getpid()}")

    def rename(self, name: str) -> None:
        self.name, self.as_json = name, json.dumps([name])


worker: Final = Worker()


class Run(Attempt):
    """One delivery of a task's message: what is run, and how it went.

    It is the ``state`` of its envelope and does not refer to it: Python frees reference cycles
    late, and there are thousands of runs per second. ``error``: of a failed or cancelled run.
    ``verdict``: what happens next to the message of a failed run.
    """

    error: BaseException | None = None
    verdict: Verdict | None = None
    _result: Any = None

    def __init__(self, runnable: Runnable, task_id: str, envelope: Envelope) -> None:
        self.runnable, self.id, self.names = runnable, task_id, runnable.names
        self.message, self.lease = envelope.message_id, envelope.lease_id
        self.payload, self.attempt = envelope.payload, envelope.attempt
        self.scheduled_at_ms = envelope.scheduled_at_ms

    @property
    def args(self) -> Any:
        return self.payload.get("args", [])

    @property
    def kwargs(self) -> Any:
        return self.payload.get("kwargs", {})

    @property
    def is_running(self) -> bool:
        return self.began is not None and self.error is None and self.ended is None

    def begin(self, envelope: Envelope) -> Sequence[Any]:
        """Return the positional arguments of the call; raise what prevents it."""
        self.began, runnable = time.monotonic(), self.runnable
        if runnable.problem is not None:
            raise runnable.problem
        # Attempts that crash count for the queue's policy.
        if self.attempt > 1 and self.attempt > max(
            runnable.retry.max_attempts, get_settings().RETRY_POLICY.max_attempts
        ):
            raise attempts_used_up(envelope)
        if envelope.is_cancelled:
            raise Cancelled
        if runnable.task.takes_context:
            context = QueueTaskContext(task_result=self.result, run=self, envelope=envelope)
            return [context, *self.args]
        args: Sequence[Any] = self.args
        return args

    # How it ended. ``ended`` is set if no attempt follows: it succeeded, was cancelled, or becomes
    # a dead letter.

    def returned(self, value: Any) -> None:
        """Record the return value; raise UnstorableResult."""
        if value is not None:
            self.value = payloads.as_stored(self.runnable.task, value)
        self.ended = time.monotonic()

    def raised(self, error: BaseException, envelope: Envelope) -> BaseException | None:
        """Record what the task raised; return what to raise, None for a cancelled task."""
        is_coroutine_stopped = isinstance(error, asyncio.CancelledError)
        if envelope.is_cancelled and (is_coroutine_stopped or isinstance(error, Cancelled)):
            if self.runnable.manner.is_async and (current := asyncio.current_task()):
                current.uncancel()
            # It has failed, but is no dead letter.
            self._record(Cancelled() if is_coroutine_stopped else error)
            self.ended = time.monotonic()
            envelope.was_cancelled = True
            return None
        if is_coroutine_stopped and self.runnable.manner.is_async:
            # A timeout, which the worker reports, or the stop of the worker.
            self.ended = None
            return error
        failure = self._misfit(error) or error
        self.failed(failure)
        return failure

    def failed(self, error: BaseException) -> None:
        """Record that the attempt failed, and the verdict. A run that was given up has one."""
        if self.verdict is None:
            self._record(error)
            self.verdict = self._judge(error)
            self.ended = time.monotonic() if self.verdict.is_dead else None

    def settle(self, error: BaseException, verdict: Verdict) -> None:
        """Record the worker's verdict, if it is not the run's own."""
        if self.verdict is not verdict:
            self._record(error)
            self.verdict = verdict
            self.ended = time.monotonic() if verdict.is_dead else None

    def _record(self, error: BaseException) -> None:
        # Django's name for a return value that is not JSON.
        cls = TypeError if isinstance(error, payloads.UnstorableResult) else type(error)
        path = storable(f"{cls.__module__}.{cls.__qualname__}")
        described = {"exception_class_path": path, "traceback": error_text(error)}
        self.error, self.value, self.errors = error, None, json.dumps([described])
        if self.runnable.problem is None:
            self.result.errors.append(TaskError(**described))

    def _misfit(self, error: BaseException) -> payloads.TaskGone | None:
        """Return an error if the arguments do not fit: a retry would not help."""
        if self.runnable.problem is not None or not isinstance(error, TypeError):
            return None
        try:
            payloads.check_call(self.runnable.task, self.args, self.kwargs)
        except payloads.TaskGone as gone:
            gone.__cause__ = error
            return gone
        return None

    def _judge(self, error: BaseException) -> Verdict:
        if isinstance(error, payloads.TaskGone | payloads.UnstorableResult):
            return Verdict(None, storable(str(error)), error_text(error))
        verdict = judge(error, self.attempt, self.runnable.retry)
        backoff = self.runnable.policy.backoff
        if verdict.is_dead or backoff is None or isinstance(error, HandlerSignal):
            return verdict
        try:
            wait = backoff(error, self.result)
            delay = None if wait is None else max(parse_duration(wait), ZERO)
        # The project's own code. A backoff that fails ends the task, instead of endless retries.
        except Exception as failure:
            failure.__context__ = error
            self._record(failure)
            return judge(failure, self.attempt, RetryPolicy.never())
        if delay is None:
            return judge(error, self.attempt, RetryPolicy.never())
        return replace(verdict, delay=delay)

    # The result as the task, its backoff and receivers of signals see it

    @property
    def result(self) -> Any:
        if self._result is None:
            self._result = self._running_result()
        return self._result

    def _running_result(self) -> Any:
        task, enqueued_ms = self.runnable.task, self.payload.get("enqueued")
        if isinstance(enqueued_ms, int):
            task = as_enqueued(task, run_after=from_milliseconds(self.scheduled_at_ms))
        else:
            enqueued_ms = time_of(self.id)
        began_at = self.began or time.monotonic()
        now = datetime.now(UTC) - timedelta(seconds=time.monotonic() - began_at)
        return QueueTaskResult(
            task=task, id=self.id, status=TaskResultStatus.RUNNING, args=self.args,
            kwargs=self.kwargs, backend=self.names[1], started_at=now, last_attempted_at=now,
            enqueued_at=from_milliseconds(enqueued_ms),
            worker_ids=[*[""] * (self.attempt - 1), worker.name],
        )  # fmt: skip

    def final_result(self) -> Any:
        """Return the result of a run that is over; None if it is not, or had no task."""
        if self.ended is None or self.runnable.problem is not None:
            return None
        is_successful = self.error is None
        return change(
            self.result,
            status=TaskResultStatus.SUCCESSFUL if is_successful else TaskResultStatus.FAILED,
            finished_at=datetime.now(UTC),
            _return_value=json.loads(self.value) if self.value else None,
        )

    def expired(self) -> None:
        """Record that the task expired before this delivery was started."""
        self._record(Expired())
        self.ended = time.monotonic()

    # Progress

    def report(self, fraction: float, message: str) -> None:
        """Keep the progress for the keeper, which stores it."""
        progress = {"progress": fraction, "message": message}
        self.metadata = encode_headers(progress)
        self.result.metadata.update(progress)
        if self.runnable.is_kept:
            worker.unreported[self.id] = self

    def so_far(self) -> Attempt:
        """Return a copy as of a run that has not ended."""
        return Attempt(
            self.message, self.lease, self.id, self.names, self.began, metadata=self.metadata
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTaskContext(TaskContext):
    """The context of a running task that ``takes_context``."""

    run: Run
    envelope: Envelope

    @property
    def attempt(self) -> int:
        return self.run.attempt

    @property
    def is_cancelled(self) -> bool:
        """True if the task should stop, by raising ``Cancelled``."""
        return self.envelope.is_cancelled

    @property
    def batch(self) -> TaskBatch | None:
        """The batch that the task is a member of, to add members."""
        if self.envelope.batch_id is None:
            return None
        queue: Any = self.envelope.leases
        return TaskBatch(backend_of(self.run.names[1]), queue, joining_of_member(self.envelope))

    @property
    def batch_counts(self) -> dict[str, int] | None:
        """The counts of the batch that the task follows, by outcome."""
        return self.envelope.headers.get("batch")

    def progress(self, fraction: float, message: str = "") -> None:
        """Report the progress, from 0 to 1. It is stored at most once a second, as metadata."""
        if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise ValueError(f"progress is a number from 0 to 1, not {fraction!r}.")
        self.run.report(fraction, check_text("message", str(message)))


# Calling the function


def call(envelope: Envelope) -> None:
    """Run a task in this thread; raise its error, once it is recorded."""
    run, is_watched = envelope.state, have_listeners()
    try:
        args = run.begin(envelope)
        if is_watched:
            signals.task_started.send(run.runnable.sender, task_result=run.result)
        if run.runnable.policy.transactional:
            _call_in_transaction(run, envelope, args)
        else:
            run.returned(run.runnable.task.func(*args, **run.kwargs))
        if is_watched and not envelope.lease_lost:
            announce_end(run)
    # A task may raise anything; Django's own backend catches the same.
    except BaseException as error:
        failure = run.raised(error, envelope)
        # A run that was given up was announced then; one that lost its lease is run again.
        if not envelope.lease_lost:
            announce_end(run)
        if failure is not None:
            raise failure  # noqa: B904 - the error itself, or one that names it as its cause


async def acall(envelope: Envelope) -> None:
    """Run a task on the event loop; raise its error, once it is recorded."""
    run, is_watched = envelope.state, have_listeners()
    try:
        args = run.begin(envelope)
        if is_watched:
            await signals.task_started.asend(run.runnable.sender, task_result=run.result)
        run.returned(await run.runnable.task.func(*args, **run.kwargs))
        if is_watched:
            await _aannounce_end(run, envelope)
    except BaseException as error:
        failure = run.raised(error, envelope)
        await _aannounce_end(run, envelope)
        if failure is not None:
            raise failure  # noqa: B904 - the error itself, or one that names it as its cause


def _call_in_transaction(run: Run, envelope: Envelope, args: Sequence[Any]) -> None:
    """Run the task, delete its message and record its result in one transaction."""
    using = run.runnable.options.database
    with transaction.atomic(using=using):
        run.returned(run.runnable.task.func(*args, **run.kwargs))
        lease_id, ids = envelope.lease_id, [envelope.message_id]
        step = acknowledgement([envelope]) or acknowledge_members_step([lease_id], ids)
        if not settle_members(using, step, lease_id, ids, DONE, batches_of([envelope])):
            raise LeaseLost(
                f"Another worker took over the task {run.names[0]} while it ran; its "
                "changes were rolled back."
            )
    envelope.is_settled = True


def acknowledgement(done: Sequence[Envelope]) -> Step | None:
    """Return the statement that deletes messages and records their runs; None if none is kept.

    A worker acknowledges messages that have expired without a call.
    """
    kept = [each.state for each in done if not each.is_settled and each.state.runnable.is_kept]
    if not kept:
        return None
    for run in kept:
        if run.began is None and run.error is None:
            run.expired()
    ids = sorted([each.message_id for each in done])
    return acknowledging(ids, {each.lease_id for each in done}, kept, worker.as_json)


def announce_end(run: Run) -> None:
    """Send ``task_finished`` for a run that is over."""
    if (result := run.final_result()) is not None:
        signals.task_finished.send(run.runnable.sender, task_result=result)


async def _aannounce_end(run: Run, envelope: Envelope) -> None:
    if envelope.lease_lost or (result := run.final_result()) is None:
        return
    try:
        await signals.task_finished.asend(run.runnable.sender, task_result=result)
    except asyncio.CancelledError:
        # The task has ended already, so its end is recorded, not its later cancellation.
        if not envelope.is_unwanted:
            raise
