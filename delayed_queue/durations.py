"""Durations as users write them: a timedelta, a number of seconds, or a text such as ``2h``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, TypeAlias

from delayed_queue.exceptions import InvalidConfiguration

Duration: TypeAlias = timedelta | float | str
ZERO: Final = timedelta(0)
LONGEST: Final = timedelta(days=3650)
UNITS: Final = {
    "w": timedelta(weeks=1), "d": timedelta(days=1), "h": timedelta(hours=1),
    "m": timedelta(minutes=1), "s": timedelta(seconds=1), "ms": timedelta(milliseconds=1),
}  # fmt: skip
# Characters of a duration. Callers' texts are quoted in errors.
_LONGEST_TEXT: Final = 50
_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?", re.ASCII)


def parse_duration(value: Duration) -> timedelta:
    """Return a timedelta, a number of seconds, or a text such as ``90``, ``500ms`` or ``1.5h``."""
    if isinstance(value, timedelta):
        return value
    try:
        if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
            if match := _TEXT.fullmatch(value):
                return float(match[1]) * UNITS[match[2] or "s"]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            return timedelta(seconds=value)
    except OverflowError as error:
        raise InvalidConfiguration(f"The duration {value!r} is too long.") from error
    except ValueError:  # NaN
        pass
    raise InvalidConfiguration(f"{_quoted(value)} is not a duration: write {FORMS}.")


FORMS: Final = "seconds, or a number and one of ms, s, m, h, d, w, as in '30s'"


def check_duration(
    what: str, value: Duration, least: timedelta = ZERO, most: timedelta = LONGEST
) -> timedelta:
    """Return the duration; raise InvalidConfiguration for one out of range."""
    try:
        found = parse_duration(value)
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"{what}: {error}") from None
    if not least <= found <= most:
        raise InvalidConfiguration(f"{what} must be {within(least, most)}, not {_quoted(value)}.")
    return found


def within(least: timedelta, most: timedelta) -> str:
    """Return a range in words."""
    if most == timedelta.max:
        return f"a duration of {write_duration(least)} or more"
    return f"a duration from {write_duration(least)} to {write_duration(most)}"


def write_duration(span: timedelta) -> str:
    """Return the text in the largest whole unit that ``parse_duration`` reads back."""
    names = (name for name, unit in UNITS.items() if name != "w" and span % unit == ZERO)
    name = next(names, "") if span else "s"
    return f"{span // UNITS[name]}{name}" if name else f"{span.total_seconds():.6f}s"


def _quoted(value: object) -> str:
    if isinstance(value, timedelta):
        return write_duration(value)
    return repr(value[:_LONGEST_TEXT] if isinstance(value, str) else value)
