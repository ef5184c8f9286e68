"""The first thing to do later: close an order, unless it is paid before."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from example_project.demo.acts import Check, none_of
from example_project.demo.jobs.client import JobsClient
from example_project.demo.jobs.receiver import Call, Receiver

TOPIC: Final = "close-order"
PATH: Final = "/orders/close"
ORDERS: Final = 400
FIRST_DELAY: Final = 3.0
LAST_DELAY: Final = 13.0
PAID_SHARE: Final = 0.6
PAYERS: Final = 4
# How long a call may take from the claim to the receiver.
UNDER_WAY: Final = 2.0


@dataclass(slots=True)
class Orders:
    """Adds a job for each order; payments delete theirs, the receiver closes the others."""

    client: JobsClient
    receiver: Receiver
    dice: random.Random
    run_at: dict[str, float] = field(default_factory=dict)
    paid_at: dict[str, float] = field(default_factory=dict)
    too_late: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Add all jobs with one call."""
        self.receiver.answer(PATH, lambda body, count: "204")
        jobs = [self._job(number) for number in range(ORDERS)]
        for answer in self.client.add_many(jobs)["items"]:
            added = answer["job"]
            self.run_at[added["jobId"]] = datetime.fromisoformat(added["runAt"]).timestamp()

    def _job(self, number: int) -> dict[str, Any]:
        order_id = f"order-{number:03}"
        return {
            "jobId": order_id,
            "topic": TOPIC,
            "delay": round(self.dice.uniform(FIRST_DELAY, LAST_DELAY), 3),
            "body": {"order": order_id, "total": self.dice.randint(5, 500)},
            "url": self.receiver.url(PATH),
        }

    def pay(self, over: threading.Event) -> None:
        """Pay some of the orders, most before their deadline; return when all of it is done."""
        paying = self.dice.sample(sorted(self.run_at), round(ORDERS * PAID_SHARE))
        now = time.time()
        at = {each: self.dice.uniform(now, self.run_at[each] + 0.1) for each in paying}
        with ThreadPoolExecutor(PAYERS) as pool:
            for order_id in sorted(paying, key=lambda each: at[each]):
                if over.wait(max(at[order_id] - time.time(), 0)):
                    return
                pool.submit(self._pay, order_id)

    def _pay(self, order_id: str) -> None:
        if self.client.delete(TOPIC, order_id):
            self.paid_at[order_id] = time.time()
        else:
            self.too_late.append(order_id)

    @property
    def is_done(self) -> bool:
        closed = {each.body["order"] for each in self.receiver.calls_of(PATH)}
        return len(closed | set(self.paid_at)) == len(self.run_at)

    def rows(self) -> list[tuple[str, str]]:
        closed = self.receiver.calls_of(PATH)
        return [
            ("orders", f"{len(self.run_at):,}, each with a job to close it"),
            ("", f"{len(self.paid_at):,} paid in time, their jobs deleted"),
            ("", f"{len(closed):,} closed by a call of their url, {self._lateness(closed)}"),
        ]

    def _lateness(self, calls: list[Call]) -> str:
        late = sorted(1000 * (each.arrived_at - self.run_at[each.body["order"]]) for each in calls)
        if not late:
            return "none"
        p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
        return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms after their time"

    def figures(self) -> dict[str, Any]:
        return {
            "orders": len(self.run_at),
            "paid": len(self.paid_at),
            "closed": len(self.receiver.calls_of(PATH)),
            "paid_too_late": len(self.too_late),
        }

    def _last_call_at(self, order_id: str) -> float:
        """Return when the call of an order may arrive at the latest: at its DELETE, if that was.

        Of one that was due by then the call may have been under way.
        """
        paid_at = self.paid_at.get(order_id, float("inf"))
        return paid_at + (UNDER_WAY if self.run_at[order_id] <= paid_at else 0)

    def checks(self) -> list[Check]:
        calls = self.receiver.calls_of(PATH)
        closed = [each.body["order"] for each in calls]
        lost = sorted(set(self.run_at) - set(closed) - set(self.paid_at))
        twice = sorted({each for each in closed if closed.count(each) > 1})
        early = [
            each.body["order"]
            for each in calls
            if each.arrived_at < self.run_at[each.body["order"]]
        ]
        after_delete = [
            each.body["order"]
            for each in calls
            if each.arrived_at > self._last_call_at(each.body["order"])
        ]
        return [
            none_of("orders lost", lost, f"{len(self.paid_at)} paid, {len(closed)} closed"),
            none_of("closed twice", twice, "one call for each order"),
            none_of("closed early", early, "never before its time"),
            none_of("called after DELETE", after_delete, "never, unless the call was under way"),
        ]
