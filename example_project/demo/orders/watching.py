"""The time in which orders are paid and closed: watched, and disturbed once."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from example_project.demo.console import Console
from example_project.demo.database import database_now
from example_project.demo.orders import figures
from example_project.demo.orders.clock import ShopClock
from example_project.demo.orders.killing import Kill, kill_one
from example_project.demo.orders.payer import Payer
from example_project.demo.orders.progress import Moment, Progress
from example_project.demo.orders.sales import SalesSchedule
from example_project.demo.patience import Patience
from example_project.demo.processes import Child, Children

FRAME_SECONDS: Final = 0.25
LOOK_SECONDS: Final = 0.01
# The kill is tried from the first of these shares of the time on; from the second on, a
# worker with a single message in flight will do.
KILL_FROM: Final = 0.35
KILL_ANY_FROM: Final = 0.5
EDIT_FROM: Final = 0.55
WANTED_IN_FLIGHT: Final = 2


class Watch:
    """Looks at the run four times a second until every message is gone."""

    def __init__(
        self,
        console: Console,
        children: Children,
        workers: list[Child],
        clock: ShopClock,
        length: timedelta,
        sales: SalesSchedule,
    ) -> None:
        self._console = console
        self._progress = Progress(console)
        self._children = children
        self._workers = workers
        self._clock = clock
        self._length = length
        self._now = clock.opened_at
        self._sales = sales
        self.kill: Kill | None = None

    def until_done(self, patience: Patience, start_worker: Callable[[], Child] | None) -> None:
        """Return when all is done; with ``start_worker``, kill a worker and start another.

        Done is when no message is left: payments still to come would come too late.
        Raises DemoError when a process ends by itself, or patience runs out.
        """
        with Payer(self._clock.opened_at) as payer:
            while True:
                self._children.check()
                payer.check()
                counted = figures.count()
                self._show(counted)
                if counted.messages == 0 and self._sales.is_done:
                    break
                self._look_at_sales()
                patience.see(*self._state(counted))
                self._pass_a_frame(start_worker)
        self._console.keep()

    def _state(self, counted: figures.Figures) -> tuple[object, str]:
        """Return what must move, and what is waited for; before anything is due the clock does."""
        waiting = counted.due + counted.leased
        moved = (counted.messages, counted.delivered, counted.dead, waiting)
        return (
            moved if waiting else self._now,
            f"{counted.due:,} messages are due and {counted.leased:,} leased",
        )

    def _show(self, counted: figures.Figures) -> None:
        self._now = database_now()
        elapsed = self._now - self._clock.opened_at
        moment = Moment(elapsed, self._length, self._clock.in_file(self._now))
        self._progress.show(moment, counted, self._workers)

    def _look_at_sales(self) -> None:
        if self._sales.look(edit=self._share >= EDIT_FROM):
            self._console.step(
                "edit", "the sales report, every 5 s until now, is to come every 3 s"
            )

    def _pass_a_frame(self, start_worker: Callable[[], Child] | None) -> None:
        ends = time.monotonic() + FRAME_SECONDS
        while time.monotonic() < ends:
            wanted = self._wanted_in_flight()
            if start_worker is None or self.kill is not None or wanted is None:
                time.sleep(FRAME_SECONDS)
                return
            self.kill = kill_one(self._workers, self._clock.opened_at, wanted)
            if self.kill is not None:
                self._replace(self.kill, start_worker)
                return
            time.sleep(LOOK_SECONDS)

    @property
    def _share(self) -> float:
        return (self._now - self._clock.opened_at) / self._length

    def _wanted_in_flight(self) -> int | None:
        """Return how much in flight makes a victim now; None while it is too early for one."""
        share = self._share
        if share < KILL_FROM:
            return None
        return WANTED_IN_FLIGHT if share < KILL_ANY_FROM else 1

    def _replace(self, kill: Kill, start_worker: Callable[[], Child]) -> None:
        replacement = start_worker()
        self._workers.append(replacement)
        self._console.step(
            "kill",
            f"worker {kill.worker} by SIGKILL with {kill.in_flight} messages in flight; "
            f"worker {replacement.pid} takes its place",
        )
