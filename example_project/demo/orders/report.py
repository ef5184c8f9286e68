"""The report of a run: counted in the database, and compared with the file line by line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Final

from django.db.models import Count, F, Max

from delayed_queue.models import DeadLetter
from example_project.demo.orders.figures import Figures
from example_project.demo.orders.killing import Kill, Returns
from example_project.demo.orders.sales import SalesSchedule, Ticks, compare_ticks
from example_project.models import Closing, Order
from example_project.orders import OrderLine
from example_project.shop import queue

CHUNK: Final = 1000


@dataclass(frozen=True, slots=True)
class Facts:
    """What only the run itself knows: what it offered, whom it killed, how its workers ended."""

    input: str
    rejects: int
    rejects_path: str | None
    offered: int
    speed: float
    took: timedelta
    exit_codes: Sequence[int]
    wants_kill: bool
    kill: Kill | None
    returns: Returns | None
    sales: SalesSchedule


@dataclass(slots=True)
class Comparison:
    """The file against the database: how its orders ended, and the ids of those gone wrong.

    ``late_payments`` were to come after the deadline; ``missed_payments`` before it, but this
    machine did not keep up and they came after it as well.
    """

    orders: int = 0
    paid: int = 0
    closed: int = 0
    dead: int = 0
    late_payments: int = 0
    missed_payments: int = 0
    lost: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    wrongly_paid: list[str] = field(default_factory=list)

    def add(self, line: OrderLine, order: Order | None, *, is_dead: bool) -> None:
        """Count one order of the file as what the database says of it."""
        self.orders += 1
        if order is None or (order.state == Order.State.OPEN and not is_dead):
            self.lost.append(line.order_id)
            return
        if _particulars(line) != _particulars(order):
            self.altered.append(line.order_id)
        self.closed += order.state == Order.State.CLOSED
        self.dead += order.state == Order.State.OPEN
        if order.state == Order.State.PAID:
            self._add_paid(line)
        elif line.pay_after is not None:
            self.missed_payments += line.is_paid_in_time
            self.late_payments += not line.is_paid_in_time

    def _add_paid(self, line: OrderLine) -> None:
        self.paid += 1
        if not line.is_paid_in_time:
            self.wrongly_paid.append(line.order_id)


def _particulars(order: Order | OrderLine) -> tuple[object, ...]:
    return order.customer, order.amount, order.currency


@dataclass(frozen=True, slots=True)
class Report:
    """All that is known of a finished run."""

    facts: Facts
    figures: Figures
    comparison: Comparison
    closings: int
    closed_twice: list[str]
    closed_early: list[str]
    slowest_closing: timedelta
    ticks: Ticks
    dead_reasons: dict[str, int]


def make_report(facts: Facts, figures: Figures, lines: Iterable[OrderLine]) -> Report:
    """Count, and compare with the orders of the file, which are read once more."""
    return Report(
        facts=facts,
        figures=figures,
        comparison=compare(lines),
        closings=Closing.objects.count(),
        closed_twice=_closed_twice(),
        closed_early=_closed_early(),
        slowest_closing=_slowest_closing(),
        ticks=compare_ticks(facts.sales),
        dead_reasons=_dead_reasons(),
    )


def compare(lines: Iterable[OrderLine]) -> Comparison:
    """Look up each order of the file in the database, a thousand at a time."""
    found = Comparison()
    letters = DeadLetter.objects.filter(kind=queue.kind)
    dead = set(letters.values_list("key", flat=True))
    remaining = iter(lines)
    while chunk := list(islice(remaining, CHUNK)):
        stored = Order.objects.in_bulk([each.order_id for each in chunk], field_name="order_id")
        for line in chunk:
            found.add(line, stored.get(line.order_id), is_dead=line.order_id in dead)
    return found


def _closed_twice() -> list[str]:
    counted = Closing.objects.values("order_id").annotate(closings=Count("pk"))
    return list(counted.filter(closings__gt=1).values_list("order_id", flat=True))


def _closed_early() -> list[str]:
    early = Order.objects.filter(closed_at__lt=F("close_at"))
    return list(early.values_list("order_id", flat=True))


def _slowest_closing() -> timedelta:
    slowest = Order.objects.aggregate(slowest=Max(F("closed_at") - F("close_at")))["slowest"]
    return slowest or timedelta(0)


def _dead_reasons() -> dict[str, int]:
    letters = DeadLetter.objects.filter(kind=queue.kind)
    counted = letters.values_list("reason").annotate(letters=Count("pk"))
    return dict(counted.order_by("-letters", "reason"))
