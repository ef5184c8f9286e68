"""Policies of tasks, and ``@cron``, which schedules a task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from dataclasses import replace as changed_to
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from django.utils import timezone

from delayed_queue.conf import count_to
from delayed_queue.cron.registry import schedule as declare
from delayed_queue.cron.rules import MissedTicks
from delayed_queue.durations import FORMS, ZERO, Duration, parse_duration
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage, did_you_mean
from delayed_queue.messages import MILLISECOND, check_expiry, check_group, to_milliseconds
from delayed_queue.retries import RetryPolicy
from delayed_queue.tasks._api import AnyTask, InvalidTask, Task, normalize_json
from delayed_queue.tasks.priorities import kind_of_priority

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE: Final = "delayed_queue_policy"
MAX_ATTEMPTS: Final = 1000
# First retry delay of a task that only has max_attempts; it doubles with each attempt.
_FIRST_DELAY: Final = timedelta(seconds=5)


class Cancelled(Exception):
    """The task was cancelled."""

    def __init__(self, message: str = "The task was cancelled.") -> None:
        super().__init__(message)


class Expired(Exception):
    """The task expired before it was run."""

    def __init__(self) -> None:
        super().__init__("The task expired before it was run.")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The policy of a task; None or False stand for the default.

    ``max_attempts``: maximum number of runs. ``backoff``: a function of the exception and the
    task's result that returns the time until the next run, or None to stop. ``timeout``: time limit
    of a run. ``retry``: a RetryPolicy, instead of the first two. ``transactional``: the
    writes of the task and the removal of its message are one commit. ``unique``: a template such
    as ``"user-{0}"``, or a function of the arguments; only one task of a name exists at a time.
    ``replace``: a new task replaces the waiting one. ``group``: the name, by template or function,
    of the group whose limits apply. ``http``: callers of the HTTP API may enqueue the task.
    ``expires_at``, ``expires_in``: the task is not started after that instant, or that time.
    """

    max_attempts: int | None = None
    backoff: Callable[[BaseException, Any], Duration | None] | None = None
    timeout: Duration | None = None
    retry: RetryPolicy | None = None
    transactional: bool = False
    unique: str | Callable[..., str] | None = None
    replace: bool = False
    http: bool = False
    group: str | Callable[..., str] | None = None
    expires_at: datetime | None = None
    expires_in: Duration | None = None

    def seconds_or(self, default: timedelta | None) -> float | None:
        """Return the timeout in seconds; a transaction does not take the default."""
        timeout = self.timeout if self.timeout is not None or self.transactional else default
        return None if timeout is None else parse_duration(timeout).total_seconds()

    def retry_or(self, default: RetryPolicy) -> RetryPolicy:
        """Return the retry policy, apart from ``backoff``."""
        if self.retry is not None:
            return self.retry
        if self.max_attempts is None:
            return RetryPolicy((timedelta(0),), MAX_ATTEMPTS) if self.backoff else default
        if self.max_attempts == 1:
            return RetryPolicy.never()
        return RetryPolicy.exponential(_FIRST_DELAY, max_attempts=self.max_attempts)


@dataclass(frozen=True, kw_only=True)
class QueueTask(Policy, AnyTask):
    """A task with the fields of ``Policy``, where ``@task`` passes them on (Django 6.1)."""

    def using(self, *, group: Any = None, **changes: Any) -> Any:
        """Return the task with other defaults; ``group`` is a template or a function.

        ``expires_at`` and ``expires_in`` replace each other.
        """
        own: dict[str, Any] = {} if group is None else {"group": group}
        if not changes.keys().isdisjoint(_EXPIRY):
            own |= {name: changes.pop(name, None) for name in _EXPIRY}
        changed = AnyTask.using(self, **changes)
        return changed_to(changed, **own) if own else changed


_NAMES: Final = tuple(each.name for each in fields(Policy))
_EXPIRY: Final = ("expires_at", "expires_in")


def policy(**options: Any) -> Callable[[F], F]:
    """Give a function, below ``@task``, the policy that ``@task`` of Django 6.1 takes itself."""
    for name in options:
        if name not in _NAMES:
            hint = did_you_mean(name, _NAMES) or f" Known: {', '.join(_NAMES)}."
            raise InvalidConfiguration(f"A policy has no {name!r}.{hint}")

    def mark(function: F) -> F:
        if not inspect.isfunction(function):
            raise InvalidConfiguration(
                f"@policy goes below @task, above the function: {options!r}."
            )
        setattr(function, _ATTRIBUTE, options)
        return function

    return mark


def policy_of(task: Any) -> Policy:
    """Return the policy of a task; its own fields win over those of its function."""
    own = {name: getattr(task, name, None) for name in _NAMES}
    own = {name: value for name, value in own.items() if value is not None and value is not False}
    said = dict(getattr(task.func, _ATTRIBUTE, {}))
    if not own.keys().isdisjoint(_EXPIRY):
        said = {name: value for name, value in said.items() if name not in _EXPIRY}
    return Policy(**said | own)


def check_policy(task: Any) -> None:
    """Raise InvalidTask that names a contradiction or a wrong value."""
    said = policy_of(task)
    for wrong in _wrongs(said, is_async=inspect.iscoroutinefunction(task.func)):
        raise InvalidTask(f"The task {task.module_path} {wrong}")
    if said.group is not None and task.priority:
        raise InvalidTask(
            f"The task {task.module_path} has a group and priority={task.priority}, "
            "but limits of groups apply to one priority. Leave one of them out, or "
            "give urgent tasks another queue."
        )


def _wrongs(said: Policy, *, is_async: bool) -> Iterator[str]:
    """Yield what cannot be used: wrong values, then contradictions."""
    for name, (accepts, hint) in _VALUES.items():
        value = getattr(said, name)
        if value is not None and not accepts(value):
            yield f"has {name}={value!r}: write {hint}."
    if said.retry is not None and (said.max_attempts is not None or said.backoff is not None):
        yield "has retry and max_attempts or backoff: write one or the other."
    if said.expires_at is not None and said.expires_in is not None:
        yield "has expires_at and expires_in: write one or the other."
    if said.replace and said.unique is None:
        yield "has replace=True without unique, so there is nothing to replace."
    if said.transactional and said.timeout is not None:
        yield "is transactional with a timeout: limit it with PostgreSQL's transaction_timeout."
    if said.transactional and is_async:
        yield "is async and transactional: make it a plain function. A transaction has one thread."


def _is_name(value: Any) -> bool:
    return isinstance(value, str) or callable(value)


def _is_aware(value: Any) -> bool:
    return isinstance(value, datetime) and timezone.is_aware(value)


def _is_time(value: Any) -> bool:
    try:
        return parse_duration(value) > ZERO
    except InvalidConfiguration:
        return False


_VALUES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "max_attempts": (count_to(MAX_ATTEMPTS), f"an int from 1 to {MAX_ATTEMPTS}"),
    "backoff": (callable, "a function of (exception, task_result)"),
    "timeout": (_is_time, f"more than 0: {FORMS}"),
    "retry": (
        lambda value: isinstance(value, RetryPolicy), "a RetryPolicy, or max_attempts and backoff"
    ),
    "unique": (_is_name, "a template as 'user-{0}', or a function"),
    "group": (_is_name, "a template as 'customer-{0}', or a function"),
    "expires_at": (_is_aware, "an aware datetime"),
    "expires_in": (_is_time, f"more than 0: {FORMS}"),
}  # fmt: skip


def unique_key(task: Any, said: Policy, args: Any, kwargs: Any) -> str | None:
    """Return the name of a unique task, None for another task; raise InvalidTask."""
    name = _name_of("unique", task, said.unique, args, kwargs)
    return None if name is None else f"{task.module_path}:{name}"


def group_of(task: Any, said: Policy, args: Any, kwargs: Any) -> str | None:
    """Return the group whose limits apply to the task, or None; raise InvalidTask."""
    name = _name_of("group", task, said.group, args, kwargs)
    try:
        return check_group(name)
    except InvalidMessage as error:
        raise InvalidTask(f"group of {task.module_path}: {error}") from error


def _name_of(what: str, task: Any, made_by: Any, args: Any, kwargs: Any) -> str | None:
    if made_by is None:
        return None
    try:
        made = made_by.format if isinstance(made_by, str) else made_by
        name = made(*args, **kwargs)
    # The project's own code, or a template that does not fit the arguments.
    except Exception as error:
        raise InvalidTask(
            f"{what} of {task.module_path} cannot be made of args={args!r} and kwargs={kwargs!r}: "
            f"{type(error).__name__}: {error}."
        ) from error
    if not isinstance(name, str) or not name:
        raise InvalidTask(
            f"{what} of {task.module_path} returned {name!r}: return a non-empty text."
        )
    return name


def expiry_of(
    task: Any, said: Policy, now: datetime, run_after: datetime | None
) -> datetime | None:
    """Return when the task expires, or None; raise InvalidTask if it could never be run."""
    schedule = None if run_after is None else to_milliseconds(run_after)
    try:
        _, life = check_expiry(
            said.expires_at, said.expires_in, schedule=schedule, delay=0, clock=lambda: now
        )
    except InvalidMessage as error:
        raise InvalidTask(f"{task.module_path}: {error}") from error
    return said.expires_at if life is None else now + life * MILLISECOND


def refused(task: Any, error: Exception, queues: Set[str]) -> InvalidTask:
    """Return Django's refusal of a task with its name, the value and what to do."""
    at, text = task.run_after, str(error)
    if queues and task.queue_name not in queues:
        hint = did_you_mean(task.queue_name, queues) or (
            f" Add it to QUEUES in TASKS, or name one of {', '.join(sorted(queues))}."
        )
    elif not isinstance(task.priority, int) or "priority" in text:
        text = "priority must be a whole number between -100 and 100."
        hint = f" It is {task.priority!r}."
    elif at is not None and (not isinstance(at, datetime) or timezone.is_naive(at)):
        text = "run_after must be an aware datetime."
        hint = f" It is {at!r}: write django.utils.timezone.now() + timedelta(minutes=5), or such."
    else:
        hint = ""
    return InvalidTask(f"{task.module_path}: {text}{hint}")


T = TypeVar("T")


def cron(
    schedule: Any,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timezone: str | None = None,
    missed: MissedTicks | str = MissedTicks.LATEST,
) -> Callable[[T], T]:
    """Enqueue the task below at each tick of a schedule, with these arguments.

    ``@cron`` stands above ``@task``, in a module ``tasks`` of an installed app: workers import it.
    """

    def register(task: T) -> T:
        if not isinstance(task, Task):
            raise InvalidConfiguration(f"@cron goes above @task; {task!r} is not a task.")
        said = {"args": list(args), "kwargs": dict(kwargs or {})}
        payload = {"task": task.module_path, **normalize_json(said)}
        if task.backend != "default":
            payload["backend"] = task.backend

        def tick(at: datetime) -> Any:
            return payload

        tick.__module__, tick.__qualname__ = task.func.__module__, task.func.__qualname__
        declare(
            task.queue_name, task.module_path, schedule, timezone=timezone,
            kind=kind_of_priority(task.queue_name, 0), missed=missed,
        )(tick)  # fmt: skip
        return task

    return register
