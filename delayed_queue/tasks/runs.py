"""Runs of tasks: deliveries of their messages, from the claim to the recorded result."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from delayed_queue.handlers import (
    HandlerSignal,
    Retry,
    Verdict,
    error_text,
    judge,
    storable,
)
from delayed_queue.messages import Envelope, encode_headers, from_milliseconds
from delayed_queue.tasks._api import TaskError, TaskResultStatus
from delayed_queue.tasks.ids import time_of
from delayed_queue.tasks.payloads import TaskGone
from delayed_queue.tasks.results import bare_result
from delayed_queue.tasks.runnables import Runnable
from delayed_queue.tasks.store import Attempt
from delayed_queue.tasks.values import UnstorableResult, as_stored


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
    def args(self) -> list[Any]:
        found: list[Any] = self.payload.get("args", [])
        return found

    @property
    def kwargs(self) -> dict[str, Any]:
        found: dict[str, Any] = self.payload.get("kwargs", {})
        return found

    @property
    def is_over(self) -> bool:
        """True if no attempt follows: it succeeded, was cancelled, or becomes a dead letter."""
        return self.ended is not None

    @property
    def is_running(self) -> bool:
        return self.began is not None and self.error is None and self.ended is None

    # How it ended

    def returned(self, value: Any) -> None:
        """Record the return value; raise UnstorableResult."""
        if value is not None:
            self.value = as_stored(self.runnable.task, value)
        self.ended = time.monotonic()

    def cancelled(self, error: BaseException) -> None:
        """Record that the task stopped because it was cancelled: failed, but no dead letter."""
        self._show(error)
        self._end(error, is_last=True)

    def failed(self, error: BaseException) -> None:
        """Record that the attempt failed, and the verdict. A run that was given up has one."""
        if self.verdict is None:
            self._show(error)
            self.settle(error, self._judge(error))

    def settle(self, error: BaseException, verdict: Verdict) -> None:
        """Record a verdict, which may not be the run's own."""
        self.verdict = verdict
        self._end(error, is_last=verdict.is_dead)

    def _end(self, error: BaseException, *, is_last: bool) -> None:
        self.error, self.value, self.errors = error, None, json.dumps([_described(error)])
        self.ended = time.monotonic() if is_last else None

    def _judge(self, error: BaseException) -> Verdict:
        if isinstance(error, TaskGone | UnstorableResult) or self.runnable.problem:
            return Verdict(None, storable(str(error)), error_text(error))
        if isinstance(error, HandlerSignal) and not isinstance(error, Retry):
            return judge(error, self.attempt, self.runnable.retry)
        delay = self.runnable.retry.delay_after(self.attempt)
        if delay is None:
            reason = f"attempts exhausted: {type(error).__name__}"
            return Verdict(None, reason, error_text(error))
        delay = error.delay if isinstance(error, Retry) else self._backoff(error, delay)
        reason = f"attempts exhausted: {type(error).__name__}" if delay is None else ""
        return Verdict(delay, reason, error_text(error))

    def _backoff(self, error: BaseException, delay: timedelta) -> timedelta | None:
        backoff = self.runnable.policy.backoff
        if backoff is None:
            return delay
        try:
            seconds = backoff(error, self.result)
            return None if seconds is None else timedelta(seconds=max(seconds, 0))
        # The project's own code. A backoff that fails ends the task, instead of endless retries.
        except Exception as failure:
            failure.__context__ = error
            self._show(failure)
            return None

    # The result as the task, its backoff and receivers of signals see it

    @property
    def result(self) -> Any:
        if self._result is None:
            self._result = self._running_result()
        return self._result

    def _running_result(self) -> Any:
        task, enqueued_ms = self.runnable.task, self.payload.get("enqueued")
        if isinstance(enqueued_ms, int):
            task = replace(task, run_after=from_milliseconds(self.scheduled_at_ms))
        else:
            enqueued_ms = time_of(self.id)
        began_at = self.began or time.monotonic()
        now = datetime.now(UTC) - timedelta(seconds=time.monotonic() - began_at)
        return bare_result(
            task=task, id=self.id, status=TaskResultStatus.RUNNING,
            enqueued_at=from_milliseconds(enqueued_ms), started_at=now, last_attempted_at=now,
            args=self.args, kwargs=self.kwargs, backend=self.names[1],
            errors=[], worker_ids=[*[""] * (self.attempt - 1), worker.name], metadata={},
        )  # fmt: skip

    def _show(self, error: BaseException) -> None:
        if self.runnable.problem is None:
            self.result.errors.append(TaskError(**_described(error)))

    def final_result(self) -> Any:
        """Return the result with the end of a run that is over."""
        is_successful = self.error is None
        end = {
            "status": TaskResultStatus.SUCCESSFUL if is_successful else TaskResultStatus.FAILED,
            "finished_at": datetime.now(UTC),
            "_return_value": json.loads(self.value) if is_successful and self.value else None,
        }
        for name, value in end.items():
            object.__setattr__(self.result, name, value)
        return self.result

    # Storage

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


def _described(error: BaseException) -> dict[str, str]:
    cls = type(error)
    path = storable(f"{cls.__module__}.{cls.__qualname__}")
    return {"exception_class_path": path, "traceback": error_text(error)}
