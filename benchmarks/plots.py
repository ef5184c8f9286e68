"""Lines as an SVG file for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
# Text stays text, and the same figures give the same file.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "delayed_queue", "font.size": 9})

from matplotlib import pyplot as plt  # noqa: E402 # after the backend was chosen

from benchmarks.figures import Plot  # noqa: E402


def draw(plots: Sequence[Plot], file: Path) -> None:
    """Write the plots below each other into one file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    _, found = plt.subplots(
        len(plots), figsize=(8, 2.6 * len(plots)), layout="constrained", squeeze=False
    )
    for axes, plot in zip(found[:, 0], plots, strict=True):
        _draw(axes, plot)
    # Without a date the file changes only when the figures do.
    plt.savefig(file, metadata={"Date": None})
    plt.close()


def _draw(axes: Any, plot: Plot) -> None:
    for line in plot.lines:
        axes.plot(*zip(*line.points, strict=True), marker=".", label=line.name)
    axes.set_xscale("log" if plot.is_log_x else "linear")
    axes.set_yscale("log" if plot.is_log_y else "linear")
    if not plot.is_log_y:
        axes.set_ylim(bottom=0)
    axes.set_title(plot.title, loc="left")
    axes.set_xlabel(plot.x)
    axes.set_ylabel(plot.y)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend()
