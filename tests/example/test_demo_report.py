"""The demo's checks: each passes on a good run, and fails on the one thing that it is about."""

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
    """A run over LINES as it should be: one paid, two closed, one dead."""
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


def test_time_is_seen_to_move_until_the_end_and_not_after():
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


def test_an_order_missing_from_the_database_is_lost(good_run):
    Order.objects.filter(order_id="PAID").delete()
    assert failures() == ["lost 1", "offered", "invoices wrong 1"]


def test_an_order_left_open_without_a_dead_letter_is_lost(good_run):
    DeadLetter.objects.all().delete()
    assert "lost 1" in failures()


def test_an_order_closed_twice_is_seen_in_the_record_of_closings(good_run):
    Closing.objects.create(order_id="CLOSED", attempt=2, worker=WORKER)
    assert failures() == ["closed twice 1"]


def test_a_closed_order_without_its_closing_fails_the_same_check(good_run):
    Closing.objects.filter(order_id="CLOSED").delete()
    assert failures() == ["closed twice 0"]


def test_an_order_closed_before_its_deadline_is_seen(good_run):
    Order.objects.filter(order_id="CLOSED").update(closed_at=timezone.now() - MINUTE)
    assert failures() == ["closed early 1"]


@pytest.mark.parametrize("order_id", ["CLOSED", "LATE"])
def test_an_order_paid_that_the_file_does_not_pay_in_time_is_seen(good_run, order_id):
    Order.objects.filter(order_id=order_id).update(state="paid", closed_at=None)
    Closing.objects.filter(order_id=order_id).delete()
    assert failures() == ["wrongly paid 1", "invoices wrong 1"]


@pytest.mark.parametrize("change", [{"customer": "Bob"}, {"amount": 201}, {"currency": "USD"}])
def test_an_order_that_differs_from_the_file_is_seen(good_run, change):
    Order.objects.filter(order_id="PAID").update(**change)
    assert failures() == ["altered 1"]


def test_a_message_left_in_the_queue_is_seen(good_run):
    shop.queue.offer_or_update("PAID", {})
    assert failures() == ["queue empty"]


def test_an_order_too_many_and_an_offer_too_few_are_seen(good_run):
    assert failures(offered=3) == ["offered"]
    Order.objects.create(
        order_id="EXTRA", customer="", amount=1, currency="EUR", state="paid",
        created_at=CREATED, close_at=CREATED,
    )  # fmt: skip
    assert failures() == ["wrongly paid 1", "offered"]


def test_a_dead_letter_of_an_order_that_is_not_open_is_seen(good_run):
    Order.objects.filter(order_id="DEAD").update(state="closed", closed_at=timezone.now())
    Closing.objects.create(order_id="DEAD", attempt=1, worker=WORKER)
    assert failures() == ["dead letters"]


@pytest.mark.parametrize("codes", [(0, 1), (0, -9), ()])
def test_a_process_that_did_not_stop_in_order_is_seen(codes):
    assert stopped((0, 0)).passed
    assert not stopped(codes).passed


def test_what_the_killed_worker_had_begun_must_come_back(good_run):
    deliver("CLOSED", 1, WORKER, "unfinished")
    deliver("LATE", 1, WORKER, "closed")
    kill = Kill(WORKER, database_now())
    assert failures(kill=kill) == ["killed worker"]
    deliver("CLOSED", 2, 4712, "unfinished")
    assert failures(kill=kill) == ["killed worker"]
    deliver("CLOSED", 3, 4713, "closed")
    assert failures(kill=kill) == []


def test_a_kill_of_a_worker_that_had_begun_nothing_shows_nothing(good_run):
    assert failures(kill=Kill(WORKER, database_now())) == ["killed worker"]


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
    orders = orders_of(LINES, 7.0)
    first, paid = orders[0].created_at, orders[0].pays_at
    assert first > database_now()
    assert {each.close_at - first for each in orders} == {timedelta(seconds=7)}
    assert paid is not None
    assert paid - first == timedelta(seconds=1.4)


def test_a_large_payment_without_its_invoice_or_with_two_is_seen(good_run):
    Invoice.objects.create(order_id="PAID", text="again")
    assert failures() == ["invoices wrong 0", "invoices twice 1"]
    Invoice.objects.all().delete()
    assert failures() == ["invoices wrong 1"]


@pytest.mark.parametrize("second", [10, 21])
def test_a_planned_tick_that_did_not_run_is_seen(good_run, second):
    SalesReport.objects.filter(planned_at=at_second(second)).delete()
    assert failures() == ["ticks lost 1"]


def test_a_tick_that_ran_twice_is_seen(good_run):
    tick(BEFORE, 10)
    assert failures() == ["ticks twice 1"]


def test_a_tick_of_the_old_schedule_after_the_edit_is_seen(good_run):
    tick(BEFORE, 20)
    assert failures() == ["outdated ticks 1"]
