"""Charts as inline SVG: lines over time, with gaps, marks and values on hover.

Colours are classes of the style sheet, so that they follow the admin's theme. Words stand beside
the drawing: inside it a phone would shrink them. A chart is as wide as its number of points and
the page stretches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

_HEIGHT: Final = 100
Values = Sequence[float | None]


class Line(NamedTuple):
    """A line of a chart: its name, its class in the style sheet, and a value for each point."""

    name: str
    css: str
    values: Values


class Mark(NamedTuple):
    """An event at a point: a class in the style sheet, and words."""

    at: float
    css: str
    words: str


def sparkline(values: Values, css: str, words: str) -> SafeString:
    """Return a small chart of one line; screen readers read the words."""
    return _svg(len(values), "dq-spark", words, [_gaps(values), _path(values, css, _top(values))])


def chart(lines: Sequence[Line], tips: Sequence[str], marks: SafeString, words: str) -> SafeString:
    """Return lines on one scale from zero. A point without a tip is unknown: a gap, in grey."""
    top = max(map(_top, (each.values for each in lines)))
    parts = [_gaps(_known(tips)), marks, *(_path(each.values, each.css, top) for each in lines)]
    return _svg(len(tips), "dq-chart", words, [*parts, _hovers(tips)])


def _known(tips: Sequence[str]) -> Values:
    return [1 if each else None for each in tips]


def _hovers(tips: Sequence[str]) -> SafeString:
    """Return an invisible column for each point that shows its values on hover."""
    return format_html_join(
        "",
        '<rect class="dq-hover" x="{}" y="-4" width="{}" height="{}"><title>{}</title></rect>',
        ((*_columns(x, x, len(tips)), each) for x, each in enumerate(tips) if each),
    )


def drawn(marks: Iterable[Mark]) -> SafeString:
    """Return the marks of a chart, and of all others over the same time."""
    return format_html_join(
        "",
        '<path class="dq-mark {}" d="M{} -4v{}"><title>{}</title></path>',
        ((each.css, f"{each.at:.2f}", _HEIGHT + 8, each.words) for each in marks),
    )


def largest(lines: Iterable[Line]) -> float | None:
    return max((each for line in lines for each in line.values if each is not None), default=None)


def _svg(points: int, css: str, words: str, parts: Iterable[SafeString]) -> SafeString:
    return format_html(
        '<svg class="{}" viewBox="0 -4 {} {}" preserveAspectRatio="none" role="img">'
        "<title>{}</title>{}</svg>",
        css, max(points - 1, 1), _HEIGHT + 8, words, format_html_join("", "{}", zip(parts)),
    )  # fmt: skip


def _top(values: Values) -> float:
    return max((each for each in values if each is not None), default=0) or 1


def _path(values: Values, css: str, top: float) -> SafeString:
    steps = " ".join(_steps(values, top))
    return format_html('<path class="dq-line {}" d="{}"/>', css, steps) if steps else SafeString("")


def _steps(values: Values, top: float) -> Iterator[str]:
    """Yield a stroke for each run of values; a single value is a dot."""
    for is_known, run in groupby(enumerate(values), key=lambda each: each[1] is not None):
        if is_known:
            dots = [f"{x} {_HEIGHT - _HEIGHT * (y or 0) / top:.1f}" for x, y in run]
            yield "M" + "L".join(dots) + ("h0" if len(dots) == 1 else "")


def _gaps(values: Values) -> SafeString:
    """Return grey where there is no value, to halfway to its neighbours."""
    return format_html_join(
        "", '<rect class="dq-gap" x="{}" y="-4" width="{}" height="{}"/>', _rects(values)
    )


def _rects(values: Values) -> Iterator[tuple[float, float, int]]:
    for is_known, run in groupby(enumerate(values), key=lambda each: each[1] is not None):
        places = [x for x, _ in run]
        if not is_known:
            yield _columns(places[0], places[-1], len(values))


def _columns(first: int, last: int, points: int) -> tuple[float, float, int]:
    """Return left, width and height of the columns around these points, within the drawing."""
    left, right = max(first - 0.5, 0), min(last + 0.5, points - 1)
    return left, right - left, _HEIGHT + 8
