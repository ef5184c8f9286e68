"""One run of the demo, from the file to the report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from example_project.demo import database, figures, intake
from example_project.demo.clock import ShopClock
from example_project.demo.console import Console
from example_project.demo.exceptions import DemoError
from example_project.demo.killing import Kill, returns_after
from example_project.demo.patience import Patience
from example_project.demo.processes import MANAGE, Child, Children
from example_project.demo.report import Facts, Report, make_report
from example_project.demo.sales import SalesSchedule
from example_project.demo.watching import Watch
from example_project.demo.webserver import HOST, admin_address, free_port
from example_project.orders import OrderLine
from example_project.shop import QUEUE_NAME, SALES_QUEUE_NAME

# From the first order to the last deadline; more orders take longer, at so many a second.
SECONDS: Final = 36.0
ORDERS_PER_SECOND: Final = 300
# Between the start of loading and the opening of the shop, at so many orders a second.
LOADED_PER_SECOND: Final = 5000
INTRODUCTION: Final = "Each order is to be closed at its deadline, unless it has been paid by then."
SERVING_SECONDS: Final = 0.5
# A short lease, so that what the killed worker held comes back while one watches.
WORKER: Final = (
    "runqueueworker", "--processes", "0", "--queue", SALES_QUEUE_NAME, "--queue", QUEUE_NAME,
    "--concurrency", "8", "--lease", "5", "--poll-interval", "1", "--shutdown-timeout", "5",
    "--no-color",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """What can be chosen about a run; ``seconds`` and ``speed`` are two ways to say one thing."""

    input: Path
    limit: int | None = None
    workers: int = 3
    seconds: float | None = None
    speed: float | None = None
    kill: bool = True
    serve: bool = False
    rejects: Path | None = None
    patience: timedelta = timedelta(seconds=20)
    manage: Sequence[str] = MANAGE


class Demo:
    """A block in which one run can happen, and after which none of its processes is left."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options = options
        self.has_loaded = False
        self.admin = ""
        self._console = console
        self._stack = ExitStack()
        self._workers: list[Child] = []
        self._sales = SalesSchedule()

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def run(self) -> Report:
        """Run from start to end; raises DemoError when it cannot, or does not get on."""
        started = time.monotonic()
        self._console.say(self._console.bold(INTRODUCTION))
        self._console.say()
        scan = self._scan()
        self._prepare()
        self._start_workers()
        clock, length = self._clock(scan)
        offered = self._load(clock)
        kill = self._watch(clock, length, scan.orders)
        codes = self._children.stop([each for each in self._workers if each.is_running])
        took = timedelta(seconds=time.monotonic() - started)
        facts = self._facts(scan, clock, offered, kill, codes, took)
        return make_report(facts, figures.count(), self._orders())

    def serve(self) -> None:
        """Keep workers and the admin up until interrupted."""
        self._start_workers()
        self._console.step("serving", f"{self.admin}; Ctrl-C stops")
        with suppress(KeyboardInterrupt):
            while True:
                self._children.check()
                time.sleep(SERVING_SECONDS)

    # Before

    def _scan(self) -> intake.Scan:
        options = self.options
        rejects = options.rejects or intake.rejects_beside(options.input)
        scan = intake.scan(options.input, options.limit, rejects, self._console)
        if not scan.orders:
            raise DemoError(f"{options.input} has no valid order.")
        rejected = f", {scan.rejects:,} lines rejected" if scan.rejects else ""
        self._console.step("input", f"{options.input.name}: {scan.orders:,} orders{rejected}")
        return scan

    def _prepare(self) -> None:
        self._console.step("database", database.start_server())
        database.migrate()
        self._stack.enter_context(database.alone())
        database.clear()
        self._sales.create()
        logs = tempfile.TemporaryDirectory(prefix="delayed-queue-demo-")
        directory = Path(self._stack.enter_context(logs))
        self._children = self._stack.enter_context(Children(directory, self.options.manage))
        self._open_admin()

    def _open_admin(self) -> None:
        user, password = database.create_login()
        port = free_port()
        self.admin = f"{admin_address(port)}  (user {user}, password {password})"
        if self.options.serve:
            server = ("runserver", "--noreload", f"{HOST}:{port}")
            self._children.start("web server", *server, DEBUG="1")
            self._console.step("admin", self.admin)
        else:
            self.admin = f"`python manage.py runserver {port}`, then {self.admin}"

    def _start_workers(self) -> None:
        self._workers = [self._start_worker() for _ in range(self.options.workers)]
        names = ", ".join(str(each.pid) for each in self._workers)
        self._console.step("workers", f"processes {names} on the queue {QUEUE_NAME}")

    def _start_worker(self) -> Child:
        return self._children.start("worker", *WORKER)

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
        self._console.step("offered", f"{offered:,} orders and their messages in {seconds:.1f} s")
        return offered

    def _orders(self) -> Iterator[OrderLine]:
        return intake.valid_orders(self.options.input, self.options.limit)

    # During and after

    def _watch(self, clock: ShopClock, length: timedelta, orders: int) -> Kill | None:
        watch = Watch(self._console, self._children, self._workers, clock, length, self._sales)
        patience = Patience(self.options.patience, length, orders)
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
