"""One run of a task in a worker: what it is called with, how it ended, what is recorded of it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import transaction

from delayed_queue.conf import get_settings
from delayed_queue.db.statements import fetch
from delayed_queue.handlers import (
    HandlerSignal,
    Manner,
    Retry,
    Verdict,
    attempts_used_up,
    error_text,
    judge,
    storable,
)
from delayed_queue.messages import Envelope, encode_headers, from_milliseconds
from delayed_queue.queue.store.settle import acknowledging_members
from delayed_queue.retries import RetryPolicy
from delayed_queue.tasks import results
from delayed_queue.tasks._api import (
    TaskError,
    TaskResultStatus,
    listens,
    signals,
)
from delayed_queue.tasks.options import Options, time_of
from delayed_queue.tasks.policies import MAX_ATTEMPTS, Cancelled, Policy, policy_of
from delayed_queue.tasks.results import TaskGone, UnstorableResult, as_stored, check_call
from delayed_queue.tasks.store import Attempt, acknowledging

_FIRST: Final = timedelta(seconds=5)
_LONGEST_NAME: Final = 500


_NO_KWARGS: Final[dict[str, Any]] = {}
_SUCCESSFUL: Final = str(TaskResultStatus.SUCCESSFUL.value)
_FAILED: Final = str(TaskResultStatus.FAILED.value)


# What is known of a task that was called plainly, when that began and ended, and what it returned.
Plain = tuple["Known", float, float, str | None]


class LeaseLost(Exception):
    """The task was taken over while it ran; what it wrote is undone."""


class Known:
    """A task with all that is the same of each run: looked up once in a process."""

    __slots__ = (
        "attempts", "backend", "function", "is_kept", "is_plain", "manner", "names", "options",
        "policy", "task",
    )  # fmt: skip

    def __init__(self, task: Any, path: str, backend: Any) -> None:
        self.task, self.function = task, task.func
        self.backend = backend
        self.names = names_of(path, backend.alias)
        self.options: Options = backend.settings
        self.is_kept = self.options.results is not None
        self.policy: Policy = policy_of(task)
        timeout = self.policy.seconds
        if timeout is None and self.options.timeout and not self.policy.transactional:
            timeout = self.options.timeout.total_seconds()
        self.manner = Manner(inspect.iscoroutinefunction(task.func), timeout)
        self.attempts = _retrying(self.policy, self.options)
        # Whether all there is to do for it, while nothing goes wrong, is to call it.
        self.is_plain = self.manner == Manner(is_async=False) and not (
            task.takes_context or self.policy.transactional
        )


def _retrying(said: Policy, options: Options) -> RetryPolicy:
    """Return the policy of a task, without a backoff of its own."""
    if said.retry is not None:
        return said.retry
    if said.max_attempts is None:
        return RetryPolicy((timedelta(0),), MAX_ATTEMPTS) if said.backoff else options.retry
    if said.max_attempts == 1:
        return RetryPolicy.never()
    return RetryPolicy.exponential(_FIRST, max_attempts=said.max_attempts)


class Worker:
    """The runner of tasks in this process: its name, and the tasks it runs now."""

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}
        self.rename(f"{socket.gethostname()}-{os.getpid()}")

    def rename(self, name: str) -> None:
        self.name, self.as_json = name, json.dumps([name])


worker: Final = Worker()


class Run:
    """One delivery of a task's message."""

    # The result as the task, its backoff and receivers of signals see it, once one asks.
    seen: Any = None
    error: BaseException | None = None
    verdict: Verdict | None = None
    # What it returned, as JSON has it, and that as text.
    returned_value: Any = None
    value: str | None = None
    status = ""
    ended_at: float | None = None
    is_dirty = False
    _metadata: dict[str, Any] | None = None

    def __init__(
        self, envelope: Envelope, task_id: str, names: tuple[str, str],
        known: Known | None = None, problem: TaskGone | None = None,
    ) -> None:  # fmt: skip
        self.envelope, self.id, self.names = envelope, task_id, names
        self.known, self.problem = known, problem
        self.began_at = time.monotonic()

    @property
    def path(self) -> str:
        return self.names[0]

    # Its course

    def begin(self) -> tuple[Any, ...]:
        """Return the arguments to call the task with; raises what it cannot be run for."""
        self.began_at = time.monotonic()
        if self.problem is not None or self.known is None:
            raise self.problem or TaskGone("The message is not a task.")
        if self.envelope.attempt > 1:
            self._check_attempts(self.known)
        if self.envelope.is_cancelled:
            raise Cancelled
        worker.runs[id(self)] = self
        args = self.envelope.payload.get("args", ())
        if self.known.task.takes_context:
            return (results.QueueTaskContext(task_result=self.result, run=self), *args)
        return tuple(args)

    def _check_attempts(self, known: Known) -> None:
        """Raise Reject when no attempt is left."""
        most = max(known.attempts.max_attempts, get_settings().RETRY_POLICY.max_attempts)
        if self.envelope.attempt > most:
            raise attempts_used_up(self.envelope)

    @property
    def result(self) -> Any:
        if self.seen is None and self.known is not None:
            self.seen = self._made(self.known.task)
        return self.seen

    def _made(self, task: Any) -> Any:
        envelope = self.envelope
        now = datetime.now(UTC) - timedelta(seconds=time.monotonic() - self.began_at)
        enqueued_at = from_milliseconds(time_of(self.id))
        if isinstance(deferred := envelope.payload.get("enqueued"), int):
            task = replace(task, run_after=envelope.scheduled_at)
            enqueued_at = from_milliseconds(deferred)
        return results.bare_result(
            task=task, id=self.id, status=TaskResultStatus.RUNNING,
            enqueued_at=enqueued_at, started_at=now, last_attempted_at=now,
            finished_at=None, args=envelope.payload.get("args", []), kwargs=self.kwargs,
            backend=self.names[1], errors=[],
            worker_ids=[*[""] * (envelope.attempt - 1), worker.name],
            _return_value=None, metadata={},
        )  # fmt: skip

    @property
    def kwargs(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = self.envelope.payload.get("kwargs", {})
        return kwargs

    @property
    def sender(self) -> Any:
        return type(self.known.backend) if self.known else None

    def returned(self, value: Any) -> None:
        """Keep the return value; raise UnstorableResult for one that cannot be stored."""
        if value is not None and self.known is not None:
            self.returned_value, self.value = as_stored(self.known.task, value)
        self.ended_at = time.monotonic()
        self.status = _SUCCESSFUL

    def cancelled_with(self, error: BaseException) -> None:
        """Note that the task ended because it was cancelled: it failed, and is no dead letter."""
        self.ended_at, self.error = time.monotonic(), error
        self.status = _FAILED
        self.result.errors.append(TaskError(**self._said(error)))
        self._show(TaskResultStatus.FAILED, None)

    def failed(self, error: BaseException) -> None:
        """Note that the attempt failed, and what becomes of the task."""
        self.ended_at, self.value, self.status = time.monotonic(), None, ""
        if self.result is not None:
            self.result.errors.append(TaskError(**self._said(error)))
        self.verdict = self.judge(error)

    @property
    def is_over(self) -> bool:
        """Whether no attempt follows: the task has a final status, or is to be a dead letter."""
        return bool(self.status) or (self.verdict is not None and self.verdict.is_dead)

    def _show(self, status: Any, value: Any) -> None:
        object.__setattr__(self.result, "status", status)
        object.__setattr__(self.result, "finished_at", datetime.now(UTC))
        object.__setattr__(self.result, "_return_value", value)

    def finished(self) -> None:
        if self.is_to_be_told:
            self.show_end()
            signals.task_finished.send(sender=self.sender, task_result=self.result)

    @property
    def is_to_be_told(self) -> bool:
        """Whether it ended for good, and was not given up or taken over meanwhile."""
        if self.status == _SUCCESSFUL and not listens(signals.task_finished):
            return False
        return self.known is not None and self.is_over and not self.envelope.lease_lost

    def show_end(self) -> None:
        if self.status == _SUCCESSFUL:
            self._show(TaskResultStatus.SUCCESSFUL, self.returned_value)
        elif not self.status:
            self._show(TaskResultStatus.FAILED, None)

    def end(self) -> None:
        worker.runs.pop(id(self), None)

    # What becomes of it

    def judge(self, error: BaseException) -> Verdict:
        """Return what becomes of the message after the attempt that raised this."""
        attempt = self.envelope.attempt
        if isinstance(error, TaskGone | UnstorableResult) or self.known is None:
            return Verdict(None, storable(str(error)), error_text(error))
        if isinstance(error, Retry) or not isinstance(error, HandlerSignal):
            delay = self.known.attempts.delay_after(attempt)
            if delay is not None and not isinstance(error, Retry):
                delay = self._waits(error, delay)
            reason = f"attempts exhausted: {type(error).__name__}" if delay is None else ""
            if isinstance(error, Retry) and delay is not None:
                delay = error.delay
            return Verdict(delay, reason, error_text(error))
        return judge(error, attempt, self.known.attempts)

    def _waits(self, error: BaseException, delay: timedelta) -> timedelta | None:
        backoff = self.known.policy.backoff if self.known else None
        if backoff is None:
            return delay
        try:
            seconds = backoff(error, self.result)
            return None if seconds is None else timedelta(seconds=max(seconds, 0))
        # The project's own code: a backoff that fails does not have the task run again for ever.
        except Exception as failure:
            failure.__context__ = error
            self.result.errors.append(TaskError(**self._said(failure)))
            return None

    # What is recorded

    def note(self, metadata: dict[str, Any]) -> None:
        """Keep what is to be shown of it; the keeper writes it."""
        encode_headers(metadata)  # refuses what could not be stored
        self._metadata = {**(self._metadata or {}), **metadata}
        self.result.metadata.update(metadata)
        self.is_dirty = True

    def going(self) -> Attempt:
        """Return how far it is, as is to be written."""
        self.is_dirty = False
        return self._attempt(None, None)

    @property
    def outcome(self) -> Attempt | None:
        """What is to be recorded of a run that returned, or was cancelled; None of nothing.

        The message keeps this and not the run, which refers to it: what refers to each other is
        freed late, and that is dear with thousands of them a second.
        """
        if not self.is_kept or self.envelope.is_settled:
            return None
        return self._attempt(self.ended_at, self.error)

    def failed_row(self, error: BaseException, verdict: Verdict) -> Attempt:
        ended_at = self.ended_at or time.monotonic()
        return self._attempt(ended_at if verdict.is_dead else None, error)

    def _attempt(self, ended_at: float | None, error: BaseException | None) -> Attempt:
        envelope, metadata = self.envelope, self._metadata
        return Attempt(
            envelope.message_id, envelope.lease_id, self.id, self.names, self.began_at, ended_at,
            self.value if error is None else None,
            None if error is None else json.dumps([self._said(error)]),
            None if metadata is None else json.dumps(metadata),
        )  # fmt: skip

    def _said(self, error: BaseException) -> dict[str, str]:
        cls = type(error)
        path = storable(f"{cls.__module__}.{cls.__qualname__}")
        return {"exception_class_path": path, "traceback": error_text(error)}

    @property
    def is_kept(self) -> bool:
        return self.known is None or self.known.is_kept


def names_of(path: str, alias: str) -> tuple[str, str]:
    """Return the names of a task and its backend as columns take them, whatever they are."""
    return storable(path)[:_LONGEST_NAME], storable(alias)[:_LONGEST_NAME]


# Calling it


def call_plainly(known: Known, payload: dict[str, Any], began_at: float) -> Plain | None:
    """Run a task of which nobody sees more than what it returns; return what is to be recorded."""
    value = known.function(*payload.get("args", ()), **payload.get("kwargs", _NO_KWARGS))
    text = None if value is None else as_stored(known.task, value)[1]
    return (known, began_at, time.monotonic(), text) if known.is_kept else None


def call(run: Run) -> None:
    """Run a task in this thread; raises what it raised, once that is noted."""
    try:
        args = run.begin()
        if listens(signals.task_started):
            signals.task_started.send(sender=run.sender, task_result=run.result)
        if run.known is not None and run.known.policy.transactional:
            _call_transactional(run, args)
        else:
            _call(run, args)
    # A task may raise anything; so does Django's own backend see it.
    except BaseException as error:
        end_with(run, error)
    else:
        run.finished()
    finally:
        run.end()


def end_with(run: Run, error: BaseException) -> None:
    """Note what a task raised, and raise it; but not if it ended because it was to."""
    if _took_cancellation(run, error):
        run.finished()
        return
    error = _misfit(run, error) or error
    run.failed(error)
    run.finished()
    raise error


def _call(run: Run, args: tuple[Any, ...]) -> None:
    run.returned(run.known.function(*args, **run.kwargs))  # type: ignore[union-attr]


def _call_transactional(run: Run, args: tuple[Any, ...]) -> None:
    """Run it, and delete its message and record its result, in one transaction."""
    envelope, using = run.envelope, run.known.options.database  # type: ignore[union-attr]
    with transaction.atomic(using=using):
        _call(run, args)
        ids, leases = [envelope.message_id], [envelope.lease_id]
        deletion = (
            acknowledging_members(leases, ids)
            if (outcome := run.outcome) is None
            else acknowledging(ids, leases, [outcome], worker.as_json)
        )
        if not fetch(using, *deletion):
            raise LeaseLost(
                f"Another worker took over the task {run.path} while it ran; its "
                "changes were rolled back."
            )
    envelope.is_settled = True


async def acall(run: Run) -> None:
    """Run a task on the event loop; raises what it raised, once that is noted."""
    try:
        args = run.begin()
        if listens(signals.task_started):
            await signals.task_started.asend(sender=run.sender, task_result=run.result)
        run.returned(await run.known.function(*args, **run.kwargs))  # type: ignore[union-attr]
    except BaseException as error:
        await _aend_with(run, error)
    else:
        await _afinished(run)
    finally:
        run.end()


async def _aend_with(run: Run, error: BaseException) -> None:
    if _took_cancellation(run, error):
        await _afinished(run)
        return
    if isinstance(error, asyncio.CancelledError):  # a timeout, or the end of the worker
        raise error
    error = _misfit(run, error) or error
    run.failed(error)
    await _afinished(run)
    raise error


async def _afinished(run: Run) -> None:
    if run.is_to_be_told:
        run.show_end()
        try:
            await signals.task_finished.asend(sender=run.sender, task_result=run.result)
        except asyncio.CancelledError:
            # The task itself has ended: its end is recorded, and not that it was cancelled later.
            if not run.envelope.is_unwanted:
                raise


def _misfit(run: Run, error: BaseException) -> TaskGone | None:
    """Return that the arguments do not fit, if it raised for that: trying again is no use."""
    if run.known is None or not isinstance(error, TypeError):
        return None
    try:
        check_call(run.known.task, run.envelope.payload.get("args", ()), run.kwargs)
    except TaskGone as gone:
        gone.__cause__ = error
        return gone
    return None


def _took_cancellation(run: Run, error: BaseException) -> bool:
    """Return whether a task ended because it was to; then that is noted."""
    if not run.envelope.is_cancelled or not isinstance(error, Cancelled | asyncio.CancelledError):
        return False
    if run.known is not None and run.known.manner.is_async and (task := asyncio.current_task()):
        task.uncancel()
    run.cancelled_with(Cancelled() if isinstance(error, asyncio.CancelledError) else error)
    return True
