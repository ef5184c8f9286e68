"""Arguments and return values of tasks as JSON, and errors that name the part that is not JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Final

from delayed_queue.tasks._api import normalize_json

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
)
_OTHERWISE: Final = "use its key, or a str() of it"


class UnstorableResult(Exception):
    """The return value cannot be stored: the task failed and is not run again."""


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
        raise UnstorableResult(_refusal(task, value, error)) from None
    if len(text) > _MAX_VALUE:
        fault = f"it has {len(text)} characters of JSON: store it elsewhere and return its key"
        raise UnstorableResult(_cannot_store(task, "return value", fault))
    if "\\u0000" in text:
        for where, each in _leaves("return value", json.loads(text)):
            if isinstance(each, str) and "\x00" in each:
                fault = "it has a NUL character, which PostgreSQL cannot store"
                raise UnstorableResult(_cannot_store(task, where, fault))
    return text


def _refusal(task: Any, value: Any, error: Exception) -> str:
    """Return an error text with the path of the part that is not JSON."""
    if isinstance(error, RecursionError):
        fault = "it is nested too deeply, or contains itself"
        return _cannot_store(task, "return value", fault)
    if isinstance(error, TypeError | ValueError):
        for where, each in _leaves("return value", value):
            if advice := _advice_on(each):
                return _cannot_store(task, f"{where}, {type(each).__name__},", advice)
    return _cannot_store(task, "return value", f"{type(error).__name__}: {error}")


def _cannot_store(task: Any, where: str, fault: str) -> str:
    return f"{task.module_path}: the {where} cannot be stored: {fault}."


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
        return next((said for kinds, said in _ADVICE if isinstance(value, kinds)), _OTHERWISE)
    return ""
