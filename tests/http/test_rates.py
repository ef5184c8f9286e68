"""What a rate may be."""

from __future__ import annotations

from typing import Any

import pytest

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.rates import SharedRate


@pytest.mark.parametrize(
    ("name", "per_second", "burst"),
    [
        ("", 1, 1), ("x" * 201, 1, 1), ("a\0b", 1, 1), (None, 1, 1),
        ("a", 0, 1), ("a", -1, 1), ("a", float("nan"), 1), ("a", float("inf"), 1), ("a", True, 1),
        ("a", 100_001, 1), ("a", "1", 1),
        ("a", 1, 0), ("a", 1, 1.5), ("a", 1, True), ("a", 1, 1_000_001),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(name: Any, per_second: Any, burst: Any):
    with pytest.raises(InvalidConfiguration):
        SharedRate(name, per_second, burst)


@pytest.mark.parametrize("n", [0, -1, 6, 1.0, True])
def test_more_than_the_burst_is_refused_since_it_would_never_be_granted(n: Any):
    with pytest.raises(InvalidConfiguration, match="burst of 5"):
        SharedRate("a", 1, 5).take(n)


def test_repr_names_the_limit():
    assert repr(SharedRate("a", 2.5, 5)) == "SharedRate('a', 2.5, 5)"
