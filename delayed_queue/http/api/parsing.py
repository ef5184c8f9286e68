"""JSON as the API takes it: strict, finite, not too deep, every name once."""

from __future__ import annotations

import re
from collections.abc import Sized
from itertools import islice
from math import isfinite
from typing import Any, Final, TypeVar

from pydantic_core import from_json

from delayed_queue.http.api.problems import Problem

S = TypeVar("S", bound=Sized)

_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
# From the first sign that is not blank: what comes before it is not looked at twice.
_LINES: Final = re.compile(rb"\S[^\n]*")


def parse(raw: bytes, depth: int, *, most: int | None = None) -> Any:
    """Return the value of a JSON text; raises Problem 400 for anything doubtful.

    Refused are NaN and infinities (1e400 too), lone surrogates, NUL, a byte order mark, deeper
    nesting than ``depth``, and an object that has a name twice: two readers of it may differ.
    An array of more than ``most`` items is Problem 413.
    """
    try:
        # In C, and with a limit of its own on nesting; lone surrogates are errors to it.
        value = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise malformed(_reason(error)) from None
    if most is not None and isinstance(value, list):
        check_count(value, most)
    names = _checked(value, depth)
    # A member of a JSON object has exactly one colon outside strings. Fewer names than colons:
    # one of them came twice, and the parser has kept the last.
    if names != raw.count(b":") and names != _STRINGS.sub(b"", raw).count(b":"):
        raise malformed("an object has the same name twice")
    return value


def lines_of(raw: bytes, most: int) -> list[bytes]:
    """Return the lines that are not blank; of more than ``most`` raises Problem 413."""
    found = (each[0] for each in _LINES.finditer(raw))
    return check_count(list(islice(found, most + 1)), most)


def check_count(items: S, most: int) -> S:
    if len(items) > most:
        raise Problem(413, "too_many_items", detail=f"A bulk may have {most} items here.")
    return items


def malformed(reason: str) -> Problem:
    return Problem(400, "malformed_json", "Malformed JSON", reason)


def _reason(error: ValueError) -> str:
    return str(error)


def _checked(value: Any, depth: int) -> int:
    """Return how many names its objects have, level by level: a loop cannot overflow a stack.

    What it does for each value is what a request of many small ones costs.
    """
    names = 0
    level: list[Any] = [[value]]
    for below in range(depth + 1, -1, -1):
        inner: list[Any] = []
        for each in level:
            members = each
            if type(each) is dict:
                names += len(each)
                members = [*each, *each.values()]
            if members and not below:
                raise malformed(f"nested deeper than {depth} levels")
            inner += _containers(members)
        level = inner
    return names


def _containers(members: list[Any]) -> list[Any]:
    """Return the members that have members, having looked at the others."""
    found = []
    for each in members:
        kind = type(each)
        if kind is str:
            if "\0" in each:
                raise malformed("a string contains NUL")
        elif kind is dict or kind is list:
            found.append(each)
        elif kind is float and not isfinite(each):
            raise malformed("a number is too large")
    return found
