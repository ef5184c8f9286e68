"""The report's plots, a kind in one colour in all of them; and the page that has them in it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.spark.pipeline.console import span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by the colour-blind, and on paper by their lightness (Okabe and Ito).
COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442",
)  # fmt: skip
_GREY: Final = "#808080"
# More kinds than there are colours are no longer told apart: the rest are added up.
MOST_KINDS: Final = len(COLOURS)
OTHERS: Final = "all others"
_MOST_ROWS: Final = 12
_SIZE: Final = (9.0, 4.5)
# Drawn by matplotlib in black, which a page sets to the colour of its text.
_INK: Final = "#000000"
_MARKS: Final = {"p50": "o", "p90": "|", "p95": "D", "p99": ">"}
_TICKS: Final = {
    "1 ms": 0.001, "10 ms": 0.01, "100 ms": 0.1, "1 s": 1, "10 s": 10, "1 min": 60,
    "10 min": 600, "1 h": 3600, "6 h": 21_600, "1 d": 86_400, "7 d": 604_800, "30 d": 2_592_000,
}  # fmt: skip
_NAMES: Final[Mapping[float, str]] = {value: name for name, value in _TICKS.items()}
Colours = Mapping[str, str]


def draw(figures: Mapping[str, Any], form: str = "png") -> dict[str, bytes]:
    """Return a picture by name for each figure that has anything to show."""
    colours = colours_of(figures)
    plots: dict[str, tuple[Callable[[Axes, Any, Colours], None], Any]] = {
        "lateness": (_lateness, [each for each in figures["kinds"] if _has_spans(each)]),
        "hours": (_hours, figures.get("hours")),
        "throughput": (_throughput, figures["throughput"]),
        "backlog": (_backlog, figures if figures["backlog"] else None),
        "attempts": (_attempts, figures.get("attempts")),
        "reasons": (_reasons, figures["reasons"]),
        "funnel": (_funnel, figures.get("funnel")),
    }
    return {
        name: _picture(plot, data, colours, form) for name, (plot, data) in plots.items() if data
    }


def colours_of(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the colours of the kinds that have most messages; the others share grey."""
    totals = {each["kind"]: each["messages"] for each in figures["kinds"]}
    for each in figures["backlog"]:
        waiting = each["due"] + sum(each["hours"]) + each["later"]
        totals[each["kind"]] = totals.get(each["kind"], 0) + waiting
    for each in (*figures["throughput"], *figures["reasons"]):
        totals.setdefault(each["kind"], 0)
    largest = sorted(totals, key=lambda each: (-totals[each], each))[:MOST_KINDS]
    return dict(zip(largest, COLOURS, strict=False))


def _picture(plot: Callable[..., None], data: Any, colours: Colours, form: str) -> bytes:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": plot.__name__}):
        figure = Figure(figsize=_SIZE, dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        plot(axes, data, colours)
        written = io.BytesIO()
        # Of a page the background and the ink are its own.
        figure.savefig(written, format=form, transparent=form == "svg", metadata={"Date": None}
                       if form == "svg" else None)  # fmt: skip
    return written.getvalue()


def inked(svg: bytes) -> str:
    """Return the picture to be put into a page, in the colour of its text."""
    text = svg.decode()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    # Text without a colour of its own is black.
    return text.replace("<svg ", '<svg fill="currentColor" ', 1)


def _has_spans(each: Mapping[str, Any]) -> bool:
    return bool(each["lateness_seconds"] or each.get("dead_lateness_seconds"))


def _lateness(axes: Axes, kinds: list[dict[str, Any]], colours: Colours) -> None:
    """A line from the median to the 99th percentile, on a scale that fits both ms and hours."""
    from matplotlib.lines import Line2D

    shown = sorted(kinds, key=_worst)[-_MOST_ROWS:]
    for place, each in enumerate(shown):
        colour = colours.get(each["kind"], _GREY)
        _range(axes, place + 0.12, each["lateness_seconds"], colour, "-")
        _range(axes, place - 0.2, each.get("dead_lateness_seconds"), colour, ":")
    axes.set_xscale("log")
    _rows(axes, [_short(each["kind"]) for each in shown])
    _span_axis(axes.xaxis)
    axes.set_xlabel("time from the first schedule to the end (logarithmic)")
    axes.set_title("Lateness by kind")
    axes.margins(x=0.08)
    keys: list[Any] = [
        Line2D([], [], color=_GREY, marker=mark, linestyle="", label=name)
        for name, mark in _MARKS.items()
    ]
    keys += [Line2D([], [], color=_GREY, linestyle="-", label="done")]
    keys += [Line2D([], [], color=_GREY, linestyle=":", label="dead")]
    axes.figure.legend(handles=keys, frameon=False, fontsize=8, ncols=6, loc="outside lower center")


def _worst(each: Mapping[str, Any]) -> float:
    spans = (each["lateness_seconds"], each.get("dead_lateness_seconds"))
    return max(float(found["p99"]) for found in spans if found)


def _range(
    axes: Axes, place: float, found: Mapping[str, float] | None, colour: str, style: str
) -> None:
    if found is None:
        return
    values = {name: max(found[name], 0.001) for name in _MARKS}
    axes.plot([values["p50"], values["p99"]], [place] * 2, color=colour, linestyle=style)
    for name, mark in _MARKS.items():
        axes.plot([values[name]], [place], color=colour, marker=mark, markersize=5)
    axes.annotate(
        span(found["p50"]), (values["p50"], place), xytext=(0, 5), textcoords="offset points",
        fontsize=7, ha="center",
    )  # fmt: skip
    if values["p99"] > values["p50"] * 2:
        axes.annotate(
            span(found["p99"]), (values["p99"], place), xytext=(0, 5), textcoords="offset points",
            fontsize=7, ha="center",
        )  # fmt: skip


def _rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)


def _span_axis(axis: Any) -> None:
    """Mark the times that people count in, and no others."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_major_locator(FixedLocator([*_TICKS.values()]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: _NAMES.get(value, ""))
    axis.grid(visible=True, alpha=0.3)


def _legend(axes: Any) -> None:
    """Put the legend below, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(
        handles, labels, frameon=False, fontsize=8, ncols=4, loc="outside lower center"
    )


def _short(text: str, most: int = 28) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _hours(axes: Axes, rows: list[dict[str, Any]], colours: Colours) -> None:
    """A field for each kind and hour: the darker, the later were 5 % of what fell due in it."""
    from matplotlib.colors import LogNorm

    kinds = [each for each in colours if any(row["kind"] == each for row in rows)][::-1]
    hours = _every({"at": row["hour"]} for row in rows if row["kind"] in kinds)
    late = {(row["kind"], datetime.fromisoformat(row["hour"])): row["p95"] for row in rows}
    fields = [
        [max(late[kind, hour], 0.001) if (kind, hour) in late else float("nan") for hour in hours]
        for kind in kinds
    ]
    seen = [value for line in fields for value in line if value == value]
    scale = LogNorm(min(seen), max(max(seen), min(seen) * 1.01))
    shown = axes.pcolormesh(
        range(len(hours) + 1), [each - 0.5 for each in range(len(kinds) + 1)], fields,
        norm=scale, cmap="viridis_r",
    )  # fmt: skip
    bar = axes.figure.colorbar(shown, ax=axes, pad=0.01)
    _span_axis(bar.ax.yaxis)
    _rows(axes, [_short(each) for each in kinds])
    for place, kind in enumerate(kinds):
        axes.plot([-0.008], [place], marker="s", markersize=6, color=colours[kind],
                  transform=axes.get_yaxis_transform(), clip_on=False)  # fmt: skip
    step = max(len(hours) // 12, 1)
    axes.set_xticks(range(0, len(hours), step),
                    [f"{each:%m-%d %H:%M}" for each in hours[::step]], rotation=60, ha="right",
                    fontsize=8)  # fmt: skip
    axes.set_xlabel("hour of the first schedule (UTC)")
    axes.set_title("Lateness by hour (p95)")


def _every(rows: Any, step: timedelta = timedelta(hours=1)) -> list[datetime]:
    """Return the times from first to last, those without any row too: a gap is a zero."""
    found = [datetime.fromisoformat(each["at"]) for each in rows]
    first, last = min(found), max(found)
    return [first + step * each for each in range(int((last - first) / step) + 1)]


def _throughput(axes: Any, rows: list[dict[str, Any]], colours: Colours) -> None:
    """Areas, one on the other; so two kinds that ended in the same minutes are both seen."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    minute = timedelta(minutes=1)
    series = _by_kind(rows, colours)
    minutes = _every(({"at": each["minute"]} for each in rows), minute)
    # A single minute has a width, too.
    minutes = [minutes[0] - minute, *minutes, minutes[-1] + minute]
    axes.stackplot(
        minutes,
        [[counts.get(each, 0) for each in minutes] for counts in series.values()],
        labels=[_short(each) for each in series],
        colors=[colours.get(each, _GREY) for each in series], step="mid", linewidth=0,
    )  # fmt: skip
    locator: Any = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlim(minutes[0] - 2 * minute, minutes[-1] + 2 * minute)
    axes.set_ylim(bottom=0)
    _count_axis(axes.yaxis)
    axes.set_xlabel("time (UTC)")
    axes.set_ylabel("messages a minute")
    axes.set_title("Throughput: done")
    _legend(axes)


def _count_axis(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.grid(visible=True, alpha=0.3)


def _by_kind(rows: list[dict[str, Any]], colours: Colours) -> dict[str, dict[datetime, int]]:
    """Return the counts by minute of kinds with a colour, and of all others together."""
    there = {row["kind"] for row in rows}
    series: dict[str, dict[datetime, int]] = {each: {} for each in colours if each in there}
    for row in rows:
        counts = series.setdefault(row["kind"] if row["kind"] in colours else OTHERS, {})
        minute = datetime.fromisoformat(row["minute"])
        counts[minute] = counts.get(minute, 0) + row["messages"]
    return series


def _backlog(axes: Axes, figures: dict[str, Any], colours: Colours) -> None:
    """Stacked bars: what is due now, then hour by hour, then the rest."""
    rows = figures["backlog"]
    columns = len(rows[0]["hours"]) + 2
    values = {each["kind"]: [each["due"], *each["hours"], each["later"]] for each in rows}
    _stacked(axes, values, colours, 0.85)
    begin = datetime.fromisoformat(figures["created_at"])
    hours = [f"{begin + timedelta(hours=each):%H:%M}" for each in range(columns - 2)]
    axes.set_xticks(range(columns), ["due now", *hours, "later"], rotation=60, ha="right")
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel(f"falls due in the hour from (UTC, {begin:%Y-%m-%d})")
    axes.set_title("Backlog, and when it falls due")


def _attempts(axes: Axes, rows: list[dict[str, Any]], colours: Colours) -> None:
    """Stacked bars: how many took one attempt, two, … and more; died after so many, beside them."""
    most = len(rows[0]["done"])
    for outcome, shift in (("done", -0.2), ("dead", 0.2)):
        values = {each["kind"]: each[outcome] for each in rows}
        _stacked(axes, values, colours, 0.38, shift, "" if outcome == "done" else "////")
    axes.set_xticks(range(most), [*(str(each) for each in range(1, most)), "more"])
    axes.set_xlabel("attempts to the end; hatched: those that died")
    axes.set_title("Attempts")


def _stacked(
    axes: Any, rows: Mapping[str, Sequence[int]], colours: Colours, width: float,
    shift: float = 0, hatch: str = "",
) -> None:  # fmt: skip
    """Draw a bar for each place, of the kinds with a colour and of all others."""
    bottom = [0] * len(next(iter(rows.values())))
    for kind, values in stacks_of(rows, colours):
        axes.bar(
            [place + shift for place in range(len(values))], values, width, bottom=bottom,
            color=colours.get(kind, _GREY), hatch=hatch, edgecolor="white" if hatch else None,
            linewidth=0, label=None if hatch else _short(kind),
        )  # fmt: skip
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    if not hatch:
        _legend(axes)
    _count_axis(axes.yaxis)
    axes.set_ylabel("messages")


def stacks_of(
    rows: Mapping[str, Sequence[int]], colours: Colours
) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the rows of kinds with a colour, in the order of all plots, then the sum of others."""
    yield from ((kind, rows[kind]) for kind in colours if kind in rows)
    rest = [values for kind, values in rows.items() if kind not in colours]
    if rest:
        yield OTHERS, [sum(column) for column in zip(*rest, strict=True)]


def _reasons(axes: Axes, rows: list[dict[str, Any]], colours: Colours) -> None:
    shown = rows[:_MOST_ROWS][::-1]
    labels = [f"{_short(each['reason'], 48)}\n{_short(each['kind'])}" for each in shown]
    bars = axes.barh(
        range(len(shown)), [each["messages"] for each in shown],
        color=[colours.get(each["kind"], _GREY) for each in shown],
    )  # fmt: skip
    axes.bar_label(bars, labels=[f" {each['messages']:,}" for each in shown], fontsize=8)
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.set_xlabel("messages")
    axes.set_title("Why messages died")
    axes.set_axisbelow(True)
    _count_axis(axes.xaxis)
    axes.margins(x=0.1)


# No colour of a kind: what became of messages is seen by place and lightness.
_STEPS: Final = {
    "offered": "#d0d0d0", "due": "#a8a8a8", "done": "#606060", "dead": "#202020",
    "dropped": "#787878", "expired": "#909090",
}  # fmt: skip


def _funnel(axes: Axes, rows: list[dict[str, Any]], colours: Colours) -> None:
    """Bars of the largest campaigns, from what was offered down to what became of it."""
    shown = rows[:6][::-1]
    steps = [name for name in _STEPS if any(each[name] for each in shown)]
    height = 0.85 / len(steps)
    for index, name in enumerate(steps):
        places = [place + 0.42 - height * (index + 0.5) for place in range(len(shown))]
        values = [each[name] for each in shown]
        bars = axes.barh(places, values, height, color=_STEPS[name], edgecolor=_GREY, linewidth=0.5)
        axes.bar_label(bars, labels=[f" {name} {each:,}" for each in values], fontsize=7)
    _rows(axes, [_short(campaign_name(each["campaign"])) for each in shown])
    axes.set_xlabel("messages")
    axes.set_title("Outcomes of campaigns")
    _count_axis(axes.xaxis)
    axes.margins(x=0.15)


def campaign_name(campaign: str | None) -> str:
    return "(none)" if campaign is None else campaign


# The page. It loads nothing, so it can be sent and kept as it is.
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 76rem;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .5rem; text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child, .text { overflow-wrap: anywhere; text-align: left;
  white-space: normal; }
td:first-child { min-width: 9rem; padding-left: 1.4em; position: relative; }
.text { min-width: 12rem; }
td i { border-radius: 2px; height: .7em; left: .2em; position: absolute; top: .75em; width: .7em; }
p, figcaption { color: color-mix(in srgb, currentColor 70%, transparent); }
figure { margin: 1.5rem 0; } svg { height: auto; max-width: 100%; min-width: 34rem; }
"""
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p>{span}</p>
{body}
</body>
</html>
"""
_WORDS: Final = {"reason"}


def page(figures: Mapping[str, Any], tables: Sequence[tuple[str, list[Sequence[str]], str]]) -> str:
    """Return the report as one file of HTML: its tables, and its plots in the page's colours."""
    colours = colours_of(figures)
    parts = [_table(*each, colours) for each in tables]
    parts += [
        f'<figure class="wide">{inked(each)}</figure>' for each in draw(figures, "svg").values()
    ]
    ends = [f"{name} {_instant(figures[name])}" for name in ("since", "until") if figures.get(name)]
    return _PAGE.format(
        title=f"Report of {_instant(figures['created_at'])}", style=_STYLE,
        span=escape(f"Ended {' and '.join(ends)}." if ends else "All ended messages."),
        body="\n".join(parts) if tables else "<p>Nothing has ended.</p>",
    )  # fmt: skip


def _instant(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _table(title: str, rows: list[Sequence[str]], note: str, colours: Colours) -> str:
    head, *lines = rows
    classes = [' class="text"' if name in _WORDS else "" for name in head]
    top = "".join(f"<th{css}>{escape(name)}</th>" for name, css in zip(head, classes, strict=True))
    body = "\n".join(
        "<tr>" + "".join(
            f"<td{css}>{_dot(cell, colours) if name == 'kind' else ''}{escape(cell)}</td>"
            for cell, css, name in zip(line, classes, head, strict=True)
        ) + "</tr>"
        for line in lines
    )  # fmt: skip
    return (
        f'<h2>{escape(title)}</h2>\n<div class="wide"><table><thead><tr>{top}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n<p>{escape(note)}</p>"
    )


def _dot(kind: str, colours: Colours) -> str:
    return f'<i style="background: {colours.get(kind, _GREY)}"></i>'
