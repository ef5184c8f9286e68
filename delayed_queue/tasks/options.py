"""The ``OPTIONS`` of a backend in ``TASKS``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from delayed_queue.durations import LONGEST, ZERO, parse_duration
from delayed_queue.exceptions import InvalidConfiguration, did_you_mean
from delayed_queue.retries import Groups, RetryPolicy


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
        for key in configured:
            if key not in _HINTS:
                hint = did_you_mean(key, _HINTS) or f" Known: {', '.join(sorted(_HINTS))}."
                raise InvalidConfiguration(f"OPTIONS has an unknown key {key!r}.{hint}")
        return cls(**{key.lower(): _checked(key, value) for key, value in configured.items()})


# The advice that replaces a wrong value.
_HINTS: Final = {
    "RESULTS": f"write a duration of 1 to {LONGEST.days} days, as in '7d', or None for no results",
    "RETRY": "it must be a RetryPolicy",
    "TIMEOUT": "write a duration, as in '30s', or None",
    "DATABASE": "it must be an alias of DATABASES",
    "GROUPS": "it must map names of queues to Groups",
}


def _checked(key: str, value: Any) -> Any:
    try:
        if key in ("RESULTS", "TIMEOUT") and value is not None:
            value = parse_duration(value)
        fits = _fits(key, value)
    except ValueError:
        fits = False
    if not fits:
        raise InvalidConfiguration(f"{key} is {value!r}: {_HINTS[key]}.")
    return value


def _fits(key: str, value: Any) -> bool:
    match key, value:
        case ("RESULTS" | "TIMEOUT", None):
            return True
        case "RESULTS", timedelta():
            return timedelta(days=1) <= value <= LONGEST
        case "TIMEOUT", timedelta():
            return value > ZERO
        case "GROUPS", Mapping():
            return all(isinstance(each, Groups) for each in value.values())
    return isinstance(value, {"RETRY": RetryPolicy, "DATABASE": str}.get(key, ())) and value != ""
