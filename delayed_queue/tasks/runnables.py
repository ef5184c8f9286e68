"""Tasks as workers run them, looked up once per process."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from delayed_queue.handlers import Manner, storable
from delayed_queue.retries import RetryPolicy
from delayed_queue.tasks.declared import backend_of
from delayed_queue.tasks.options import Options
from delayed_queue.tasks.payloads import TaskGone, task_at, unpack
from delayed_queue.tasks.policies import MAX_ATTEMPTS, Policy, policy_of
from delayed_queue.tasks.results import as_enqueued

# First retry delay of a task that only has max_attempts; it doubles with each attempt.
_FIRST_DELAY: Final = timedelta(seconds=5)
# Longest path of a task, and alias of a backend, in characters.
_MAX_NAME: Final = 500
# At most N are kept in memory.
_MAX_KEPT: Final = 10_000
_runnables: Final[dict[tuple[Any, ...], Runnable]] = {}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Runnable:
    """A task and all that is the same for each of its runs.

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
    problem: TaskGone | None = None

    @property
    def is_kept(self) -> bool:
        """True if results are recorded."""
        return self.options.results is not None


def runnable_of(payload: Any, queue: str) -> Runnable:
    """Return what a payload in the queue names."""
    try:
        return _runnables[
            payload["task"], queue, payload.get("priority", 0), payload.get("backend", "default")
        ]
    except (AttributeError, KeyError, TypeError):
        return _find(payload, queue)


def forget_runnables() -> None:
    _runnables.clear()


def _find(payload: Any, queue: str) -> Runnable:
    try:
        path, alias = unpack(payload)
        priority = payload.get("priority", 0)
        found = _runnable(path, alias, queue, priority if isinstance(priority, int) else 0)
    except TaskGone as error:
        said = payload if isinstance(payload, dict) else {}
        names = _names(str(said.get("task", "")), str(said.get("backend", "default")))
        return Runnable(names=names, problem=error)
    if len(_runnables) < _MAX_KEPT:
        _runnables[path, queue, found.task.priority, alias] = found
    return found


def _runnable(path: str, alias: str, queue: str, priority: int) -> Runnable:
    task, backend = task_at(path), backend_of(alias)
    policy, options = policy_of(task), backend.settings
    return Runnable(
        names=_names(path, alias),
        task=as_enqueued(task, backend=alias, queue=queue, priority=priority),
        sender=type(backend),
        options=options,
        policy=policy,
        retry=_retry_of(policy, options),
        manner=Manner(inspect.iscoroutinefunction(task.func), _timeout_of(policy, options)),
    )


def _names(path: str, alias: str) -> tuple[str, str]:
    return storable(path)[:_MAX_NAME], storable(alias)[:_MAX_NAME]


def _timeout_of(policy: Policy, options: Options) -> float | None:
    if policy.seconds is None and options.timeout and not policy.transactional:
        return options.timeout.total_seconds()
    return policy.seconds


def _retry_of(policy: Policy, options: Options) -> RetryPolicy:
    """Return the retry policy of a task, apart from its own backoff."""
    if policy.retry is not None:
        return policy.retry
    if policy.max_attempts is None:
        return RetryPolicy((timedelta(0),), MAX_ATTEMPTS) if policy.backoff else options.retry
    if policy.max_attempts == 1:
        return RetryPolicy.never()
    return RetryPolicy.exponential(_FIRST_DELAY, max_attempts=policy.max_attempts)
