"""The checks of the orders' act: each passes on a good run, and fails on its fault."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from delayed_queue.models import DeadLetter
from delayed_queue.tasks.testing import drain
from example_project import shop
from example_project.demo.orders import AFTER, BEFORE, Kill, orders_of, report, state_of
from example_project.demo.report import stopped
from example_project.demo.stage import database_now
from example_project.models import Closing, Delivery, Invoice, Order, SalesReport
from example_project.orders import OrderLine
from example_project.tasks import write_invoice

pytestmark = pytest.mark.django_db

CREATED = datetime(2025, 11, 28, 18, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WORKER = 4711
AMOUNT = shop.INVOICED_FROM


def line(order_id, pay_after=None):
    return OrderLine(1, order_id, "Ann", AMOUNT, "EUR", CREATED, 5 * MINUTE, pay_after)


LINES = [line("PAID", MINUTE), line("CLOSED"), line("LATE", 6 * MINUTE), line("DEAD")]


@pytest.fixture
def good_run():
    """A run over LINES without a fault: one paid, two closed, one dead."""
    now = timezone.now()
    for order_id, state in (
        ("PAID", "paid"),
        ("CLOSED", "closed"),
        ("LATE", "closed"),
        ("DEAD", "open"),
    ):
        closed_at = now + timedelta(seconds=1) if state == "closed" else None
        Order.objects.create(
            order_id=order_id, customer="Ann", amount=AMOUNT, currency="EUR", state=state,
            created_at=now, close_at=now, closed_at=closed_at,
        )  # fmt: skip
        if closed_at:
            Closing.objects.create(order_id=order_id, attempt=1, worker=WORKER)
    write_invoice.enqueue("PAID")
    drain()
    for schedule, seconds in ((BEFORE, (5, 10, 15)), (AFTER, (18, 21, 24))):
        for second in seconds:
            tick(schedule, second)
    DeadLetter.objects.create(
        kind=shop.queue.kind, key="DEAD", payload=b"{}", attempts=1, reason="no account",
        scheduled_at_initially=0, created_at=0, died_at=0,
    )  # fmt: skip


def at_second(second):
    return CREATED + timedelta(seconds=second)


def tick(schedule, second):
    SalesReport.objects.create(
        key=f"hourly/{schedule.config_hash}/{second}", planned_at=at_second(second), closed=0,
        amount=0, worker=WORKER,
    )  # fmt: skip


def report_on(*, kill=None, offered=4):
    return report(LINES, offered, kill)


def failures(**facts):
    return [each.name for each in report_on(**facts).failed]


def deliver(order_id, attempt, worker, outcome):
    now = database_now()
    return Delivery.objects.create(
        order_id=order_id, attempt=attempt, worker=worker, outcome=outcome, due_at=now,
        started_at=now, delivery_type="first" if attempt == 1 else "redelivery",
    )  # fmt: skip


def test_the_progress_changes_with_the_time_until_the_last_deadline():
    def said(second):
        return state_of(timezone.now() + MINUTE - timedelta(seconds=second))

    assert said(-100) != said(-90) != said(10) != said(20)
    assert said(70) == said(80)


def test_a_good_run_passes_every_check(good_run):
    found = report_on()
    assert found.failed == []
    figures = {each.name: each.figure for each in found.rows}
    names = ("orders", "paid", "refused", "closed", "dead")
    assert [figures[each] for each in names] == [4, 1, 1, 2, 1]
    assert "1 no account" in [each.text for each in found.rows]


def close(order_id):
    Order.objects.filter(order_id=order_id).update(state="closed", closed_at=timezone.now())
    Closing.objects.create(order_id=order_id, attempt=1, worker=WORKER)


def pay(order_id):
    Order.objects.filter(order_id=order_id).update(state="paid", closed_at=None)
    Closing.objects.filter(order_id=order_id).delete()


def add_a_paid_order():
    Order.objects.create(
        order_id="EXTRA", customer="", amount=1, currency="EUR", state="paid",
        created_at=CREATED, close_at=CREATED,
    )  # fmt: skip


def orders(order_id, **change):
    return lambda: Order.objects.filter(order_id=order_id).update(**change)


def lose_a_tick(second):
    return lambda: SalesReport.objects.filter(planned_at=at_second(second)).delete()


LOST = ["no order lost", "each order offered", "each invoice written"]
FAULTS = {
    "missing": (lambda: Order.objects.filter(order_id="PAID").delete(), LOST),
    "closed twice": (
        lambda: Closing.objects.create(order_id="LATE", attempt=2, worker=WORKER),
        ["none closed twice"],
    ),
    "no closing": (
        lambda: Closing.objects.filter(order_id="CLOSED").delete(),
        ["none closed twice"],
    ),
    "closed early": (
        lambda: orders("CLOSED", closed_at=timezone.now() - MINUTE)(),
        ["none closed early"],
    ),
    "never paid": (lambda: pay("CLOSED"), ["none paid too late", "each invoice written"]),
    "paid late": (lambda: pay("LATE"), ["none paid too late", "each invoice written"]),
    "customer": (orders("PAID", customer="Bob"), ["orders unaltered"]),
    "amount": (orders("PAID", amount=201), ["orders unaltered"]),
    "currency": (orders("PAID", currency="USD"), ["orders unaltered"]),
    "message left": (lambda: shop.queue.offer_or_update("PAID", {}), ["queue empty"]),
    "an order too many": (add_a_paid_order, ["none paid too late", "each order offered"]),
    "letter of a closed order": (lambda: close("DEAD"), ["dead letters"]),
    "two invoices": (
        lambda: Invoice.objects.create(order_id="PAID", text="again"),
        ["each invoice written", "no invoice twice"],
    ),
    "no invoice": (lambda: Invoice.objects.all().delete(), ["each invoice written"]),
    "old tick lost": (lose_a_tick(10), ["no tick lost"]),
    "new tick lost": (lose_a_tick(21), ["no tick lost"]),
    "tick twice": (lambda: tick(BEFORE, 10), ["no tick twice"]),
    "outdated tick": (lambda: tick(BEFORE, 20), ["no outdated tick"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fails_its_check(good_run, fault):
    change, names = FAULTS[fault]
    change()
    assert failures() == names


def test_an_offer_too_few_is_seen(good_run):
    assert failures(offered=3) == ["each order offered"]


@pytest.mark.parametrize("codes", [(0, 1), (0, -9), ()])
def test_a_process_that_did_not_stop_in_order_is_seen(codes):
    assert stopped((0, 0)).passed
    assert not stopped(codes).passed


def test_messages_in_flight_of_the_killed_worker_must_be_redelivered(good_run):
    kill = Kill(WORKER, database_now())
    assert failures(kill=kill) == ["killed worker"]  # it had nothing in flight
    deliver("CLOSED", 1, WORKER, "unfinished")
    deliver("LATE", 1, WORKER, "closed")
    kill = Kill(WORKER, database_now())
    assert failures(kill=kill) == ["killed worker"]
    deliver("CLOSED", 2, 4712, "unfinished")
    assert failures(kill=kill) == ["killed worker"]
    deliver("CLOSED", 3, 4713, "closed")
    assert failures(kill=kill) == []


def test_lateness_is_from_due_to_started(good_run):
    for milliseconds in range(1, 101):
        delivery = deliver(f"L-{milliseconds}", 1, WORKER, "closed")
        due_at = delivery.started_at - timedelta(milliseconds=milliseconds)
        Delivery.objects.filter(pk=delivery.pk).update(due_at=due_at)
    figures = {each.name: each.figure for each in report_on().rows}
    assert figures["delivered"] == 100
    assert figures["late p50 ms"] == pytest.approx(50)
    assert figures["late p99 ms"] == pytest.approx(99)


def test_the_times_of_the_file_are_those_of_the_run_in_whole_milliseconds():
    found = orders_of(LINES, 7.0)
    first, paid = found[0].created_at, found[0].pays_at
    assert first > database_now()
    assert {each.close_at - first for each in found} == {timedelta(seconds=7)}
    assert paid is not None
    assert paid - first == timedelta(seconds=1.4)
