"""A few values of an enumeration for every day; all of them in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sample(values: Iterable[Any], *everyday: Any) -> list[Any]:
    """Return all the values as parameters of a test, marked long but for those of every day."""
    found = list(values)
    assert set(everyday) <= set(found), "a sample of other values"
    return [
        each if each in everyday else pytest.param(each, marks=pytest.mark.long) for each in found
    ]
