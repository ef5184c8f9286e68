"""The act of the orders: closed at their deadline unless paid, though a worker is killed."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, LiteralString, NamedTuple

from django.db.models import Count, F, Max

from delayed_queue.cron.schedules import PeriodicSchedule
from delayed_queue.models import DeadLetter, Schedule
from delayed_queue.queue.queue import DROP_ALL_CONFIRMATION
from example_project import shop
from example_project.demo.stage import (
    WORKER,
    Act,
    Check,
    Child,
    Console,
    DemoError,
    Look,
    Outcome,
    Stage,
    Threads,
    database_now,
    fetch,
    filled,
    none_of,
    stopped,
)
from example_project.models import Closing, Delivery, Order, SalesReport
from example_project.orders import BadLine, OrderLine, RejectsFile, read_orders
from example_project.shop import QUEUE_NAME, SALES_QUEUE_NAME, queue, sales_queue

# From the first order to the last deadline; more orders take longer, at so many a second.
SECONDS: Final = 28.0
ORDERS_PER_SECOND: Final = 360
# Between the start of loading and the opening of the shop, at so many orders a second.
LOADED_PER_SECOND: Final = 5000
LOADED_AT_ONCE: Final = 1000
SHOWN_REJECTS: Final = 20
CUSTOMERS: Final = 8
# A short lease, so that what the killed worker held comes back while one watches.
SERVING: Final = (
    "--queue", SALES_QUEUE_NAME, "--queue", QUEUE_NAME, "--concurrency", "4", "--lease", "5",
    "--poll-interval", "1", "--shutdown-timeout", "5",
)  # fmt: skip
# The kill is tried from the first of these shares of the time on; from the second on, a
# worker with a single message in flight will do.
KILL_FROM, KILL_ANY_FROM, EDIT_FROM = 0.35, 0.5, 0.55
ARRIVAL_SECONDS, KILL_LOOKS = 0.02, 10
# More than any demo offers: counts are exact below the cap.
CAP: Final = 1_000_000

_DELIVERIES: Final[LiteralString] = """
SELECT
    count(*) AS delivered,
    count(*) FILTER (WHERE attempt = 1) AS first,
    COALESCE(percentile_disc(0.5) WITHIN GROUP (ORDER BY late), 0) AS late_p50_ms,
    COALESCE(percentile_disc(0.99) WITHIN GROUP (ORDER BY late), 0) AS late_p99_ms
FROM (
    SELECT attempt, extract(epoch FROM started_at - due_at)::float8 * 1000 AS late
    FROM example_project_delivery
) AS delivery
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the act; ``seconds`` are from the first order to the last end."""

    input: Path
    limit: int | None = None
    workers: int = 3
    seconds: float | None = None
    kill: bool = True
    rejects: Path | None = None


class OrdersAct(Act):
    """Plays a file of orders much faster than it was written."""

    name = "orders"
    introduction = "each is closed at its deadline unless paid by then; a worker is killed"

    def __init__(self, options: Options) -> None:
        self.options = options
        self.has_loaded = False

    def clear(self) -> None:
        """Delete the orders and records, messages and dead letters of an earlier run."""
        Schedule.objects.filter(kind=sales_queue.kind).delete()
        for each in (queue, sales_queue):
            each.drop_all_messages(DROP_ALL_CONFIRMATION)
            each.prune_dead_letters(timedelta(0))
        for model in (Order, Delivery, Closing, SalesReport):
            model.objects.all().delete()

    def run(self, stage: Stage) -> Outcome:
        began = time.monotonic()
        lines, rejects = read(self.options, stage.console)
        create_schedule()
        # Or a short run on a busy machine is over before there is a worker to kill.
        workers = stage.start_workers(self.options.workers, "worker", *SERVING)
        clock = open_shop(lines, self.options.seconds)
        offered = self._load(lines, clock, stage.console)
        watch = Watch(stage, workers, clock, self.options.kill)
        with Threads() as customers:
            for start in range(CUSTOMERS):
                customers.start(pay, lines[start::CUSTOMERS], clock, customers)
            stage.wait(lambda: watch.look(customers))
        codes = stage.stop([each for each in workers if each.is_running])
        more = {"rejected_lines": rejects, "seconds": time.monotonic() - began}
        return report(lines, offered, codes, watch.kill, **more)

    def _load(self, lines: Sequence[OrderLine], clock: ShopClock, console: Console) -> int:
        """Store the orders and offer their messages, a thousand to a transaction."""
        began = time.monotonic()
        self.has_loaded = True
        starts = range(0, len(lines), LOADED_AT_ONCE)
        offered = sum(
            shop.place([clock.order(each) for each in lines[start : start + LOADED_AT_ONCE]])
            for start in starts
        )
        seconds = time.monotonic() - began
        console.step("offered", f"{offered:,} orders and their messages in {seconds:.1f} s")
        return offered

    def left(self) -> str:
        if not self.has_loaded:
            return "No orders were stored."
        stats, states = queue.stats(cap=CAP), states_of_orders()
        messages = stats.scheduled + stats.due + stats.leased
        return (
            f"Left in the database: {states['open']:,} orders open, {states['paid']:,} paid, "
            f"{states['closed']:,} closed; {messages:,} messages in the queue, {stats.dead:,} "
            f"dead. `manage.py runqueueworker --queue {QUEUE_NAME}` would deliver them, "
            "`manage.py demo` begins anew."
        )


def states_of_orders() -> Counter[str]:
    return Counter(dict(Order.objects.values_list("state").annotate(Count("pk"))))


# The file


def read(options: Options, console: Console) -> tuple[list[OrderLine], int]:
    """Return the valid orders and how many lines are none; those are said and written down."""
    path = options.rejects or options.input.with_name(f"{options.input.stem}.rejects.jsonl")
    orders: list[OrderLine] = []
    try:
        with RejectsFile(path) as rejects:
            for each in read_orders(options.input):
                if isinstance(each, BadLine):
                    _reject(each, rejects, options.input.name, console)
                elif len(orders) == options.limit:
                    break
                else:
                    orders.append(each)
    except OSError as error:
        raise DemoError(f"{path} cannot be written: {error.strerror}. See --rejects.") from error
    if not orders:
        raise DemoError(f"{options.input} has no valid order.")
    if more := max(rejects.count - SHOWN_REJECTS, 0):
        console.warn(f"… and {more:,} more.")
    if rejects.count:
        console.warn(f"Rejected lines: {rejects.path}")
    console.step("input", f"{options.input.name}: {len(orders):,} orders")
    return orders, rejects.count


def _reject(bad: BadLine, rejects: RejectsFile, name: str, console: Console) -> None:
    rejects.add(bad)
    if rejects.count <= SHOWN_REJECTS:
        console.warn(f"{name}:{bad.line}: {bad.reason}")


@dataclass(frozen=True, slots=True)
class ShopClock:
    """``first`` of the file is ``opened_at`` here; from then on time passes ``speed`` x faster."""

    first: datetime
    opened_at: datetime
    length: timedelta
    speed: float
    # The database's clock against this machine's.
    ahead: timedelta = timedelta(0)

    def now(self) -> datetime:
        """Return the time by which messages fall due."""
        return datetime.now(UTC) + self.ahead

    @property
    def share(self) -> float:
        """How much of the run is over, from 0 to 1."""
        return (self.now() - self.opened_at) / self.length

    def at(self, instant: datetime) -> datetime:
        """Return when an instant of the file comes, in whole milliseconds as a queue keeps it."""
        millisecond = timedelta(milliseconds=1)
        return self.opened_at + (instant - self.first) / self.speed // millisecond * millisecond

    def order(self, line: OrderLine) -> Order:
        """Return the order as it is stored, its times those of this run."""
        return Order(
            order_id=line.order_id,
            customer=line.customer,
            amount=line.amount,
            currency=line.currency,
            created_at=self.at(line.created_at),
            close_at=self.at(line.close_at),
            pays_at=None if line.pays_at is None else self.at(line.pays_at),
        )


def open_shop(lines: Sequence[OrderLine], seconds: float | None) -> ShopClock:
    """Return the clock of a run of so many seconds, which begins when all can be stored."""
    first = min(each.created_at for each in lines)
    span = max(each.close_at for each in lines) - first
    length = timedelta(seconds=seconds or max(SECONDS, len(lines) / ORDERS_PER_SECOND))
    lead = timedelta(seconds=1 + len(lines) / LOADED_PER_SECOND)
    now = database_now()
    return ShopClock(first, now + lead, length, span / length, now - datetime.now(UTC))


def pay(lines: Sequence[OrderLine], clock: ShopClock, threads: Threads) -> None:
    """Be a customer: pay what is to be paid of these, each when its time has come."""
    times = ((clock.at(each.pays_at), each.order_id) for each in lines if each.pays_at)
    for at, order_id in sorted(times):
        if threads.over.wait(max((at - clock.now()).total_seconds(), 0)):
            return
        shop.pay(order_id)


# The run: watched, and disturbed twice


class Kill(NamedTuple):
    """A killed worker, and when, on the database's clock."""

    worker: int
    killed_at: datetime


class Watch:
    """Looks on until every message is gone; kills a worker and edits the schedule on the way."""

    def __init__(self, stage: Stage, workers: list[Child], clock: ShopClock, kill: bool) -> None:
        self.kill: Kill | None = None
        self._stage, self._workers, self._clock = stage, workers, clock
        self._wants_kill, self._is_edited = kill, False

    def look(self, customers: Threads) -> Look:
        """Do what is to be done now, and tell where things stand.

        Done is when no message is left: payments still to come would come too late.
        """
        customers.check()
        stats, states, share = queue.stats(cap=CAP), states_of_orders(), self._clock.share
        if share >= EDIT_FROM and not self._is_edited:
            edit_schedule()
            self._is_edited = True
            self._stage.console.step("edit", "the sales report comes every 3 s, not every 5 s")
        if self._wants_kill and share >= KILL_FROM:
            self._try_to_kill(1 if share >= KILL_ANY_FROM else 2)
        counts = (stats.scheduled, stats.due, stats.leased, states["paid"], states["closed"])
        text = "{:,} not yet due, {:,} due, {:,} leased; {:,} paid, {:,} closed".format(*counts)
        # Before anything is due, the clock is what moves.
        moved = counts if stats.due or stats.leased else share
        is_done = not any(counts[:3]) and bool(ticks(AFTER))
        return Look(is_done, moved, f"{text}, {stats.dead} dead")

    def _try_to_kill(self, wanted: int) -> None:
        # A message is in flight for milliseconds: a few looks a second would meet none.
        for _ in range(KILL_LOOKS):
            if self.kill is None:
                self._kill_one(wanted)
                time.sleep(ARRIVAL_SECONDS)

    def _kill_one(self, wanted: int) -> None:
        """Kill the worker with the most in flight, if any has as many as wanted."""
        in_flight = _in_flight()
        victim = max(self._workers, key=lambda each: in_flight[each.pid])
        if in_flight[victim.pid] < wanted:
            return
        # Suspended first, so that nothing in flight can end between the look and the kill; what
        # it had sent to the database by then gets the time to arrive.
        victim.send_signal(signal.SIGSTOP)
        time.sleep(ARRIVAL_SECONDS)
        if not (held := _in_flight()[victim.pid]):
            victim.send_signal(signal.SIGCONT)
            return
        victim.end()
        self.kill = Kill(victim.pid, database_now())
        successor = self._stage.start("worker", *WORKER, *SERVING)
        self._workers.append(successor)
        self._stage.console.step(
            "kill",
            f"worker {victim.pid} by SIGKILL with {held} messages in flight; "
            f"{successor.pid} takes its place",
        )


def _in_flight() -> Counter[int]:
    unfinished = Delivery.objects.filter(outcome=Delivery.Outcome.UNFINISHED)
    return Counter(dict(unfinished.values_list("worker").annotate(Count("pk"))))


# The sales report of every shop hour: a schedule that is edited on the way

BEFORE, AFTER = PeriodicSchedule(timedelta(seconds=5)), PeriodicSchedule(timedelta(seconds=3))


def create_schedule() -> None:
    """Have it every 5 s, as an operator does it: by a row, which the workers keep installed."""
    Schedule.objects.create(
        kind=sales_queue.kind, key_prefix="hourly", queue=sales_queue.name, type="periodic",
        expression="5s", payload={},
    )  # fmt: skip


def edit_schedule() -> None:
    """Have it every 3 s, as the admin saves its form."""
    schedule = Schedule.objects.get(kind=sales_queue.kind)
    schedule.expression = "3s"
    schedule.save()


def ticks(schedule: PeriodicSchedule) -> list[datetime]:
    """Return the planned times that were reported on, each as often as it was."""
    rows = SalesReport.objects.filter(key__contains=f"/{schedule.config_hash}/")
    return sorted(rows.values_list("planned_at", flat=True))


def _of_ticks() -> Iterator[Check]:
    old, new = ticks(BEFORE), ticks(AFTER)
    pairs = ((a, b, BEFORE) for a, b in pairwise(old)), ((a, b, AFTER) for a, b in pairwise(new))
    late = [f"{b:%H:%M:%S}" for a, b, schedule in chain(*pairs) if b - a > schedule.period]
    said = f"{len(old)} every 5 s, then {len(new)} every 3 s"
    yield none_of("ticks lost", late, said, and_also=bool(old or new))
    twice = [f"{at:%H:%M:%S}" for at, times in Counter(old + new).items() if times > 1]
    yield none_of("ticks twice", twice, "each planned time has one sales report")
    outdated = [f"{at:%H:%M:%S}" for at in old if new and at > new[0]]
    yield none_of("outdated ticks", outdated, "none of the old schedule after the edit")


# Afterwards

_ROWS: Final = (
    ("paid", "{paid:>7,}  in time, their messages dropped{late}"),
    ("closed", "{closed:>7,}  unpaid at their deadline"),
    ("dead", "{dead:>7,}  {reasons}"),
    ("delivered", "{delivered:>7,}  times, {again:,} of them after a timeout or the kill"),
    ("lateness", "p50 {late_p50_ms:,.0f} ms, p99 {late_p99_ms:,.0f} ms, from due to handler"),
    ("took", "{seconds:.0f} s"),
)


def report(
    lines: Sequence[OrderLine], offered: int, codes: Sequence[int], kill: Kill | None, **more: Any
) -> Outcome:
    """Count in the database, and compare with the file line by line."""
    letters = DeadLetter.objects.filter(kind=queue.kind)
    dead = set(letters.values_list("key", flat=True))
    stored = {order.order_id: order for order in Order.objects.all()}
    ends = {each.order_id: _end(stored.get(each.order_id), dead) for each in lines}
    counts = Counter(ends.values())
    tardy = [each for each in lines if each.pay_after and ends[each.order_id] != "paid"]
    late = sum(not each.is_paid_in_time for each in tardy)
    reasons = dict(letters.values_list("reason").annotate(Count("pk")))
    [deliveries] = fetch(_DELIVERIES)
    returns = kill and {"worker": kill.worker, **_returns(kill)}
    figures = {
        "orders": len(lines), "offered": offered,
        **{each: counts[each] for each in ("paid", "closed", "dead", "lost")},
        "late_payments": late, "missed_payments": len(tardy) - late, "dead_reasons": reasons,
        **deliveries, "again": deliveries["delivered"] - deliveries["first"],
        "kill": returns, **more,
    }  # fmt: skip
    texts = {
        "late": f"; {len(tardy):,} came too late and were refused" if tardy else "",
        "reasons": "; ".join(f"{count:,} {reason}" for reason, count in reasons.items()),
    }
    checks = [
        *_of_orders(lines, stored, ends),
        *_of_messages(figures, len(stored), len(dead)),
        *_of_ticks(),
        *_of_kill(returns),
        stopped(codes),
    ]
    return Outcome(figures, filled(_ROWS, figures | texts), checks)


def _end(order: Order | None, dead: set[str]) -> str:
    """Return how an order ended: open ones are lost unless they are dead letters."""
    if order is None:
        return "lost"
    if order.state == Order.State.OPEN:
        return "dead" if order.order_id in dead else "lost"
    return order.state


def _returns(kill: Kill) -> dict[str, Any]:
    """Return how many of the killed worker's deliveries came back, and how soon the last."""
    unfinished = Delivery.objects.filter(outcome=Delivery.Outcome.UNFINISHED)
    cut = set(unfinished.filter(worker=kill.worker).values_list("order_id", flat=True))
    back = Delivery.objects.filter(order_id__in=cut, started_at__gt=kill.killed_at)
    back = back.exclude(outcome=Delivery.Outcome.UNFINISHED)
    came_back = set(back.values_list("order_id", flat=True))
    last = back.aggregate(last=Max("started_at"))["last"] or kill.killed_at
    seconds = (last - kill.killed_at).total_seconds()
    return {"in_flight": len(cut), "came_back": len(came_back), "seconds": seconds}


def _of_orders(
    lines: Sequence[OrderLine], stored: dict[str, Order], ends: dict[str, str]
) -> Iterator[Check]:
    counts = Counter(ends.values())
    lost = [order_id for order_id, end in ends.items() if end == "lost"]
    said = " + ".join(f"{counts[end]:,} {end}" for end in ("paid", "closed", "dead"))
    yield none_of("lost", lost, f"{said} = {len(lines):,} orders in the file")
    closings = Counter(Closing.objects.values_list("order_id", flat=True))
    closed = {each.order_id for each in stored.values() if each.state == Order.State.CLOSED}
    twice = [order_id for order_id, times in closings.items() if times > 1]
    said = f"{closings.total():,} closings for {len(closed):,} closed orders"
    yield none_of("closed twice", twice, said, and_also=closings.keys() == closed)
    early = Order.objects.filter(closed_at__lt=F("close_at")).values_list("order_id", flat=True)
    yield none_of("closed early", list(early), "never before the deadline")
    paid = [each for each in lines if ends[each.order_id] == "paid" and not each.is_paid_in_time]
    wrongly = [each.order_id for each in paid]
    yield none_of("wrongly paid", wrongly, "only what the file pays before its deadline")
    altered = [
        each.order_id
        for each in lines
        if each.order_id in stored and _particulars(each) != _particulars(stored[each.order_id])
    ]
    yield none_of("altered", altered, "customer, amount, currency as in the file")


def _particulars(order: Order | OrderLine) -> tuple[object, ...]:
    return order.customer, order.amount, order.currency


def _of_messages(figures: dict[str, Any], stored: int, dead: int) -> Iterator[Check]:
    is_whole = figures["orders"] == stored == figures["offered"]
    said = f"{figures['offered']:,} messages for {stored:,} orders in the database"
    yield Check("offered", is_whole, said)
    said = f"{dead:,}, one for each of the {figures['dead']:,} orders left open"
    yield Check("dead letters", dead == figures["dead"], said)
    stats = queue.stats(cap=CAP)
    left = stats.scheduled + stats.due + stats.leased
    yield Check("queue empty", not left, f"{left:,} messages left in it")


def _of_kill(returns: dict[str, Any] | None) -> Iterator[Check]:
    if returns is not None:
        said = "{came_back} of {in_flight} in flight came back, the last after {seconds:.1f} s"
        passed = returns["came_back"] == returns["in_flight"]
        yield Check("killed worker", passed, said.format(**returns))
