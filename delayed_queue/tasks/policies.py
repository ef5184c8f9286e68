"""Policies of tasks, and ``@cron``, which gives a task a schedule."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from dataclasses import replace as changed_to
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar

from django.utils import timezone

from delayed_queue.cron.registry import schedule as declare
from delayed_queue.cron.rules import MissedTicks
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage, did_you_mean
from delayed_queue.messages import check_group
from delayed_queue.retries import RetryPolicy
from delayed_queue.tasks._api import AnyTask, InvalidTask, Task, normalize_json
from delayed_queue.tasks.options import kind_of_priority

F = TypeVar("F", bound=Callable[..., Any])
_MOST_SHOWN: Final = 200
_ATTRIBUTE: Final = "delayed_queue_policy"
MAX_ATTEMPTS: Final = 1000


class Cancelled(Exception):
    """The task was cancelled."""

    def __init__(self, message: str = "The task was cancelled.") -> None:
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The policy of a task; None, or False, where it says nothing.

    ``max_attempts``: runs at most. ``backoff``: called with the exception and the task's result,
    returns the seconds to wait before the next run, or None to end. ``timeout``: seconds or a
    timedelta. ``retry``: a RetryPolicy, in the place of the first two. ``transactional``: what the
    task writes is committed together with the removal of its message. ``unique``: a template as
    ``"user-{0}"`` or a function of the arguments; of one name one task lives. ``replace``: a second
    one takes its place. ``group``: the same, names whose limits it is held to. ``http``: callers of
    the HTTP API may enqueue it.
    """

    max_attempts: int | None = None
    backoff: Callable[[BaseException, Any], float | None] | None = None
    timeout: float | timedelta | None = None
    retry: RetryPolicy | None = None
    transactional: bool = False
    unique: str | Callable[..., str] | None = None
    replace: bool = False
    http: bool = False
    group: str | Callable[..., str] | None = None

    @property
    def seconds(self) -> float | None:
        timeout = self.timeout
        return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTask(AnyTask):
    """A task that can say what ``Policy`` can, where ``@task`` passes it on (Django 6.1)."""

    max_attempts: int | None = None
    backoff: Any = None
    timeout: Any = None
    retry: Any = None
    transactional: bool = False
    unique: Any = None
    replace: bool = False
    http: bool = False
    group: Any = None

    def using(self, *, group: Any = None, **changes: Any) -> Any:
        """Return the task with other defaults; ``group`` is a template or a function, too."""
        changed = AnyTask.using(self, **changes)
        return changed if group is None else changed_to(changed, group=group)


_NAMES: Final = tuple(each.name for each in fields(Policy))


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
    """Return what the task says of itself, before what its function says."""
    said = dict(getattr(task.func, _ATTRIBUTE, {}))
    for name in _NAMES:
        if (value := getattr(task, name, None)) not in (None, False):
            said[name] = value
    return Policy(**said)


def check_policy(task: Any) -> None:
    """Raise InvalidTask that names what the task says and cannot be."""
    said = policy_of(task)
    if said.group is not None and task.priority:
        raise InvalidTask(
            f"The task {task.module_path} has a group and priority={task.priority}, "
            "but limits of groups apply to one priority. Leave one of them out, or "
            "give urgent tasks another queue."
        )
    for wrong in _wrongs(said):
        raise InvalidTask(f"The task {task.module_path} {wrong}")
    if said.transactional and inspect.iscoroutinefunction(task.func):
        raise InvalidTask(
            f"The task {task.module_path} is async and transactional: make it a plain function, "
            "because Django's transactions belong to a thread."
        )


def _wrongs(said: Policy) -> Iterator[str]:
    attempts = said.max_attempts
    if attempts is not None and (type(attempts) is not int or not 1 <= attempts <= MAX_ATTEMPTS):
        yield f"has max_attempts={attempts!r}: write an int from 1 to {MAX_ATTEMPTS}."
    if said.backoff is not None and not callable(said.backoff):
        yield f"has backoff={said.backoff!r}: write a function of (exception, task_result)."
    if said.timeout is not None and not _is_time(said.seconds):
        yield f"has timeout={said.timeout!r}: write seconds, more than 0, or a timedelta."
    yield from _wrong_retries(said)
    if said.transactional and said.timeout is not None:
        yield "is transactional with a timeout: limit it with PostgreSQL's transaction_timeout."


def _wrong_retries(said: Policy) -> Iterator[str]:
    if said.retry is not None and not isinstance(said.retry, RetryPolicy):
        yield f"has retry={said.retry!r}: write a RetryPolicy, or max_attempts and backoff."
    if said.retry is not None and (said.max_attempts is not None or said.backoff is not None):
        yield "has retry and max_attempts or backoff: write one or the other."
    if said.unique is not None and not (isinstance(said.unique, str) or callable(said.unique)):
        yield f"has unique={said.unique!r}: write a template as 'user-{{0}}', or a function."
    if said.group is not None and not (isinstance(said.group, str) or callable(said.group)):
        yield f"has group={said.group!r}: write a template as 'customer-{{0}}', or a function."
    if said.replace and said.unique is None:
        yield "has replace=True without unique, so there is nothing to replace."


def _is_time(seconds: Any) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0


def unique_key(task: Any, said: Policy, args: Any, kwargs: Any) -> str | None:
    """Return the name of which one task lives, if the task has such; raises InvalidTask."""
    name = _name_of("unique", task, said.unique, args, kwargs)
    return None if name is None else f"{task.module_path}:{name}"


def group_of(task: Any, said: Policy, args: Any, kwargs: Any) -> str | None:
    """Return the group whose limits the task is held to, if it has one; raises InvalidTask."""
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


def refused(task: Any, error: Exception, queues: Set[str]) -> InvalidTask:
    """Return what Django refuses the task for, with its name, the value and what to do."""
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


def not_json(task: Any, error: Exception, *calls: tuple[Any, Any]) -> Exception:
    """Return the error, of Django's type, that names the first argument of calls that is no JSON.

    Looked for only once something was refused: to look costs as much as to encode.
    """
    if isinstance(error, RecursionError):
        return ValueError(
            f"{task.module_path}: an argument is nested too deeply or contains "
            "itself: pass its key, and fetch it in the task."
        )
    kind = TypeError if isinstance(error, TypeError) else ValueError
    for args, kwargs in calls:
        for where, value in (*leaves("args", args), *leaves("kwargs", kwargs)):
            if advice := advice_on(value):
                said = f" ({error})" if kind is TypeError else ""
                shown = f"{repr(value)[:_MOST_SHOWN]}, no JSON{said}"
                return kind(f"{task.module_path}: {where} is {shown}: {advice}.")
    return kind(f"{task.module_path}: {error}")


def leaves(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield keys and innermost values, each with its path."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            yield where, dict.fromkeys(value)
        for key, each in value.items():
            yield f"key {key!r} of {where}", str(key)
            yield from leaves(f"{where}[{key!r}]", each)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from leaves(f"{where}[{index}]", each)
    else:
        yield where, value


def advice_on(value: Any) -> str:
    """Return what to use in place of a value that JSON cannot hold; "" for what is JSON."""
    try:
        dumped = json.dumps(
            normalize_json(value), allow_nan=False, ensure_ascii=False, sort_keys=True
        )
        dumped.encode()
    except UnicodeEncodeError:
        return "it has half of a surrogate pair, which is not valid text"
    except (TypeError, ValueError):
        return next((said for kinds, said in _ADVICE if isinstance(value, kinds)), _OTHERWISE)
    return ""


_ADVICE: Final[tuple[tuple[Any, str], ...]] = (
    ((date, time), "use its isoformat()"),
    (timedelta, "use its total_seconds()"),
    (Decimal, "use its str()"),
    (float, "JSON has no NaN or infinity, use None"),
    (Set, "use a list"),
    (Mapping, "make all its keys str"),
    (bytes, "use base64"),
)
_OTHERWISE: Final = "use its key, or a str() of it"


T = TypeVar("T")


def cron(
    schedule: Any,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timezone: str | None = None,
    missed: MissedTicks | str = MissedTicks.LATEST,
) -> Callable[[T], T]:
    """Enqueue the task below at each tick of a schedule, with these arguments; return the task.

    Above ``@task``, in a module named ``tasks`` of an installed app, which workers import.
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
