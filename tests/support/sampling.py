"""A few values of an enumeration for daily runs; all of them in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sample(values: Iterable[Any], *everyday: Any) -> list[Any]:
    """Return all values as test parameters; mark those outside the daily runs long.

    A tuple holds the values of several parameters.
    """
    found = list(values)
    assert all(each in found for each in everyday), "a sample of other values"
    return [each if each in everyday else _long(each) for each in found]


def _long(value: Any) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.long)
