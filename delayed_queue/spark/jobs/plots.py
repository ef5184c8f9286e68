"""The report's plots, as PNG: lateness, throughput, backlog, reasons."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by the colour-blind, and on paper by their lightness (Okabe and Ito).
COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#555555",
)  # fmt: skip
# More lines than this are no longer told apart: the rest are added up.
MOST_KINDS: Final = 7
OTHERS: Final = "all others"
_FEW_MINUTES: Final = 10
_SIZE: Final = (9.0, 4.5)


def draw(figures: Mapping[str, Any]) -> dict[str, bytes]:
    """Return a PNG by name for each figure that has anything to show."""
    plots: dict[str, tuple[Callable[[Axes, Any], None], Any]] = {
        "lateness": (_lateness, [each for each in figures["kinds"] if each["lateness_seconds"]]),
        "throughput": (_throughput, figures["throughput"]),
        "backlog": (_backlog, figures),
        "reasons": (_reasons, figures["reasons"]),
    }
    shown = {"backlog": bool(figures["backlog"])}
    return {
        name: _png(plot, data)
        for name, (plot, data) in plots.items()
        if shown.get(name, bool(data))
    }


def _png(plot: Callable[[Axes, Any], None], data: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    plot(axes, data)
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _lateness(axes: Axes, kinds: list[dict[str, Any]]) -> None:
    """Bars from the median to the 99th percentile, on a scale that fits both ms and hours."""
    from matplotlib.ticker import FuncFormatter

    shown = sorted(kinds, key=lambda each: each["lateness_seconds"]["p99"])[-12:]
    names = ("p50", "p90", "p95", "p99")
    height = 0.8 / len(names)
    for index, name in enumerate(names):
        values = [max(each["lateness_seconds"][name], 0.001) for each in shown]
        places = [place + 0.4 - height * (index + 0.5) for place in range(len(shown))]
        bars = axes.barh(places, values, height, color=COLOURS[index], label=name)
        if len(shown) <= 6:
            labels = [f" {_span(each)}" for each in values]
            axes.bar_label(bars, labels=labels, fontsize=7)
    axes.set_xscale("log")
    axes.set_yticks(range(len(shown)), [_short(each["kind"]) for each in shown])
    axes.set_xlabel("time from the first schedule to the end (logarithmic)")
    axes.set_title("Lateness by kind")
    axes.margins(x=0.15)
    axes.xaxis.grid(visible=True, alpha=0.3)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    _legend(axes)


def _tick(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    return f"{seconds:,.0f} s"


def _legend(axes: Any) -> None:
    """Put the legend below, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(
        handles, labels, frameon=False, fontsize=8, ncols=4, loc="outside lower center"
    )


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:,.0f} min"


def _short(text: str, most: int = 28) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _throughput(axes: Any, rows: list[dict[str, Any]]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    series = _by_kind(rows)
    minutes = _every_minute(rows)
    for colour, (kind, counts) in zip(COLOURS, series.items(), strict=False):
        values = [counts.get(each, 0) for each in minutes]
        marker = "o" if len(minutes) < 40 else None
        axes.plot(
            minutes, values, color=colour, label=_short(kind), linewidth=1.5, marker=marker,
            markersize=3,
        )  # fmt: skip
    if len(minutes) < _FEW_MINUTES:
        # Else a single minute stands between years.
        margin = timedelta(minutes=_FEW_MINUTES / 2)
        axes.set_xlim(minutes[0] - margin, minutes[-1] + margin)
    locator: Any = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_ylim(bottom=0)
    _count_axis(axes.yaxis)
    axes.set_xlabel("time (UTC)")
    axes.set_ylabel("messages a minute")
    axes.set_title("Throughput")
    _legend(axes)


def _count_axis(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.grid(visible=True, alpha=0.3)


def _every_minute(rows: list[dict[str, Any]]) -> list[datetime]:
    """Return the minutes from first to last, those without any too: a gap is a zero."""
    found = [datetime.fromisoformat(each["minute"]) for each in rows]
    first, last = min(found), max(found)
    count = int((last - first).total_seconds()) // 60 + 1
    return [first + timedelta(minutes=each) for each in range(count)]


def _by_kind(rows: list[dict[str, Any]]) -> dict[str, dict[datetime, int]]:
    """Return the counts by minute of the largest kinds, and of all others together."""
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["kind"]] = totals.get(row["kind"], 0) + row["messages"]
    largest = largest_of(totals)
    series: dict[str, dict[datetime, int]] = {kind: {} for kind in largest}
    for row in rows:
        counts = series.setdefault(row["kind"] if row["kind"] in largest else OTHERS, {})
        minute = datetime.fromisoformat(row["minute"])
        counts[minute] = counts.get(minute, 0) + row["messages"]
    return series


def largest_of(totals: Mapping[str, int]) -> list[str]:
    return sorted(totals, key=lambda each: (-totals[each], each))[:MOST_KINDS]


def _backlog(axes: Axes, figures: dict[str, Any]) -> None:
    """Stacked bars: what is due now, then hour by hour, then the rest."""
    rows = figures["backlog"]
    totals = {each["kind"]: each["due"] + sum(each["hours"]) + each["later"] for each in rows}
    largest = largest_of(totals)
    columns = len(rows[0]["hours"]) + 2
    bottom = [0] * columns
    for colour, (kind, values) in zip(COLOURS, stacks_of(rows, largest), strict=False):
        axes.bar(range(columns), values, 0.85, bottom=bottom, color=colour, label=_short(kind))
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    begin = datetime.fromisoformat(figures["created_at"])
    hours = [f"{begin + timedelta(hours=each):%H:%M}" for each in range(columns - 2)]
    axes.set_xticks(range(columns), ["due now", *hours, "later"], rotation=60, ha="right")
    axes.tick_params(axis="x", labelsize=8)
    _count_axis(axes.yaxis)
    axes.set_xlabel(f"falls due in the hour from (UTC, {begin:%Y-%m-%d})")
    axes.set_ylabel("messages")
    axes.set_title("Backlog, and when it falls due")
    _legend(axes)


def stacks_of(rows: list[dict[str, Any]], largest: list[str]) -> Iterator[tuple[str, list[int]]]:
    rest: list[int] = []
    for row in rows:
        values = [row["due"], *row["hours"], row["later"]]
        if row["kind"] in largest:
            yield row["kind"], values
        else:
            rest = [a + b for a, b in zip(rest or [0] * len(values), values, strict=True)]
    if rest:
        yield OTHERS, rest


def _reasons(axes: Axes, rows: list[dict[str, Any]]) -> None:
    shown = rows[:12][::-1]
    labels = [f"{_short(each['reason'], 48)}\n{_short(each['kind'])}" for each in shown]
    bars = axes.barh(range(len(shown)), [each["messages"] for each in shown], color=COLOURS[3])
    axes.bar_label(bars, labels=[f" {each['messages']:,}" for each in shown], fontsize=8)
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.set_xlabel("messages")
    axes.set_title("Why messages died")
    axes.set_axisbelow(True)
    _count_axis(axes.xaxis)
    axes.margins(x=0.1)
