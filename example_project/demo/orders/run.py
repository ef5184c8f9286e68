"""The act of the orders, from the file to the report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from django.db import Error

from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.models import Schedule
from delayed_queue.queues import DROP_ALL_CONFIRMATION
from example_project.demo import database
from example_project.demo.acts import Outcome
from example_project.demo.exceptions import DemoError
from example_project.demo.orders import figures, intake, render
from example_project.demo.orders.checks import check
from example_project.demo.orders.clock import ShopClock
from example_project.demo.orders.killing import Kill, returns_after
from example_project.demo.orders.report import Facts, make_report
from example_project.demo.orders.sales import SalesSchedule
from example_project.demo.orders.watching import Watch
from example_project.demo.patience import Patience
from example_project.demo.processes import Child
from example_project.demo.stage import Stage
from example_project.models import Closing, Delivery, Order, SalesReport
from example_project.orders import OrderLine
from example_project.shop import QUEUE_NAME, SALES_QUEUE_NAME, queue, sales_queue

# From the first order to the last deadline; more orders take longer, at so many a second.
SECONDS: Final = 28.0
ORDERS_PER_SECOND: Final = 360
# Between the start of loading and the opening of the shop, at so many orders a second.
LOADED_PER_SECOND: Final = 5000
# A short lease, so that what the killed worker held comes back while one watches.
WORKER: Final = (
    "runqueueworker", "--processes", "0", "--queue", SALES_QUEUE_NAME, "--queue", QUEUE_NAME,
    "--concurrency", "8", "--lease", "5", "--poll-interval", "1", "--shutdown-timeout", "5",
    "--no-color",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What can be chosen about the act; ``seconds`` and ``speed`` are two ways to say one thing."""

    input: Path
    limit: int | None = None
    workers: int = 3
    seconds: float | None = None
    speed: float | None = None
    kill: bool = True
    rejects: Path | None = None


class OrdersAct:
    """Orders closed at their deadline unless they are paid, though a worker is killed."""

    name: Final = "orders"
    introduction: Final = (
        "Each order is to be closed at its deadline, unless it has been paid by then."
    )

    def __init__(self, options: Options) -> None:
        self.options = options
        self.has_loaded = False
        self._workers: list[Child] = []
        self._sales = SalesSchedule()

    def clear(self) -> None:
        """Delete the orders and records, messages and dead letters of an earlier run."""
        queue.drop_all_messages(DROP_ALL_CONFIRMATION)
        Schedule.objects.filter(kind=sales_queue.kind).delete()
        sales_queue.drop_all_messages(DROP_ALL_CONFIRMATION)
        sales_queue.prune_dead_letters(timedelta(0))
        queue.prune_dead_letters(timedelta(0))
        for model in (Order, Delivery, Closing, SalesReport):
            model.objects.all().delete()

    def prepare(self, stage: Stage) -> None:
        """Nothing: the workers are its own."""

    def warm_up(self, stage: Stage) -> None:
        """Nothing: its processes are up in a moment."""

    def run(self, stage: Stage) -> Outcome:
        """Run from start to end; raises DemoError when it cannot, or does not get on."""
        started = time.monotonic()
        self._stage = stage
        scan = self._scan()
        self._sales.create()
        self._start_workers()
        clock, length = self._clock(scan)
        offered = self._load(clock)
        kill = self._watch(clock, length)
        codes = stage.children.stop([each for each in self._workers if each.is_running])
        took = timedelta(seconds=time.monotonic() - started)
        facts = self._facts(scan, clock, offered, kill, codes, took)
        report = make_report(facts, figures.count(), self._orders())
        return Outcome(list(render.rows(report)), render.as_json(report), check(report))

    def left(self) -> str:
        """Say what an interrupted run leaves in the database."""
        if not self.has_loaded:
            return "No orders were stored."
        try:
            database.wait_for_rest()
            left = figures.count()
        except (Error, DelayedQueueError, DemoError) as error:
            return f"What is left cannot be counted: {error}"
        return (
            f"Left in the database: {left.open:,} orders open, {left.paid:,} paid, "
            f"{left.closed:,} closed; {left.messages:,} messages in the queue, {left.dead:,} "
            f"dead. `manage.py runqueueworker --queue {QUEUE_NAME}` would deliver them, "
            "`manage.py demo` begins anew."
        )

    # Before

    def _scan(self) -> intake.Scan:
        options, console = self.options, self._stage.console
        rejects = options.rejects or intake.rejects_beside(options.input)
        scan = intake.scan(options.input, options.limit, rejects, console)
        if not scan.orders:
            raise DemoError(f"{options.input} has no valid order.")
        rejected = f", {scan.rejects:,} lines rejected" if scan.rejects else ""
        console.step("input", f"{options.input.name}: {scan.orders:,} orders{rejected}")
        return scan

    def _start_workers(self) -> None:
        started_at = database.database_now()
        self._workers = [self._start_worker() for _ in range(self.options.workers)]
        # Or a short run on a busy machine is over before there is one to kill.
        self._stage.wait_for(self._workers, started_at)
        names = ", ".join(str(each.pid) for each in self._workers)
        self._stage.console.step("workers", f"processes {names} on the queue {QUEUE_NAME}")

    def _start_worker(self) -> Child:
        return self._stage.children.start("worker", *WORKER)

    def _clock(self, scan: intake.Scan) -> tuple[ShopClock, timedelta]:
        """Return the clock of the run, and how long it is from the opening to the last deadline."""
        seconds = self.options.seconds or max(SECONDS, scan.orders / ORDERS_PER_SECOND)
        speed = self.options.speed or scan.span.total_seconds() / seconds
        lead = timedelta(seconds=1 + scan.orders / LOADED_PER_SECOND)
        return scan.clock(database.database_now() + lead, speed), scan.span / speed

    def _load(self, clock: ShopClock) -> int:
        began = time.monotonic()
        self.has_loaded = True
        offered = intake.load(self._orders(), clock)
        seconds = time.monotonic() - began
        text = f"{offered:,} orders and their messages in {seconds:.1f} s"
        self._stage.console.step("offered", text)
        return offered

    def _orders(self) -> Iterator[OrderLine]:
        return intake.valid_orders(self.options.input, self.options.limit)

    # During and after

    def _watch(self, clock: ShopClock, length: timedelta) -> Kill | None:
        console, children = self._stage.console, self._stage.children
        watch = Watch(console, children, self._workers, clock, length, self._sales)
        patience = Patience(self._stage.patience)
        watch.until_done(patience, self._start_worker if self.options.kill else None)
        return watch.kill

    def _facts(
        self,
        scan: intake.Scan,
        clock: ShopClock,
        offered: int,
        kill: Kill | None,
        exit_codes: list[int],
        took: timedelta,
    ) -> Facts:
        return Facts(
            input=self.options.input.name,
            rejects=scan.rejects,
            rejects_path=None if scan.rejects_path is None else str(scan.rejects_path),
            offered=offered,
            speed=clock.speed,
            took=took,
            exit_codes=exit_codes,
            wants_kill=self.options.kill,
            kill=kill,
            sales=self._sales,
            returns=None if kill is None else returns_after(kill),
        )
