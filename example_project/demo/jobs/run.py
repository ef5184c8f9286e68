"""The act of the jobs: three scenarios at once, asked for over HTTP."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

from example_project.demo.acts import Check, Outcome
from example_project.demo.jobs import accounts, orders, refunds, upstreams
from example_project.demo.jobs.client import JobsClient
from example_project.demo.jobs.receiver import Receiver
from example_project.demo.patience import Patience
from example_project.demo.processes import Child
from example_project.demo.stage import Stage

TOPICS: Final = (orders.TOPIC, refunds.TOPIC, upstreams.TOPIC)
WORKERS: Final = 2
WORKER: Final = ("runqueueworker", "--processes", "0", "--callbacks-only", "--no-color")
HANG_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.2
SEED: Final = 7


class JobsAct:
    """Orders closed, refunds polled, upstreams told: by a client that knows only HTTP."""

    name: Final = "jobs"
    introduction: Final = (
        "A client in any language: orders to close unless paid, refunds to look after, upstreams "
        "to be told in steps until they have heard."
    )

    def clear(self) -> None:
        """Delete the jobs, topics and endpoints of an earlier run."""
        accounts.clear(TOPICS)

    def left(self) -> str:
        """Say what an interrupted run leaves in the database."""
        return f"Jobs may be left in the topics {', '.join(TOPICS)}; the next run deletes them."

    def prepare(self, stage: Stage) -> None:
        """Open the receivers, and allow calls to them: they are at private addresses."""
        self._shop, self._upstream = (stage.enter(Receiver(HANG_SECONDS)) for _ in range(2))
        stage.allow_calls(self._shop.port, self._upstream.port)
        # For half a minute nobody wants to watch.
        stage.children.environment["CALLBACK_BREAKER_PAUSE"] = "1"

    def warm_up(self, stage: Stage) -> None:
        """Nothing: its processes are up in a moment."""

    def run(self, stage: Stage) -> Outcome:
        """Run the three scenarios side by side."""
        address = f"{stage.web.address}/queue"
        token = accounts.set_up_token(TOPICS)
        shop, upstream = self._shop, self._upstream
        for receiver in (shop, upstream):
            receiver.secret = accounts.set_up_endpoint(stage.children, receiver.url("/"))
        dice = random.Random(SEED)  # noqa: S311 # the same run each time, not security
        self._orders = orders.Orders(JobsClient(address, token), shop, dice)
        self._refunds = refunds.Refunds(lambda: JobsClient(address, token), dice)
        self._upstreams = upstreams.Upstreams(JobsClient(address, token), upstream, dice)
        workers = [stage.children.start("worker", *WORKER) for _ in range(WORKERS)]
        stage.console.step("api", f"{address}/v1/jobs, {WORKERS} workers call the urls")
        self._play(stage)
        return self._outcome(stage, workers, [shop, upstream])

    def _play(self, stage: Stage) -> None:
        """Begin all three and return when all are done; raises Stalled if they do not get on."""
        over = threading.Event()
        payer = threading.Thread(target=self._orders.pay, args=(over,), daemon=True)
        began = time.monotonic()
        try:
            self._upstreams.begin()
            self._orders.begin()
            payer.start()
            self._refunds.begin(over)
            self._await(stage, began)
            payer.join(stage.patience)
        finally:
            over.set()
        self._refunds.join()

    def _await(self, stage: Stage, began: float) -> None:
        parts: dict[str, Callable[[], bool]] = {
            "orders": lambda: self._orders.is_done,
            "refunds": lambda: self._refunds.is_done,
            "upstreams": lambda: self._upstreams.is_done,
        }
        patience = Patience(stage.patience)
        while waiting := [name for name, is_done in parts.items() if not is_done()]:
            stage.children.check()
            seconds = time.monotonic() - began
            patience.see(self._state(), f"{', '.join(waiting)} are not done")
            if self._upstreams.tend():
                stage.console.step("kick", f"{self._upstreams.kicked} dead jobs are made ready")
            stage.console.draw([], f"{seconds:3.0f} s: {self._state()}")
            time.sleep(LOOK_SECONDS)

    def _state(self) -> str:
        closed = len(self._orders.receiver.calls_of(orders.PATH))
        return (
            f"orders {closed} closed, {len(self._orders.paid_at)} paid; "
            f"{len(self._refunds.finished)} refunds through; upstreams called "
            f"{len(self._upstreams.receiver.calls_of(upstreams.PATH))} times"
        )

    def _outcome(self, stage: Stage, workers: list[Child], receivers: list[Receiver]) -> Outcome:
        parts = (self._orders, self._refunds, self._upstreams)
        checks = [check for part in parts for check in part.checks()]
        unsigned = sum(each.unsigned for each in receivers)
        checks.append(Check("unsigned 0", unsigned == 0, "every call had a valid signature"))
        codes = stage.children.stop(workers)
        checks.append(Check("workers stopped", not any(codes), f"exit codes {codes}"))
        rows = [row for part in parts for row in part.rows()]
        rows += [("", each) for each in self._refunds.errors]
        figures = {key: value for part in parts for key, value in part.figures().items()}
        return Outcome(rows, figures, checks)
