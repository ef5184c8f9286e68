"""Calling tasks: plain functions in a thread, coroutines on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from django.db import transaction

from delayed_queue.conf import get_settings
from delayed_queue.db.sql import Step
from delayed_queue.db.statements import fetch
from delayed_queue.handlers import attempts_used_up
from delayed_queue.messages import Envelope
from delayed_queue.queue.store.settle import acknowledge_members_step
from delayed_queue.tasks._api import have_listeners, signals
from delayed_queue.tasks.payloads import TaskGone, check_call
from delayed_queue.tasks.policies import Cancelled
from delayed_queue.tasks.results import QueueTaskContext
from delayed_queue.tasks.runs import Run, worker
from delayed_queue.tasks.store import acknowledging


class LeaseLost(Exception):
    """Another worker took over the task while it ran; its writes are rolled back."""


def call(run: Run, envelope: Envelope) -> None:
    """Run a task in this thread; raise its error, once it is recorded."""
    is_watched = have_listeners()
    try:
        args = _begin(run, envelope)
        if is_watched:
            signals.task_started.send(run.runnable.sender, task_result=run.result)
        if run.runnable.policy.transactional:
            _call_transactional(run, envelope, args)
        else:
            run.returned(run.runnable.task.func(*args, **run.kwargs))
        if is_watched:
            _announce_end(run, envelope)
    # A task may raise anything; Django's own backend catches the same.
    except BaseException as error:
        failure = _failure(run, envelope, error)
        _announce_end(run, envelope)
        if failure is not None:
            raise failure  # noqa: B904 - the error itself, or one that names it as its cause


async def acall(run: Run, envelope: Envelope) -> None:
    """Run a task on the event loop; raise its error, once it is recorded."""
    is_watched = have_listeners()
    try:
        args = _begin(run, envelope)
        if is_watched:
            await signals.task_started.asend(run.runnable.sender, task_result=run.result)
        run.returned(await run.runnable.task.func(*args, **run.kwargs))
        if is_watched:
            await _aannounce_end(run, envelope)
    except BaseException as error:
        failure = _failure(run, envelope, error)
        await _aannounce_end(run, envelope)
        if failure is not None:
            raise failure  # noqa: B904 - the error itself, or one that names it as its cause


def _begin(run: Run, envelope: Envelope) -> Sequence[Any]:
    """Return the arguments of the call; raise what prevents it."""
    run.began, runnable = time.monotonic(), run.runnable
    if runnable.problem is not None:
        raise runnable.problem
    if run.attempt > 1:
        _check_attempts(run, envelope)
    if envelope.is_cancelled:
        raise Cancelled
    if runnable.task.takes_context:
        context = QueueTaskContext(task_result=run.result, run=run, envelope=envelope)
        return [context, *run.args]
    return run.args


def _check_attempts(run: Run, envelope: Envelope) -> None:
    """Raise Reject when no attempt is left: attempts that crash count for the queue's policy."""
    limit = max(run.runnable.retry.max_attempts, get_settings().RETRY_POLICY.max_attempts)
    if run.attempt > limit:
        raise attempts_used_up(envelope)


def _call_transactional(run: Run, envelope: Envelope, args: Sequence[Any]) -> None:
    """Run the task, delete its message and record its result in one transaction."""
    using = run.runnable.options.database
    with transaction.atomic(using=using):
        run.returned(run.runnable.task.func(*args, **run.kwargs))
        members = acknowledge_members_step([envelope.lease_id], [envelope.message_id])
        if not fetch(using, *(acknowledgement([envelope]) or members)):
            raise LeaseLost(
                f"Another worker took over the task {run.names[0]} while it ran; its "
                "changes were rolled back."
            )
    envelope.is_settled = True


def acknowledgement(done: Sequence[Envelope]) -> Step | None:
    """Return the statement that deletes messages and records their runs; None if none is kept."""
    runs = [each.state for each in done if not each.is_settled]
    kept = [run for run in runs if run.runnable.is_kept]
    if not kept:
        return None
    ids = sorted([each.message_id for each in done])
    return acknowledging(ids, {each.lease_id for each in done}, kept, worker.as_json)


# How it ended


def _failure(run: Run, envelope: Envelope, error: BaseException) -> BaseException | None:
    """Record what a task raised; return what to raise, None for a cancelled task."""
    if envelope.is_cancelled and isinstance(error, Cancelled | asyncio.CancelledError):
        if run.runnable.manner.is_async and (task := asyncio.current_task()):
            task.uncancel()
        run.cancelled(Cancelled() if isinstance(error, asyncio.CancelledError) else error)
        return None
    if isinstance(error, asyncio.CancelledError) and run.runnable.manner.is_async:
        # A timeout, which the worker reports, or the stop of the worker.
        run.ended = None
        return error
    failure = _misfit(run, error) or error
    run.failed(failure)
    return failure


def _misfit(run: Run, error: BaseException) -> TaskGone | None:
    """Return an error if the arguments do not fit: a retry would not help."""
    if run.runnable.problem is not None or not isinstance(error, TypeError):
        return None
    try:
        check_call(run.runnable.task, run.args, run.kwargs)
    except TaskGone as gone:
        gone.__cause__ = error
        return gone
    return None


def announce_end(run: Run) -> None:
    """Send ``task_finished`` for a run that is over."""
    if run.is_over and run.runnable.problem is None:
        signals.task_finished.send(run.runnable.sender, task_result=run.final_result())


def _announce_end(run: Run, envelope: Envelope) -> None:
    # A run that was given up was announced then; one that lost its lease is run again.
    if not envelope.lease_lost:
        announce_end(run)


async def _aannounce_end(run: Run, envelope: Envelope) -> None:
    if not run.is_over or run.runnable.problem is not None or envelope.lease_lost:
        return
    try:
        await signals.task_finished.asend(run.runnable.sender, task_result=run.final_result())
    except asyncio.CancelledError:
        # The task has ended already, so its end is recorded, not its later cancellation.
        if not envelope.is_unwanted:
            raise
