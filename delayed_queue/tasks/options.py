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
        return cls(**{key.lower(): _RULES[key](key, value) for key, value in configured.items()})


def _results(key: str, value: Any) -> timedelta | None:
    found = None if value is None else _duration(key, value)
    if found is not None and not timedelta(days=1) <= found <= _LONGEST:
        raise InvalidConfiguration(
            f"{key} is {value!r}: results are kept for 1 to {_LONGEST.days} days, or None for none."
        )
    return found


def _duration(key: str, value: Any) -> timedelta:
    found = parse_duration(value) if isinstance(value, str) else value
    if not isinstance(found, timedelta) or found <= timedelta(0):
        raise InvalidConfiguration(f"{key} is {value!r}: write a duration, as in '7d'.")
    return found


def _timeout(key: str, value: Any) -> timedelta | None:
    return None if value is None else _duration(key, value)


def _retry(key: str, value: Any) -> RetryPolicy:
    if not isinstance(value, RetryPolicy):
        raise InvalidConfiguration(f"{key} is {value!r}: it must be a RetryPolicy.")
    return value


def _database(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidConfiguration(f"{key} is {value!r}: it must be an alias of DATABASES.")
    return value


def _groups(key: str, value: Any) -> Mapping[str, Groups]:
    if not isinstance(value, Mapping) or not all(isinstance(x, Groups) for x in value.values()):
        raise InvalidConfiguration(f"{key} is {value!r}: it must map names of queues to Groups.")
    return value


_RULES: Final[dict[str, Callable[[str, Any], Any]]] = {
    "RESULTS": _results,
    "RETRY": _retry,
    "TIMEOUT": _timeout,
    "DATABASE": _database,
    "GROUPS": _groups,
}
