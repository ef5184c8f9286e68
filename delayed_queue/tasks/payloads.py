"""Tasks as payloads of messages: ``{"task": path, "args": […], "kwargs": {…}}`` and options.

Arguments and return values are JSON; an error names the part that is not.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import date, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from django.utils.module_loading import import_string

from delayed_queue.messages import to_milliseconds
from delayed_queue.tasks._api import Task, normalize_json
from delayed_queue.tasks.ids import id_of_key, is_id

_signature: Final = lru_cache(maxsize=1000)(inspect.signature)
# Longest representation of an argument in an error, in characters.
_MAX_SHOWN: Final = 200
# Largest return value, in characters of JSON: a result is read as a whole.
_MAX_VALUE: Final = 10_000_000
_PLAIN: Final = frozenset({bool, float, int, str, type(None)})
# dumps() with these arguments would make an encoder for each call.
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_ADVICE: Final[tuple[tuple[Any, str], ...]] = (
    ((date, time), "use its isoformat()"),
    (timedelta, "use its total_seconds()"),
    (Decimal, "use its str()"),
    (float, "JSON has no NaN or infinity, use None"),
    (Set, "use a list"),
    (Mapping, "make all its keys str"),
    (bytes, "use base64"),
    (object, "use its key, or a str() of it"),
)


class TaskGone(Exception):
    """The task cannot be run: it does not import, or its arguments do not fit."""


class UnstorableResult(Exception):
    """The return value cannot be stored: the task failed and is not run again."""


def payload_of(result: Any) -> dict[str, Any]:
    """Return the payload of an enqueued task. The format is documented for other writers."""
    task = result.task
    payload: dict[str, Any] = {"task": task.module_path}
    if result.backend != "default":
        payload["backend"] = result.backend
    if task.priority:
        payload["priority"] = int(task.priority)
    if task.run_after is not None:
        payload["enqueued"] = to_milliseconds(result.enqueued_at)
    return payload | arguments_of(result.args, result.kwargs)


def arguments_of(args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a payload with the arguments, without empty ones."""
    payload: dict[str, Any] = {"args": args} if args else {}
    if kwargs:
        payload["kwargs"] = kwargs
    return payload


def unpack(payload: Any) -> tuple[str, str]:
    """Return the path of the task and the alias of its backend; raise TaskGone."""
    if not isinstance(payload, dict) or not isinstance(payload.get("task"), str):
        raise TaskGone(
            "The message is not a task: its payload must be a dict with 'task', the path of a task."
        )
    return payload["task"], str(payload.get("backend", "default"))


def id_in(payload: Any, kind: str, key: str, scheduled_at_ms: int) -> str:
    """Return the id of a task: from its payload, its key, or derived from its message."""
    found = payload.get("id", key) if isinstance(payload, dict) else key
    return found if is_id(found) else id_of_key(kind, key, scheduled_at_ms)


def task_at(path: str) -> Any:
    """Return the task at a path; raise TaskGone."""
    try:
        found = import_string(path)
    # Importing runs the project's own code.
    except Exception as error:
        raise TaskGone(
            f"The task {path!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Task):
        raise TaskGone(f"{path!r} is a {type(found).__name__}, not a task: decorate it with @task.")
    return found


def check_call(task: Any, args: Any, kwargs: Any) -> None:
    """Raise TaskGone if the task cannot be called with these arguments."""
    try:
        context = [None] if task.takes_context else []
        _signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as error:
        raise TaskGone(f"The arguments of {task.module_path} do not fit: {error}.") from error


# Values as JSON


def plain(args: Sequence[Any]) -> list[Any]:
    """Return positional arguments as JSON has them."""
    if _PLAIN.issuperset(map(type, args)):
        return list(args)
    found: list[Any] = normalize_json(args)
    return found


def as_stored(task: Any, value: Any) -> str:
    """Return a return value as text for jsonb; raise UnstorableResult."""
    try:
        text = _encode(normalize_json(value))
        text.encode()
    # Mappings and sequences may be the project's own classes, whose code runs here.
    except Exception as error:
        raise _unstorable(task, *_fault_in(value, error)) from error
    if len(text) > _MAX_VALUE:
        fault = f"it has {len(text)} characters of JSON: store it elsewhere and return its key"
        raise _unstorable(task, "return value", fault)
    if "\\u0000" in text:
        for where, each in _leaves("return value", json.loads(text)):
            if isinstance(each, str) and "\x00" in each:
                fault = "it has a NUL character, which PostgreSQL cannot store"
                raise _unstorable(task, where, fault)
    return text


def _unstorable(task: Any, where: str, fault: str) -> UnstorableResult:
    return UnstorableResult(f"{task.module_path}: the {where} cannot be stored: {fault}.")


def _fault_in(value: Any, error: Exception) -> tuple[str, str]:
    """Return the path of the part that is not JSON, and its fault."""
    if isinstance(error, RecursionError):
        return "return value", "it is nested too deeply, or contains itself"
    if isinstance(error, TypeError | ValueError):
        for where, each in _leaves("return value", value):
            if advice := _advice_on(each):
                return f"{where}, {type(each).__name__},", advice
    return "return value", f"{type(error).__name__}: {error}"


def not_json(task: Any, error: Exception, *calls: tuple[Any, Any]) -> Exception:
    """Return an error, of Django's type, that names the first argument of calls that is not JSON.

    Only used after a refusal, because the search takes as long as encoding.
    """
    if isinstance(error, RecursionError):
        return ValueError(
            f"{task.module_path}: an argument is nested too deeply or contains "
            "itself: pass its key, and fetch it in the task."
        )
    kind = TypeError if isinstance(error, TypeError) else ValueError
    for args, kwargs in calls:
        for where, value in (*_leaves("args", args), *_leaves("kwargs", kwargs)):
            if advice := _advice_on(value):
                said = f" ({error})" if kind is TypeError else ""
                shown = f"{repr(value)[:_MAX_SHOWN]}, no JSON{said}"
                return kind(f"{task.module_path}: {where} is {shown}: {advice}.")
    return kind(f"{task.module_path}: {error}")


def _leaves(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield keys and innermost values, each with its path."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            yield where, dict.fromkeys(value)
        for key, each in value.items():
            yield f"key {key!r} of {where}", str(key)
            yield from _leaves(f"{where}[{key!r}]", each)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _leaves(f"{where}[{index}]", each)
    else:
        yield where, value


def _advice_on(value: Any) -> str:
    """Return what to use instead of a value that JSON cannot hold; "" for JSON."""
    try:
        dumped = json.dumps(
            normalize_json(value), allow_nan=False, ensure_ascii=False, sort_keys=True
        )
        dumped.encode()
    except UnicodeEncodeError:
        return "it has half of a surrogate pair, which is not valid text"
    except (TypeError, ValueError):
        return next(said for kinds, said in _ADVICE if isinstance(value, kinds))
    return ""
