"""Rounds in turns, and the figures made of them.

Other load of the machine slows down both contenders alike when they take turns.
So a ratio is the median of the rounds' ratios, never the ratio of two medians.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles

Figures = dict[str, list[float]]


def in_turns(
    rounds: int, ways: Mapping[str, Callable[[], float]], *, warm_up: bool = True
) -> Figures:
    """Call each way once a round, every second round backwards; return its results in order.

    A round to warm up comes first and is not returned.
    """
    found: Figures = {name: [] for name in ways}
    for number in range(-1 if warm_up else 0, rounds):
        for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            figure = ways[name]()
            if number >= 0:
                found[name].append(figure)
    return found


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the ratio of each round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return median(ratios(ours, theirs))


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the percentile, the value itself if there is one, NaN if there is none."""
    if len(values) < 2:
        return values[0] if values else float("nan")
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Return the median with the smallest and the largest value in brackets."""
    low, middle, high = min(values), median(values), max(values)
    return f"{middle:{form}} ({low:{form}}-{high:{form}})"
