"""A record as plots: SVG files for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
# Text stays text, and the same record gives the same file.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "peers", "font.size": 9})

from matplotlib import pyplot as plt  # noqa: E402 # after the backend was chosen

from benchmarks.peers.recording import Record  # noqa: E402

COLOURS: Final = {"ours": "#0b6e4f", "bare": "#9fb8ad"}
OTHERS: Final = "#7a8fb3"


def draw(record: Record, directory: Path) -> None:
    """Write a plot for each measure that has runs."""
    directory.mkdir(parents=True, exist_ok=True)
    counts = sorted({run.processes for run in record.runs if run.measure == "drain"})
    for count in counts:
        title = f"Drain, {count} process{'es' if count > 1 else ''}: messages per second"
        _bars(record, directory / f"drain-{count}.svg", title, "drain", "rate", count)
    offers = {"single_rate": "one by one", "bulk_rate": "in bulk"}
    for figure, how in offers.items():
        file = directory / f"offer-{figure.removesuffix('_rate')}.svg"
        _bars(record, file, f"Offers of one producer, {how}: messages per second", "offer", figure)
    _pickup(record, directory / "pickup.svg")


def _bars(
    record: Record, file: Path, title: str, measure: str, figure: str, processes: int = 1
) -> None:
    names = _sorted(record, measure, figure, processes)
    if not names:
        return
    middles = [record.median(name, measure, figure, processes) or 0.0 for name in names]
    spreads = [record.figures(name, measure, figure, processes) for name in names]
    errors = [
        [middle - min(found) for middle, found in zip(middles, spreads, strict=True)],
        [max(found) - middle for middle, found in zip(middles, spreads, strict=True)],
    ]
    axes = _axes(record, names, title)
    axes.barh(
        range(len(names)), middles, xerr=errors, color=_colours(record, names), ecolor="#444444"
    )
    axes.set_xscale("log")
    for place, (middle, found) in enumerate(zip(middles, spreads, strict=True)):
        axes.text(max(found) * 1.06, place, f"{middle:,.0f}", va="center")
    axes.set_xlim(right=max(middles) * 3)
    _save(file)


def _pickup(record: Record, file: Path) -> None:
    names = _sorted(record, "pickup", "p50_ms", 1)[::-1]
    if not names:
        return
    axes = _axes(record, names, "From offer to handler on an idle queue, ms: median to p99")
    for place, (name, colour) in enumerate(zip(names, _colours(record, names), strict=True)):
        middle = record.median(name, "pickup", "p50_ms") or 0.0
        late = record.median(name, "pickup", "p99_ms") or 0.0
        axes.plot([middle, late], [place, place], color=colour, linewidth=4, solid_capstyle="butt")
        axes.plot([middle], [place], "o", color=colour)
        axes.text(late * 1.06, place, f"{middle:.1f} / {late:.1f}", va="center")
    axes.set_xscale("log")
    axes.margins(x=0.25)
    _save(file)


def _axes(record: Record, names: Sequence[str], title: str) -> Any:
    _, axes = plt.subplots(figsize=(9, 0.8 + 0.26 * len(names)), layout="constrained")
    labels = [f"{record.contenders[name]['title']} · {name}" for name in names]
    axes.set_yticks(range(len(names)), labels=labels)
    axes.set_title(title, loc="left")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _sorted(record: Record, measure: str, figure: str, processes: int) -> list[str]:
    found = [name for name in record.contenders if record.figures(name, measure, figure, processes)]
    return sorted(found, key=lambda name: record.median(name, measure, figure, processes) or 0.0)


def _colours(record: Record, names: Sequence[str]) -> list[str]:
    return [COLOURS.get(record.contenders[name]["kind"], OTHERS) for name in names]


def _save(file: Path) -> None:
    # Without a date the file changes only when the figures do.
    plt.savefig(file, metadata={"Date": None})
    plt.close()
