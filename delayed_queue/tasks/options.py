"""The ``OPTIONS`` of a backend in ``TASKS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
            if key not in _VALUES:
                hint = did_you_mean(key, _VALUES) or f" Known: {', '.join(sorted(_VALUES))}."
                raise InvalidConfiguration(f"OPTIONS has an unknown key {key!r}.{hint}")
        return cls(**{key.lower(): _checked(key, value) for key, value in configured.items()})


# Which values an option may have, and the advice that replaces a wrong one.
_VALUES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "RESULTS": (
        lambda value: value is None or timedelta(days=1) <= value <= LONGEST,
        f"write a duration of 1 to {LONGEST.days} days, as in '7d', or None for no results",
    ),
    "RETRY": (lambda value: isinstance(value, RetryPolicy), "it must be a RetryPolicy"),
    "TIMEOUT": (
        lambda value: value is None or value > ZERO, "write a duration, as in '30s', or None"
    ),
    "DATABASE": (
        lambda value: isinstance(value, str) and value != "", "it must be an alias of DATABASES"
    ),
    "GROUPS": (
        lambda value: isinstance(value, Mapping)
        and all(isinstance(each, Groups) for each in value.values()),
        "it must map names of queues to Groups",
    ),
}  # fmt: skip


def _checked(key: str, value: Any) -> Any:
    accepts, hint = _VALUES[key]
    try:
        if key in ("RESULTS", "TIMEOUT") and value is not None:
            value = parse_duration(value)
        is_right = accepts(value)
    except ValueError:
        is_right = False
    if not is_right:
        raise InvalidConfiguration(f"{key} is {value!r}: {hint}.")
    return value
