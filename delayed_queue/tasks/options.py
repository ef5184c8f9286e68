"""The ``OPTIONS`` of a backend in ``TASKS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

from delayed_queue.exceptions import InvalidConfiguration, did_you_mean
from delayed_queue.retries import Groups, RetryPolicy, parse_duration

_LONGEST: Final = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options.

    ``results``: how long results are kept, in whole days; None writes no results.
    ``retry``, ``timeout``: defaults for tasks without their own.
    ``database``: the alias of the database that stores the tasks.
    ``groups``: the limits of groups, by queue.
    """

    results: timedelta | None = timedelta(days=7)
    retry: RetryPolicy = RetryPolicy.never()  # noqa: RUF009 - it is frozen
    timeout: timedelta | None = None
    database: str = "default"
    groups: Mapping[str, Groups] = field(default_factory=dict)

    @classmethod
    def of(cls, configured: Any) -> Options:
        """Return the options of a dict with upper-case keys; raises InvalidConfiguration."""
        if not isinstance(configured, Mapping):
            raise InvalidConfiguration(f"OPTIONS must be a dict, not {configured!r}.")
        known = {each.name.upper() for each in fields(cls)}
        for key in configured:
            if key not in known:
                hint = did_you_mean(key, known) or f" Known: {', '.join(sorted(known))}."
                raise InvalidConfiguration(f"OPTIONS has an unknown key {key!r}.{hint}")
        return cls(**{key.lower(): _checked(key, value) for key, value in configured.items()})


def _checked(key: str, value: Any) -> Any:
    read, hint = _RULES[key]
    try:
        return read(value)
    except (AttributeError, TypeError, ValueError):
        raise InvalidConfiguration(f"{key} is {value!r}: {hint}.") from None


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError


def _duration(value: Any) -> timedelta:
    found = parse_duration(value) if isinstance(value, str) else value
    _require(isinstance(found, timedelta) and found > timedelta(0))
    return found


def _results(value: Any) -> timedelta | None:
    found = None if value is None else _duration(value)
    _require(found is None or timedelta(days=1) <= found <= _LONGEST)
    return found


def _instance(kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        _require(isinstance(value, kind) and value != "")
        return value

    return read


def _groups(value: Any) -> Mapping[str, Groups]:
    _require(all(isinstance(each, Groups) for each in value.values()))
    return dict(value)


# How each option is read, and what to write instead of a wrong value.
_RULES: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "RESULTS": (
        _results,
        f"write a duration of 1 to {_LONGEST.days} days, as in '7d', or None for no results",
    ),
    "RETRY": (_instance(RetryPolicy), "it must be a RetryPolicy"),
    "TIMEOUT": (
        lambda value: None if value is None else _duration(value),
        "write a duration, as in '30s', or None",
    ),
    "DATABASE": (_instance(str), "it must be an alias of DATABASES"),
    "GROUPS": (_groups, "it must map names of queues to Groups"),
}
