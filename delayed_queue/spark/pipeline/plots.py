"""The plots of a report; a kind has one colour in all of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.spark.pipeline.console import span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from delayed_queue.spark.pipeline.measures import Figures

# Okabe and Ito: distinct for the colour-blind, and in print by lightness.
COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442",
)  # fmt: skip
_GREY: Final = "#808080"
# Kinds beyond the number of colours are added up.
OTHERS: Final = "all others"
_MAX_ROWS: Final = 12
_MARKS: Final = {"p50": "o", "p90": "|", "p95": "D", "p99": ">"}
_TICKS: Final = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 21_600, 86_400, 604_800, 2_592_000)
Colours = Mapping[str, str]


def draw(figures: Figures) -> dict[str, bytes]:
    """Return a PNG by name for each plot that has data."""
    plots: dict[str, tuple[Callable[[Axes, Figures, Colours], None], bool]] = {
        "lateness": (_lateness, any(each["lateness_seconds"] for each in figures["kinds"])),
        "throughput": (_throughput, bool(figures["throughput"])),
        "backlog": (_backlog, bool(figures["backlog"])),
        "reasons": (_reasons, bool(figures["reasons"])),
    }
    colours = colours_of(figures)
    return {
        name: _png(plot, figures, colours) for name, (plot, has_data) in plots.items() if has_data
    }


def colours_of(figures: Figures) -> dict[str, str]:
    """Return the colours of the kinds with most messages; the others share grey."""
    totals = {each["kind"]: each["messages"] for each in figures["kinds"]}
    for each in figures["backlog"]:
        waiting = each["due"] + sum(each["hours"]) + each["later"]
        totals[each["kind"]] = totals.get(each["kind"], 0) + waiting
    largest = sorted(totals, key=lambda each: (-totals[each], each))
    return dict(zip(largest, COLOURS, strict=False))


def _png(plot: Callable[..., None], figures: Figures, colours: Colours) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    plot(axes, figures, colours)
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _lateness(axes: Axes, figures: Figures, colours: Colours) -> None:
    """Draw a line for each kind from the median to the 99th percentile, on a logarithmic axis."""
    from matplotlib.ticker import FixedLocator, NullLocator

    found = [(each["lateness_seconds"], each["kind"]) for each in figures["kinds"]]
    shown = sorted((each for each in found if each[0]), key=lambda each: each[0]["p99"])
    for row, (spans, kind) in enumerate(shown[-_MAX_ROWS:]):
        colour = colours.get(kind, _GREY)
        values = {name: max(spans[name], 0.001) for name in _MARKS}
        axes.plot([values["p50"], values["p99"]], [row] * 2, color=colour)
        for name, mark in _MARKS.items():
            label = name if row == 0 else None
            axes.plot([values[name]], [row], color=colour, marker=mark, linestyle="", label=label)
        for name in ("p50", "p99") if values["p99"] > values["p50"] * 2 else ("p50",):
            axes.annotate(span(spans[name]), (values[name], row + 0.15), fontsize=7, ha="center")
    axes.set_yticks(
        range(len(shown[-_MAX_ROWS:])), [_short(kind) for _, kind in shown[-_MAX_ROWS:]]
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: span(value))
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.margins(x=0.08, y=0.15)
    axes.set_xlabel("time from the first schedule to the end of done messages (logarithmic)")
    axes.set_title("Lateness by kind")
    _add_legend(axes)


def _throughput(axes: Axes, figures: Figures, colours: Colours) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    rows = [(datetime.fromisoformat(each["minute"]), each) for each in figures["throughput"]]
    minute, first = timedelta(minutes=1), min(at for at, _ in rows)
    # A minute without messages is a zero, and a single minute has a width.
    count = int((max(at for at, _ in rows) - first) / minute) + 3
    minutes: Any = [first + minute * (number - 1) for number in range(count)]
    series: dict[str, list[int]] = {}
    for at, each in rows:
        counts = series.setdefault(each["kind"], [0] * count)
        counts[int((at - first) / minute) + 1] += each["messages"]
    stacks = stacks_of(series, colours)
    axes.stackplot(
        minutes, list(stacks.values()), labels=[_short(each) for each in stacks],
        colors=[colours.get(each, _GREY) for each in stacks], step="mid", linewidth=0,
    )  # fmt: skip
    locator: Any = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlabel("time (UTC)")
    _finish_counts(axes, "Throughput: done", "messages a minute")


def _backlog(axes: Axes, figures: Figures, colours: Colours) -> None:
    rows = figures["backlog"]
    series = {each["kind"]: [each["due"], *each["hours"], each["later"]] for each in rows}
    columns = len(rows[0]["hours"]) + 2
    bottom = [0] * columns
    for kind, values in stacks_of(series, colours).items():
        colour = colours.get(kind, _GREY)
        axes.bar(range(columns), values, 0.85, bottom=bottom, color=colour, label=_short(kind))
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    begin = datetime.fromisoformat(figures["created_at"])
    hours = [f"{begin + timedelta(hours=each):%H:%M}" for each in range(columns - 2)]
    labels = ["due now", *hours, "later"]
    axes.set_xticks(range(columns), labels, rotation=60, ha="right", fontsize=8)
    axes.set_xlabel(f"falls due in the hour from (UTC, {begin:%Y-%m-%d})")
    _finish_counts(axes, "Backlog, and when it falls due", "messages")


def _reasons(axes: Axes, figures: Figures, colours: Colours) -> None:
    shown = figures["reasons"][:_MAX_ROWS][::-1]
    bars = axes.barh(
        range(len(shown)), [each["messages"] for each in shown],
        color=[colours.get(each["kind"], _GREY) for each in shown],
    )  # fmt: skip
    axes.bar_label(bars, labels=[f" {each['messages']:,}" for each in shown], fontsize=8)
    labels = [f"{_short(each['reason'], 48)}\n{_short(each['kind'])}" for each in shown]
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.margins(x=0.1)
    axes.set_xlabel("messages")
    axes.set_title("Why messages died")


def stacks_of(series: Mapping[str, Sequence[int]], colours: Colours) -> dict[str, Sequence[int]]:
    """Return the series of kinds with a colour, and the sum of the others last."""
    found = {kind: series[kind] for kind in colours if kind in series}
    rest = [values for kind, values in series.items() if kind not in colours]
    return {**found, OTHERS: [sum(each) for each in zip(*rest, strict=True)]} if rest else found


def _finish_counts(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(visible=True, axis="y", alpha=0.3)
    _add_legend(axes)


def _add_legend(axes: Any) -> None:
    """Put the legend below the plot, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(
        handles, labels, frameon=False, fontsize=8, ncols=4, loc="outside lower center"
    )


def _short(text: str, limit: int = 28) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
