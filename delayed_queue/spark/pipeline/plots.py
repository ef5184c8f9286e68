"""The plots of a report; a kind has one colour in all of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.spark.pipeline.console import span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito: distinct for the colour-blind, and in print by lightness.
COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442",
)  # fmt: skip
_GREY: Final = "#808080"
# Kinds beyond the number of colours are added up.
OTHERS: Final = "all others"
_MAX_ROWS: Final = 12
Figures = Mapping[str, Any]
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
    """Draw a bar for each kind from the median to the 99th percentile, on a logarithmic axis."""
    found = [(each["lateness_seconds"], each["kind"]) for each in figures["kinds"]]
    shown = sorted((each for each in found if each[0]), key=lambda each: each[0]["p99"])
    lows = [max(spans["p50"], 0.001) for spans, _ in shown]
    highs = [max(spans["p99"], spans["p50"] * 1.1, 0.0011) for spans, _ in shown]
    said = [f"{span(spans['p50'])} to {span(spans['p99'])}" for spans, _ in shown]
    names = [_short(kind) for _, kind in shown]
    ends = list(zip(lows, highs, strict=True))
    _bars(axes, names, ends, said, [colours.get(kind, _GREY) for _, kind in shown])
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: span(value))
    axes.set_xlim(min(lows) / 2, max(highs) * 8)
    axes.set_xlabel("median to 99th percentile, from first schedule to end, of done messages")
    axes.set_title("Lateness by kind")


def _throughput(axes: Axes, figures: Figures, colours: Colours) -> None:
    rows = [(datetime.fromisoformat(each["minute"]), each) for each in figures["throughput"]]
    minute, first = timedelta(minutes=1), min(at for at, _ in rows)
    # A minute without messages is a zero, and a single minute has a width.
    count = int((max(at for at, _ in rows) - first) / minute) + 3
    series: dict[str, list[int]] = {}
    for at, each in rows:
        counts = series.setdefault(each["kind"], [0] * count)
        counts[int((at - first) / minute) + 1] += each["messages"]
    _stack(axes, [first + minute * (number - 1) for number in range(count)], series, colours)
    axes.set_xlabel("time (UTC)")
    axes.set_ylabel("messages a minute")
    axes.set_title("Throughput: done")


def _backlog(axes: Axes, figures: Figures, colours: Colours) -> None:
    rows = figures["backlog"]
    series = {each["kind"]: [each["due"], *each["hours"], each["later"]] for each in rows}
    begin = datetime.fromisoformat(figures["created_at"])
    hours = [f"{begin + timedelta(hours=each):%H:%M}" for each in range(len(rows[0]["hours"]))]
    labels = ["due now", *hours, "later"]
    _stack(axes, range(len(labels)), series, colours)
    axes.set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize=8)
    axes.set_xlabel(f"falls due in the hour from (UTC, {begin:%Y-%m-%d})")
    axes.set_ylabel("messages")
    axes.set_title("Backlog, and when it falls due")


def _reasons(axes: Axes, figures: Figures, colours: Colours) -> None:
    shown = figures["reasons"][::-1]
    names = [f"{_short(each['reason'], 48)}\n{_short(each['kind'])}" for each in shown]
    counts = [each["messages"] for each in shown]
    shades = [colours.get(each["kind"], _GREY) for each in shown]
    _bars(axes, names, [(0, each) for each in counts], [f"{each:,}" for each in counts], shades)
    axes.margins(x=0.1)
    axes.set_xlabel("messages")
    axes.set_title("Why messages died")


def _bars(
    axes: Axes, names: Sequence[str], ends: Sequence[tuple[float, float]], said: Sequence[str],
    shades: Sequence[str],
) -> None:  # fmt: skip
    """Draw the last bars, from left to right, each with its name and its figures."""
    last = slice(-_MAX_ROWS, None)
    rows, begins = range(len(names[last])), [begin for begin, _ in ends[last]]
    widths = [end - begin for begin, end in ends[last]]
    bars = axes.barh(rows, widths, left=begins, color=shades[last])
    axes.bar_label(bars, labels=[f" {each}" for each in said[last]], fontsize=8)
    axes.set_yticks(rows, names[last], fontsize=7)
    axes.grid(visible=True, axis="x", alpha=0.3)


def _stack(axes: Axes, places: Any, series: Mapping[str, Sequence[int]], colours: Colours) -> None:
    stacks = stacks_of(series, colours)
    axes.stackplot(
        places, list(stacks.values()), labels=[_short(each) for each in stacks],
        colors=[colours.get(each, _GREY) for each in stacks], step="mid", linewidth=0,
    )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(visible=True, axis="y", alpha=0.3)
    # Below the plot, where it hides nothing.
    axes.figure.legend(frameon=False, fontsize=8, ncols=4, loc="outside lower center")


def stacks_of(series: Mapping[str, Sequence[int]], colours: Colours) -> dict[str, Sequence[int]]:
    """Return the series of kinds with a colour, and the sum of the others last."""
    found = {kind: series[kind] for kind in colours if kind in series}
    rest = [values for kind, values in series.items() if kind not in colours]
    return {**found, OTHERS: [sum(each) for each in zip(*rest, strict=True)]} if rest else found


def _short(text: str, limit: int = 28) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
