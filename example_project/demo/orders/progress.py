"""The live view of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from example_project.demo.console import Console
from example_project.demo.orders.figures import Figures
from example_project.demo.processes import Child

BAR_WIDTH: Final = 44


@dataclass(frozen=True, slots=True)
class Moment:
    """How far the run is: ``elapsed`` of ``length``, and the time it is in the file."""

    elapsed: timedelta
    length: timedelta
    file_time: datetime

    @property
    def share(self) -> float:
        return min(max(self.elapsed / self.length, 0.0), 1.0)


class Progress:
    """Draws the figures as a block, or where that cannot be as a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, moment: Moment, figures: Figures, workers: Sequence[Child]) -> None:
        block = ["", *self._block(moment, figures), self._row("workers", self._states(workers)), ""]
        self._console.draw(block, _plain(moment, figures))

    def _block(self, moment: Moment, figures: Figures) -> list[str]:
        done = round(moment.share * BAR_WIDTH)
        bar = self._console.good("━" * done) + self._console.dim("─" * (BAR_WIDTH - done))
        seconds = f"{max(moment.elapsed.total_seconds(), 0):3.0f} s"
        return [
            f"  {seconds}  {bar}  {self._console.dim('in the shop it is')} "
            f"{moment.file_time:%H:%M:%S}",
            "",
            self._row("offered", f"{figures.orders:>7,}", f"{figures.scheduled:,} not yet due"),
            self._row("due", f"{figures.due:>7,}", f"{figures.leased:,} leased by workers"),
            self._row("closed", f"{figures.closed:>7,}", "deadline passed unpaid"),
            self._row("dropped", f"{figures.dropped:>7,}", "paid before the deadline"),
            self._row("retried", f"{figures.retried:>7,}", "the gateway had timed out"),
            self._row("redelivered", f"{figures.redelivered:>7,}", "their worker was killed"),
            self._row("dead", f"{figures.dead:>7,}", "given up on, kept for people to see"),
            self._row("lateness", figures.lateness),
        ]

    def _row(self, name: str, value: str, note: str = "") -> str:
        return f"  {name:<11} {value}  {self._console.dim(note)}".rstrip()

    def _states(self, workers: Sequence[Child]) -> str:
        return "  ".join(self._state(each) for each in workers)

    def _state(self, worker: Child) -> str:
        if worker.is_running:
            return f"{worker.pid} {self._console.good('runs')}"
        return f"{worker.pid} {self._console.bad('killed')}"


def _plain(moment: Moment, figures: Figures) -> str:
    return (
        f"{max(moment.elapsed.total_seconds(), 0):3.0f} s: {figures.scheduled:,} not yet due, "
        f"{figures.due:,} due, {figures.leased:,} leased; {figures.closed:,} closed, "
        f"{figures.dropped:,} dropped, {figures.retried:,} retried, "
        f"{figures.redelivered:,} redelivered, {figures.dead:,} dead; "
        f"lateness p99 {figures.late_p99:,.0f} ms"
    )
