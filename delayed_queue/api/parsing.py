"""JSON as the API takes it: strict, finite, not too deep, every name once."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any, Final

from pydantic_core import from_json

from delayed_queue.api.problems import Problem

_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')


def parse(raw: bytes, depth: int) -> Any:
    """Return the value of a JSON text; raises Problem 400 for anything doubtful.

    Refused are NaN and infinities (1e400 too), lone surrogates, NUL, a byte order mark, deeper
    nesting than ``depth``, and an object that has a name twice: two readers of it may differ.
    """
    try:
        # In C, and with a limit of its own on nesting; lone surrogates are errors to it.
        value = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise malformed(_reason(error)) from None
    names = _checked(value, depth)
    # A member of a JSON object has exactly one colon outside strings. Fewer names than colons:
    # one of them came twice, and the parser has kept the last.
    if names != _STRINGS.sub(b"", raw).count(b":"):
        raise malformed("an object has the same name twice")
    return value


def malformed(reason: str) -> Problem:
    return Problem(400, "malformed_json", "Malformed JSON", reason)


def _reason(error: ValueError) -> str:
    return str(error)


def _checked(value: Any, depth: int) -> int:
    """Return how many names its objects have, level by level: a loop cannot overflow a stack."""
    names = 0
    level, below = [value], depth
    while level:
        containers: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                names += len(each)
                containers.extend(each)
                containers.extend(each.values())
            elif isinstance(each, list):
                containers.extend(each)
            else:
                _check_scalar(each)
        if containers and below == 0:
            raise malformed(f"nested deeper than {depth} levels")
        level, below = containers, below - 1
    return names


def _check_scalar(value: Any) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise malformed("a string contains NUL")
    elif isinstance(value, float) and not isfinite(value):
        raise malformed("a number is too large")
