"""The act of the orders: closed at their deadline unless paid, while a worker is killed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from django.db.models import Count, F, Max, QuerySet
from django.utils import timezone

from delayed_queue import PeriodicSchedule
from delayed_queue.models import DeadLetter, Message, Schedule
from delayed_queue.tasks.models import TaskResult
from example_project import shop
from example_project.demo.report import Check, Outcome, Row, none_of, repeated
from example_project.demo.stage import Act, Child, Stage, database_now, messages_of
from example_project.models import Closing, Delivery, Invoice, Order, SalesReport
from example_project.orders import OrderLine, read_orders
from example_project.shop import invoices_queue, queue, sales_queue
from example_project.tasks import write_invoice

FILE: Final = Path(__file__).parents[1] / "data" / "orders.jsonl"
# Seconds from the first order to the last deadline; longer above 360 orders a second.
SECONDS: Final = 28.0
ORDERS_PER_SECOND: Final = 360
# Speed of loading, which ends before the shop opens.
LOADED_PER_SECOND: Final = 2500
LOADED_AT_ONCE: Final = 1000
CUSTOMERS: Final = 8
# A short lease, so that messages of the killed worker are redelivered during the demo.
SERVING: Final = (
    *(part for each in (sales_queue, invoices_queue, queue) for part in ("--queue", each.name)),
    "--concurrency", "8", "--lease", "5", "--poll-interval", "1", "--shutdown-timeout", "5",
)  # fmt: skip
# Shares of the messages that are left at the edit, and at the kill.
EDIT_AT, KILL_AT = 0.7, 0.65
# Time for statements that the killed worker had sent.
ARRIVAL_SECONDS: Final = 0.1
PARTICULARS: Final = attrgetter("customer", "amount", "currency")
BEFORE, AFTER = PeriodicSchedule(timedelta(seconds=5)), PeriodicSchedule(timedelta(seconds=3))


@dataclass
class OrdersAct(Act):
    """Plays a file of orders in ``seconds``, much faster than it was written."""

    input: Path = FILE
    orders: int | None = None
    workers: int = 3
    seconds: float | None = None

    name = "orders"
    introduction = "closed at their deadline unless paid; a worker is killed meanwhile"

    def leftovers(self) -> Iterator[QuerySet[Any]]:
        yield Schedule.objects.filter(kind=sales_queue.kind)
        yield from messages_of(queue.kind, sales_queue.kind, invoices_queue.kind)
        yield TaskResult.objects.filter(task=write_invoice.module_path)
        for model in (Order, Delivery, Closing, Invoice, SalesReport):
            yield model.objects.all()

    def run(self, stage: Stage) -> Outcome:
        step = stage.console.step
        lines, rejected = read_orders(self.input, self.orders, stage.console.warn)
        step("input", f"{self.input.name}: {len(lines):,} orders")
        # A row, as an operator creates one; the workers install it.
        schedule = Schedule.objects.create(
            kind=sales_queue.kind, key_prefix="hourly", queue=sales_queue.name, type="periodic",
            expression="5s", payload={},
        )  # fmt: skip
        # First, so that a short run has a worker to kill.
        workers = stage.start_workers(self.workers, "worker", *SERVING)
        orders = orders_of(lines, self.seconds)
        offered = sum(
            shop.place(orders[start : start + LOADED_AT_ONCE])
            for start in range(0, len(orders), LOADED_AT_ONCE)
        )
        step("offered", f"{offered:,} messages, one to close each order")
        state = partial(state_of, max(each.close_at for each in orders))
        with stage.threads() as customers:
            paying = [(each.pays_at.timestamp(), each.order_id) for each in orders if each.pays_at]
            customers.play(shop.pay, sorted(paying), CUSTOMERS)
            stage.wait(lambda: _left(queue) <= EDIT_AT * offered, state)
            # As the form in the admin does.
            schedule.expression = "3s"
            schedule.save()
            step("edit", "sales reports every 3 s instead of every 5 s")
            stage.wait(lambda: _left(queue) <= KILL_AT * offered, state)
            kill = kill_one(stage, workers, state)
            stage.wait(_is_over, state)
        stage.stop(workers)
        return report(lines, offered, kill, rejected)


def orders_of(lines: Sequence[OrderLine], seconds: float | None) -> list[Order]:
    """Return the orders with the times of this run, compressed into ``seconds``."""
    first = min(each.created_at for each in lines)
    span = max(each.close_at for each in lines) - first
    length = timedelta(seconds=seconds or max(SECONDS, len(lines) / ORDERS_PER_SECOND))
    # After all orders are stored.
    opens_at = database_now() + timedelta(seconds=1 + len(lines) / LOADED_PER_SECOND)

    def at(instant: datetime) -> datetime:
        # In whole milliseconds, like the queue.
        passed = (instant - first) / span * length
        return opens_at + passed // timedelta(milliseconds=1) * timedelta(milliseconds=1)

    return [
        Order(
            order_id=each.order_id, customer=each.customer, amount=each.amount,
            currency=each.currency, created_at=at(each.created_at), close_at=at(each.close_at),
            pays_at=each.pays_at and at(each.pays_at),
        )
        for each in lines
    ]  # fmt: skip


def state_of(last_deadline: datetime) -> str:
    """Return the progress in words; before the first deadline only the time changes."""
    states = dict(Order.objects.values_list("state").annotate(Count("pk")))
    paid, closed = (states.get(each, 0) for each in ("paid", "closed"))
    found = queue.stats()
    still = max((last_deadline - timezone.now()).total_seconds(), 0)
    return (
        f"{found.scheduled:,} scheduled, {found.due:,} due, {found.leased:,} leased; "
        f"{paid:,} paid, {closed:,} closed, {found.dead:,} dead; {still:.0f} s to go"
    )


def _left(*queues: Any) -> int:
    return Message.objects.filter(kind__in=[each.kind for each in queues]).count()


def _is_over() -> bool:
    """Return whether no message is left; payments still to come would come too late."""
    return not _left(queue, invoices_queue) and bool(ticks(AFTER))


class Kill(NamedTuple):
    """A killed worker, and the time on the database's clock."""

    worker: int
    killed_at: datetime


def kill_one(stage: Stage, workers: list[Child], state: Callable[[], str]) -> Kill | None:
    """Kill the busiest worker, and the next one if it was idle; None if the run is over."""
    while True:
        stage.wait(lambda: any(map(_in_flight, workers)) or _is_over(), state)
        if _is_over():
            return None
        victim = max(workers, key=_in_flight)
        workers.remove(victim)
        workers.append(stage.kill(victim, *SERVING))
        kill = Kill(victim.pid, database_now())
        time.sleep(ARRIVAL_SECONDS)
        if _in_flight(victim):
            return kill


def _in_flight(worker: Child) -> int:
    return _unfinished(worker.pid).count()


def _unfinished(worker: int) -> QuerySet[Delivery]:
    return Delivery.objects.filter(worker=worker, outcome=Delivery.Outcome.UNFINISHED)


# Afterwards


def report(
    lines: Sequence[OrderLine], offered: int, kill: Kill | None = None, rejected: int = 0
) -> Outcome:
    """Count the rows of the database, and compare them with the file line by line."""
    stored = {order.order_id: order for order in Order.objects.all()}
    letters = DeadLetter.objects.filter(kind=queue.kind)
    dead = set(letters.values_list("key", flat=True))
    reasons = letters.values_list("reason").annotate(count=Count("pk"))
    paid, closed = _in_state(stored, Order.State.PAID), _in_state(stored, Order.State.CLOSED)
    late = sum(bool(each.pay_after) for each in lines) - len(paid)
    rows = [
        Row("orders", len(lines), f"in the file; {rejected:,} lines rejected"),
        Row("paid", len(paid), "before their deadline, so their messages were dropped"),
        Row("refused", late, "payments after the deadline"),
        Row("invoices", Invoice.objects.count(), "written by tasks, for large payments"),
        Row("closed", len(closed), "by a worker, unpaid at their deadline"),
        Row("dead", len(dead), "; ".join(f"{count:,} {reason}" for reason, count in reasons)),
        *_deliveries(),
    ]
    checks = [
        *_of_orders(lines, stored, dead),
        *_of_messages(len(lines), offered, stored, dead),
        *_of_invoices({each for each in paid if stored[each].amount >= shop.INVOICED_FROM}),
        *_of_ticks(),
        *(_of_kill(each) for each in [kill] if each),
    ]
    return Outcome(rows, checks)


def _in_state(stored: Mapping[str, Order], state: Order.State) -> set[str]:
    return {order_id for order_id, order in stored.items() if order.state == state}


def _deliveries() -> Iterator[Row]:
    """Yield the number of deliveries, and their delays on the database's clock."""
    rows = list(Delivery.objects.values_list("attempt", "due_at", "started_at"))
    again = sum(attempt > 1 for attempt, _, _ in rows)
    late = sorted((started - due).total_seconds() * 1000 for _, due, started in rows)
    p50, p99 = (late[math.ceil(len(late) * at) - 1] if late else 0.0 for at in (0.5, 0.99))
    yield Row(
        "delivered", len(rows), f"messages, {again:,} of them again after a timeout or the kill"
    )
    yield Row("late p50 ms", p50, "from the due time to the start of the handler, median")
    yield Row("late p99 ms", p99, "the same, 99th percentile")


def _of_orders(
    lines: Sequence[OrderLine], stored: Mapping[str, Order], dead: set[str]
) -> Iterator[Check]:
    paid, closed = _in_state(stored, Order.State.PAID), _in_state(stored, Order.State.CLOSED)
    ended = paid | closed | (dead & stored.keys())
    lost = [each.order_id for each in lines if each.order_id not in ended]
    said = f"{len(paid):,} paid + {len(closed):,} closed + {len(dead):,} dead = {len(lines):,}"
    yield none_of("no order lost", lost, f"{said} orders in the file", proves="no lost messages")
    closings = list(Closing.objects.values_list("order_id", flat=True))
    said = f"{len(closings):,} closings for {len(closed):,} closed orders"
    yield none_of(
        "none closed twice", repeated(closings), said, and_also=set(closings) == closed,
        proves="different consumers get different messages",
    )  # fmt: skip
    early = Order.objects.filter(closed_at__lt=F("close_at")).values_list("order_id", flat=True)
    yield none_of(
        "none closed early", early, "no order was closed before its deadline",
        proves="only messages scheduled for now or earlier are polled",
    )  # fmt: skip
    wrong = paid - {each.order_id for each in lines if each.is_paid_in_time}
    yield none_of(
        "none paid too late", wrong, "all payments came before the deadline",
        proves="messages can be deleted at any time",
    )  # fmt: skip
    altered = [
        line.order_id
        for line in lines
        if (own := stored.get(line.order_id)) and PARTICULARS(own) != PARTICULARS(line)
    ]
    yield none_of(
        "orders unaltered", altered, "customer, amount and currency as in the file",
        proves="consistency: constraints are always enforced",
    )  # fmt: skip


def _of_messages(
    orders: int, offered: int, stored: Mapping[str, Order], dead: set[str]
) -> Iterator[Check]:
    said = f"{offered:,} messages for {len(stored):,} orders in the database"
    proves = "atomicity: an operation succeeds or rolls back as a whole"
    yield Check("each order offered", orders == len(stored) == offered, said, proves)
    unpaid = _in_state(stored, Order.State.OPEN)
    said = f"{len(dead):,} dead letters for the {len(unpaid):,} orders left open"
    yield Check("dead letters", dead == unpaid, said, "failed messages are retried in steps")
    left = _left(queue)
    proves = "messages are deleted only when acknowledged"
    yield Check("queue empty", not left, f"{left:,} messages left", proves)


def _of_invoices(due: set[str]) -> Iterator[Check]:
    written = list(Invoice.objects.values_list("order_id", flat=True))
    results = TaskResult.objects.filter(task=write_invoice.module_path, status="SUCCESSFUL").count()
    said = f"{len(due):,} large payments, {len(written):,} invoices, {results:,} results"
    is_whole = results == len(written)
    yield none_of("each invoice written", due ^ set(written), said, and_also=is_whole)
    yield none_of(
        "no invoice twice", repeated(written), "each was committed with its result",
        proves="exactly-once delivery (with acknowledgement)",
    )  # fmt: skip


def ticks(schedule: PeriodicSchedule) -> list[datetime]:
    """Return the planned time of each sales report of a schedule."""
    rows = SalesReport.objects.filter(key__contains=f"/{schedule.config_hash}/")
    return sorted(rows.values_list("planned_at", flat=True))


def _of_ticks() -> Iterator[Check]:
    old, new = ticks(BEFORE), ticks(AFTER)
    late = [b for a, b in pairwise(old) if b - a > BEFORE.period]
    late += [b for a, b in pairwise(new) if b - a > AFTER.period]
    said = f"{len(old)} sales reports every 5 s, then {len(new)} every 3 s"
    yield none_of(
        "no tick lost", late, said, and_also=bool(old or new),
        proves="another instance continues scheduling",
    )  # fmt: skip
    yield none_of(
        "no tick twice", repeated(old + new), "one sales report for each planned time",
        proves="no duplicate cron executions",
    )  # fmt: skip
    outdated = [at for at in old if new and at > new[0]]
    yield none_of(
        "no outdated tick", outdated, "no report of the old schedule after the edit",
        proves="configuration changes are atomic",
    )  # fmt: skip


def _of_kill(kill: Kill) -> Check:
    """Check that each message in flight in the killed worker was redelivered and settled."""
    cut = set(_unfinished(kill.worker).values_list("order_id", flat=True))
    again = Delivery.objects.filter(order_id__in=cut, started_at__gt=kill.killed_at)
    back = again.exclude(outcome=Delivery.Outcome.UNFINISHED)
    found = back.aggregate(count=Count("order_id", distinct=True), last=Max("started_at"))
    seconds = ((found["last"] or kill.killed_at) - kill.killed_at).total_seconds()
    done = f"{found['count']} of its {len(cut)} unfinished messages were redelivered"
    proves = "a message that is not acknowledged is redelivered after its timeout"
    said = f"{done}, the last after {seconds:.1f} s"
    return Check("killed worker", found["count"] == len(cut) > 0, said, proves)
