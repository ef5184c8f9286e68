"""The act of the orders: closed at their deadline unless paid, though a worker is killed."""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from django.db.models import Count, F, Max

from delayed_queue import PeriodicSchedule
from delayed_queue.models import DeadLetter, Schedule
from delayed_queue.queue.queue import DROP_ALL_CONFIRMATION
from delayed_queue.tasks.models import TaskResult
from example_project import shop
from example_project.demo import database
from example_project.demo.checks import Check, Outcome, none_of, repeated, stopped
from example_project.demo.stage import Act, Child, Stage
from example_project.models import Closing, Delivery, Invoice, Order, SalesReport
from example_project.orders import OrderLine, read_valid
from example_project.shop import invoices_queue, queue, sales_queue
from example_project.tasks import write_invoice

FILE: Final = Path(__file__).parents[1] / "data" / "orders.jsonl"
# From the first order to the last deadline; more orders take longer, at so many a second.
SECONDS: Final = 28.0
ORDERS_PER_SECOND: Final = 360
# Between the start of loading and the opening of the shop, at so many orders a second.
LOADED_PER_SECOND: Final = 2500
LOADED_AT_ONCE: Final = 1000
CUSTOMERS: Final = 8
# A short lease, so that what the killed worker held comes back while one watches.
SERVING: Final = (
    *(part for each in (sales_queue, invoices_queue, queue) for part in ("--queue", each.name)),
    "--concurrency", "8", "--lease", "5", "--poll-interval", "1", "--shutdown-timeout", "5",
)  # fmt: skip
# Shares of the time: of the edit; from when on a worker is killed that has two messages in flight;
# and from when on one will do.
EDIT_FROM, KILL_FROM, KILL_ANY_FROM = 0.3, 0.35, 0.5
ARRIVAL_SECONDS: Final = 0.02
PARTICULARS: Final = attrgetter("customer", "amount", "currency")
# More than any demo offers: counts are exact below the cap.
CAP: Final = 1_000_000
BEFORE, AFTER = PeriodicSchedule(timedelta(seconds=5)), PeriodicSchedule(timedelta(seconds=3))
_ROWS: Final = (
    ("paid", "{paid:>7,}  in time, their messages dropped; {refused:,} came too late"),
    ("invoices", "{invoices:>7,}  of large payments, each written by a task"),
    ("closed", "{closed:>7,}  unpaid at their deadline"),
    ("dead", "{dead:>7,}  {reasons}"),
    ("delivered", "{delivered:>7,}  times, {again:,} of them after a timeout or the kill"),
    ("lateness", "p50 {late_p50_ms:,.0f} ms, p99 {late_p99_ms:,.0f} ms, from due to handler"),
    ("took", "{seconds:.0f} s"),
)


@dataclass
class OrdersAct(Act):
    """Plays a file of orders much faster than it was written, in so many seconds."""

    input: Path = FILE
    orders: int | None = None
    workers: int = 3
    seconds: float | None = None
    rejects: Path | None = None
    kills: bool = True

    name = "orders"
    introduction = "each is closed at its deadline unless paid by then; a worker is killed"

    def clear(self) -> None:
        """Delete the orders and records, messages, dead letters and results of an earlier run."""
        Schedule.objects.filter(kind=sales_queue.kind).delete()
        for each in (queue, sales_queue, invoices_queue):
            each.drop_all_messages(DROP_ALL_CONFIRMATION)
            each.prune_dead_letters(timedelta(0))
        for model in (Order, Delivery, Closing, Invoice, SalesReport):
            model.objects.all().delete()
        TaskResult.objects.filter(task=write_invoice.module_path).delete()

    def run(self, stage: Stage) -> Outcome:
        began, step = time.monotonic(), stage.console.step
        lines, rejects = read_valid(self.input, self.orders, self.rejects, stage.console.warn)
        step("input", f"{self.input.name}: {len(lines):,} orders")
        # As an operator makes one: a row, which the workers keep installed.
        schedule = Schedule.objects.create(
            kind=sales_queue.kind, key_prefix="hourly", queue=sales_queue.name, type="periodic",
            expression="5s", payload={},
        )  # fmt: skip
        # Or a short run on a busy machine is over before there is a worker to kill.
        workers = stage.start_workers(self.workers, "worker", *SERVING)
        clock = open_shop(lines, self.seconds)
        offered = sum(
            shop.place([clock.order(each) for each in lines[start : start + LOADED_AT_ONCE]])
            for start in range(0, len(lines), LOADED_AT_ONCE)
        )
        step("offered", f"{offered:,} orders, each with the message to close it")
        with stage.threads() as customers:
            for start in range(CUSTOMERS):
                customers.play(shop.pay, clock.payments(lines[start::CUSTOMERS]))
            watch = partial(stage.wait, state=partial(state_of, clock))
            watch(lambda: clock.share >= EDIT_FROM)
            # As the admin saves its form.
            schedule.expression = "3s"
            schedule.save()
            step("edit", "the sales report comes every 3 s, not every 5 s")
            kill = kill_one(stage, workers, clock, watch) if self.kills else None
            watch(_is_over)
        more = {"rejected_lines": rejects, "seconds": time.monotonic() - began}
        return report(lines, offered, stage.stop(workers), kill, **more)


@dataclass(frozen=True, slots=True)
class ShopClock:
    """``first`` of the file is ``opened_at`` here; from then on time passes ``speed`` x faster."""

    first: datetime
    opened_at: datetime
    length: timedelta
    speed: float
    # The database's clock, by which messages fall due, against this machine's.
    ahead: timedelta

    @property
    def share(self) -> float:
        """How much of the run is over, from 0 to 1."""
        return (datetime.now(UTC) + self.ahead - self.opened_at) / self.length

    def at(self, instant: datetime) -> datetime:
        """Return when an instant of the file comes, in whole milliseconds as a queue keeps it."""
        millisecond = timedelta(milliseconds=1)
        return self.opened_at + (instant - self.first) / self.speed // millisecond * millisecond

    def order(self, line: OrderLine) -> Order:
        """Return the order as it is stored, its times those of this run."""
        return Order(
            order_id=line.order_id, customer=line.customer, amount=line.amount,
            currency=line.currency, created_at=self.at(line.created_at),
            close_at=self.at(line.close_at), pays_at=line.pays_at and self.at(line.pays_at),
        )  # fmt: skip

    def payments(self, lines: Sequence[OrderLine]) -> list[tuple[float, str]]:
        """Return which of the orders are paid, and when by the clock of this machine."""
        paid = [(each.pays_at, each.order_id) for each in lines if each.pays_at]
        return sorted(((self.at(at) - self.ahead).timestamp(), order) for at, order in paid)


def open_shop(lines: Sequence[OrderLine], seconds: float | None) -> ShopClock:
    """Return the clock of a run of so many seconds, which begins when all can be stored."""
    first = min(each.created_at for each in lines)
    span = max(each.close_at for each in lines) - first
    length = timedelta(seconds=seconds or max(SECONDS, len(lines) / ORDERS_PER_SECOND))
    lead = timedelta(seconds=1 + len(lines) / LOADED_PER_SECOND)
    now = database.now()
    return ShopClock(first, now + lead, length, span / length, now - datetime.now(UTC))


def state_of(clock: ShopClock) -> str:
    """Say how things stand; before anything is due, the time is what moves."""
    second = min(clock.share, 1) * clock.length.total_seconds()
    states = dict(Order.objects.values_list("state").annotate(Count("pk")))
    paid, closed = (states.get(each, 0) for each in ("paid", "closed"))
    found = queue.stats(cap=CAP)
    return (
        f"{found.scheduled:,} not yet due, {found.due:,} due, {found.leased:,} leased; "
        f"{paid:,} paid, {closed:,} closed, {found.dead:,} dead; "
        f"{Invoice.objects.count():,} invoices; second {second:.0f}"
    )


def _left(*queues: Any) -> int:
    stats = [each.stats(cap=CAP) for each in queues]
    return sum(each.scheduled + each.due + each.leased for each in stats)


def _is_over() -> bool:
    """Return whether no message is left; payments still to come would come too late."""
    return not _left(queue, invoices_queue) and bool(ticks(AFTER))


class Kill(NamedTuple):
    """A killed worker, and when, on the database's clock."""

    worker: int
    killed_at: datetime


def kill_one(
    stage: Stage, workers: list[Child], clock: ShopClock, watch: Callable[..., None]
) -> Kill | None:
    """Kill a worker that has messages in flight, unless the run is over before any has."""
    suspended: list[Child] = []

    def is_suspended() -> bool:
        """Suspend the one with the most; what ends by then had been sent before, and arrives."""
        worker = max(workers, key=_in_flight)
        if _in_flight(worker) < (1 if clock.share >= KILL_ANY_FROM else 2):
            return clock.share >= 1 and _is_over()
        worker.send_signal(signal.SIGSTOP)
        time.sleep(ARRIVAL_SECONDS)
        if _in_flight(worker):
            suspended.append(worker)
        else:
            worker.send_signal(signal.SIGCONT)
        return bool(suspended)

    watch(lambda: clock.share >= KILL_FROM)
    # A message is in flight for milliseconds: a few looks a second would meet none.
    watch(is_suspended, every=ARRIVAL_SECONDS)
    if not suspended:
        return None
    [victim] = suspended
    said = f"worker {victim.pid} by SIGKILL with {_in_flight(victim)} messages in flight"
    workers.append(stage.replace(victim, *SERVING))
    stage.console.step("kill", f"{said}; {workers[-1].pid} takes its place")
    return Kill(victim.pid, database.now())


def _unfinished(worker: int) -> set[str]:
    found = Delivery.objects.filter(worker=worker, outcome=Delivery.Outcome.UNFINISHED)
    return set(found.values_list("order_id", flat=True))


def _in_flight(worker: Child) -> int:
    return len(_unfinished(worker.pid))


# Afterwards


def report(
    lines: Sequence[OrderLine], offered: int, codes: Sequence[int], kill: Kill | None, **more: Any
) -> Outcome:
    """Count in the database, and compare with the file line by line."""
    letters = DeadLetter.objects.filter(kind=queue.kind)
    dead = set(letters.values_list("key", flat=True))
    stored = {order.order_id: order for order in Order.objects.all()}
    ends = {each.order_id: _end(stored.get(each.order_id), dead) for each in lines}
    counts = Counter(ends.values())
    refused = [each for each in lines if each.pay_after and ends[each.order_id] != "paid"]
    late = sum(not each.is_paid_in_time for each in refused)
    reasons = dict(letters.values_list("reason").annotate(Count("pk")))
    returns = kill and {"worker": kill.worker, **_returns(kill)}
    figures = {
        "orders": len(lines), "offered": offered,
        **{each: counts[each] for each in ("paid", "closed", "dead", "lost")},
        "late_payments": late, "missed_payments": len(refused) - late, "refused": len(refused),
        "dead_reasons": reasons,
        "reasons": "; ".join(f"{count:,} {reason}" for reason, count in reasons.items()),
        "invoices": Invoice.objects.count(), **_deliveries(), "kill": returns, **more,
    }  # fmt: skip
    checks = [
        *_of_orders(lines, stored, ends),
        *_of_messages(figures, len(stored), len(dead)),
        *_of_invoices({each.order_id for each in stored.values() if _is_invoiced(each)}),
        *_of_ticks(),
        *_of_kill(returns),
        stopped(codes),
    ]
    return Outcome(figures, _ROWS, checks)


def _end(order: Order | None, dead: set[str]) -> str:
    """Return how an order ended: open ones are lost unless they are dead letters."""
    if order is None:
        return "lost"
    if order.state == Order.State.OPEN:
        return "dead" if order.order_id in dead else "lost"
    return order.state


def _deliveries() -> dict[str, Any]:
    """Return how many there were, and how late, on the database's clock."""
    rows = list(Delivery.objects.values_list("attempt", "due_at", "started_at"))
    late = sorted((started - due).total_seconds() * 1000 for _, due, started in rows)
    p50, p99 = (late[math.ceil(len(late) * at) - 1] if late else 0.0 for at in (0.5, 0.99))
    again = sum(attempt > 1 for attempt, _, _ in rows)
    return {"delivered": len(rows), "again": again, "late_p50_ms": p50, "late_p99_ms": p99}


def _returns(kill: Kill) -> dict[str, Any]:
    """Return how many of the killed worker's deliveries came back, and how soon the last."""
    cut = _unfinished(kill.worker)
    back = Delivery.objects.filter(order_id__in=cut, started_at__gt=kill.killed_at)
    back = back.exclude(outcome=Delivery.Outcome.UNFINISHED)
    last = back.aggregate(last=Max("started_at"))["last"] or kill.killed_at
    came_back = back.values("order_id").distinct().count()
    seconds = (last - kill.killed_at).total_seconds()
    return {"in_flight": len(cut), "came_back": came_back, "seconds": seconds}


def _of_orders(
    lines: Sequence[OrderLine], stored: dict[str, Order], ends: dict[str, str]
) -> Iterator[Check]:
    counts = Counter(ends.values())
    lost = [order_id for order_id, end in ends.items() if end == "lost"]
    said = " + ".join(f"{counts[end]:,} {end}" for end in ("paid", "closed", "dead"))
    yield none_of("lost", lost, f"{said} = {len(lines):,} orders in the file")
    closings = list(Closing.objects.values_list("order_id", flat=True))
    closed = {each.order_id for each in stored.values() if each.state == Order.State.CLOSED}
    said = f"{len(closings):,} closings for {len(closed):,} closed orders"
    yield none_of("closed twice", repeated(closings), said, and_also=set(closings) == closed)
    early = Order.objects.filter(closed_at__lt=F("close_at")).values_list("order_id", flat=True)
    yield none_of("closed early", early, "never before the deadline")
    paid = {each.order_id for each in lines if ends[each.order_id] == "paid"}
    in_time = {each.order_id for each in lines if each.is_paid_in_time}
    yield none_of("wrongly paid", paid - in_time, "only what the file pays before its deadline")
    pairs = [(each, stored[each.order_id]) for each in lines if each.order_id in stored]
    altered = [line.order_id for line, own in pairs if PARTICULARS(line) != PARTICULARS(own)]
    yield none_of("altered", altered, "customer, amount, currency as in the file")


def _of_messages(figures: dict[str, Any], stored: int, dead: int) -> Iterator[Check]:
    is_whole = figures["orders"] == stored == figures["offered"]
    said = f"{figures['offered']:,} messages for {stored:,} orders in the database"
    yield Check("offered", is_whole, said)
    said = f"{dead:,}, one for each of the {figures['dead']:,} orders left open"
    yield Check("dead letters", dead == figures["dead"], said)
    left = _left(queue)
    yield Check("queue empty", not left, f"{left:,} messages left in it")


def _is_invoiced(order: Order) -> bool:
    return order.state == Order.State.PAID and order.amount >= shop.INVOICED_FROM


def _of_invoices(due: set[str]) -> Iterator[Check]:
    written = list(Invoice.objects.values_list("order_id", flat=True))
    results = TaskResult.objects.filter(task=write_invoice.module_path, status="SUCCESSFUL").count()
    said = f"{len(due):,} large payments, {len(written):,} invoices, {results:,} results"
    is_whole = results == len(written)
    yield none_of("invoices wrong", due ^ set(written), said, and_also=is_whole)
    yield none_of("invoices twice", repeated(written), "each in one transaction with its result")


def ticks(schedule: PeriodicSchedule) -> list[datetime]:
    """Return the planned times that were reported on, each as often as it was."""
    rows = SalesReport.objects.filter(key__contains=f"/{schedule.config_hash}/")
    return sorted(rows.values_list("planned_at", flat=True))


def _of_ticks() -> Iterator[Check]:
    old, new = ticks(BEFORE), ticks(AFTER)
    late = [b for a, b in pairwise(old) if b - a > BEFORE.period]
    late += [b for a, b in pairwise(new) if b - a > AFTER.period]
    said = f"{len(old)} every 5 s, then {len(new)} every 3 s"
    yield none_of("ticks lost", late, said, and_also=bool(old or new))
    yield none_of("ticks twice", repeated(old + new), "each planned time has one sales report")
    outdated = [at for at in old if new and at > new[0]]
    yield none_of("outdated ticks", outdated, "none of the old schedule after the edit")


def _of_kill(returns: dict[str, Any] | None) -> Iterator[Check]:
    if returns is not None:
        said = "{came_back} of {in_flight} in flight came back, the last after {seconds:.1f} s"
        passed = returns["came_back"] == returns["in_flight"]
        yield Check("killed worker", passed, said.format(**returns))
