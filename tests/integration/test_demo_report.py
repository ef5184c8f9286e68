"""The demo's checks: each passes on a good run, and fails on the one thing that it is about."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.utils import timezone

from delayed_queue.models import DeadLetter
from example_project import shop
from example_project.demo.database import database_now
from example_project.demo.orders import figures
from example_project.demo.orders.checks import check
from example_project.demo.orders.killing import Kill, returns_after
from example_project.demo.orders.report import Facts, make_report
from example_project.demo.orders.sales import SalesSchedule, Span
from example_project.models import Closing, Delivery, Order, SalesReport
from example_project.orders import OrderLine

pytestmark = pytest.mark.django_db

CREATED = datetime(2025, 11, 28, 18, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WORKER = 4711


def line(order_id, pay_after=None):
    return OrderLine(1, order_id, "Ann", Decimal("1.00"), "EUR", CREATED, 5 * MINUTE, pay_after)


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
            order_id=order_id, customer="Ann", amount="1.00", currency="EUR", state=state,
            created_at=now, close_at=now, closed_at=closed_at,
        )  # fmt: skip
        if closed_at:
            Closing.objects.create(order_id=order_id, attempt=1, worker=WORKER)
    sales = schedule()
    for span, seconds in ((sales.before, (5, 10)), (sales.after, (15, 18))):
        for second in seconds:
            tick(span, second)
    DeadLetter.objects.create(
        kind=shop.queue.kind, key="DEAD", payload=b"{}", attempts=1, reason="no account",
        scheduled_at_initially=0, created_at=0, died_at=0,
    )  # fmt: skip


def schedule():
    """A schedule seen from :01 to :12 every 5 s, and from :13 to :19 every 3 s."""
    return SalesSchedule(
        Span(timedelta(seconds=5), at_second(1), at_second(12)),
        Span(timedelta(seconds=3), at_second(13), at_second(19)),
    )


def at_second(second):
    return CREATED + timedelta(seconds=second)


def tick(span, second):
    SalesReport.objects.create(
        key=f"hourly/{span.config_hash}/{second}", planned_at=at_second(second), closed=0, amount=0,
        worker=WORKER,
    )  # fmt: skip


def report_on(*, kill=None, exit_codes=(0, 0), offered=4):
    facts = Facts(
        input="orders.jsonl",
        rejects=0,
        rejects_path=None,
        offered=offered,
        speed=1.0,
        took=MINUTE,
        exit_codes=exit_codes,
        wants_kill=kill is not None,
        kill=kill,
        returns=None if kill is None else returns_after(kill),
        sales=schedule(),
    )
    return make_report(facts, figures.count(), LINES)


def failures(**facts):
    return [each.name for each in check(report_on(**facts)) if not each.passed]


def deliver(order_id, attempt, worker, outcome):
    now = database_now()
    return Delivery.objects.create(
        order_id=order_id, attempt=attempt, worker=worker, outcome=outcome, due_at=now,
        started_at=now, delivery_type="first" if attempt == 1 else "redelivery",
    )  # fmt: skip


def test_a_good_run_passes_every_check(good_run):
    report = report_on()
    assert all(each.passed for each in check(report))
    found = report.comparison
    assert (found.orders, found.paid, found.closed, found.dead) == (4, 1, 2, 1)
    assert (found.late_payments, found.missed_payments) == (1, 0)
    assert report.slowest_closing == timedelta(seconds=1)
    assert report.dead_reasons == {"no account": 1}


def test_an_order_missing_from_the_database_is_lost(good_run):
    Order.objects.filter(order_id="PAID").delete()
    assert failures() == ["lost 1", "offered"]


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
    assert failures() == ["wrongly paid 1"]


@pytest.mark.parametrize("change", [{"customer": "Bob"}, {"amount": "1.01"}, {"currency": "USD"}])
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
    assert failures() == ["offered"]


def test_a_dead_letter_of_an_order_that_is_not_open_is_seen(good_run):
    Order.objects.filter(order_id="DEAD").update(state="closed", closed_at=timezone.now())
    Closing.objects.create(order_id="DEAD", attempt=1, worker=WORKER)
    assert failures() == ["dead letters"]


@pytest.mark.parametrize("exit_codes", [(0, 1), (-9,), ()])
def test_a_worker_that_did_not_stop_in_order_is_seen(good_run, exit_codes):
    assert failures(exit_codes=exit_codes) == ["workers stopped"]


def test_what_the_killed_worker_had_begun_must_come_back(good_run):
    deliver("CLOSED", 1, WORKER, "unfinished")
    deliver("LATE", 1, WORKER, "closed")
    kill = Kill(WORKER, database_now(), MINUTE, 1)
    assert failures(kill=kill) == ["killed worker"]
    deliver("CLOSED", 2, 4712, "unfinished")
    assert failures(kill=kill) == ["killed worker"]
    deliver("CLOSED", 3, 4713, "closed")
    assert failures(kill=kill) == []
    assert report_on(kill=kill).facts.returns.seconds >= 0


def test_retries_and_redeliveries_are_told_apart_by_what_came_before(good_run):
    deliver("A", 1, WORKER, "timed out")
    deliver("A", 2, WORKER, "closed")  # a retry
    deliver("B", 1, WORKER, "unfinished")
    deliver("B", 2, WORKER, "closed")  # after a kill in the middle
    deliver("C", 2, WORKER, "closed")  # after a kill before its start
    deliver("D", 1, WORKER, "closed")
    deliver("D", 2, WORKER, "nothing to do")  # after a kill before its acknowledgement
    counted = figures.count()
    assert counted.delivered == 7
    assert (counted.first, counted.retried, counted.redelivered) == (3, 1, 3)


def test_dropped_are_the_paid_orders_that_no_worker_saw(good_run):
    assert figures.count().dropped == 1
    deliver("PAID", 1, WORKER, "nothing to do")
    assert figures.count().dropped == 0


def test_lateness_is_from_due_to_started(good_run):
    for milliseconds in range(1, 101):
        delivery = deliver(f"L-{milliseconds}", 1, WORKER, "closed")
        due_at = delivery.started_at - timedelta(milliseconds=milliseconds)
        Delivery.objects.filter(pk=delivery.pk).update(due_at=due_at)
    counted = figures.count()
    assert counted.late_p50 == pytest.approx(50)
    assert counted.late_p99 == pytest.approx(99)
    assert counted.late_max == pytest.approx(100)


@pytest.mark.parametrize("second", [5, 10, 15, 18])
def test_a_planned_tick_that_did_not_run_is_seen(good_run, second):
    SalesReport.objects.filter(planned_at=at_second(second)).delete()
    assert failures() == ["ticks lost 1"]


def test_a_tick_that_ran_twice_is_seen(good_run):
    tick(schedule().before, 10)
    assert failures() == ["ticks twice 1"]


def test_a_tick_of_the_old_schedule_after_the_edit_is_seen(good_run):
    tick(schedule().before, 20)
    assert failures() == ["outdated ticks 1"]


def test_a_tick_while_the_edit_takes_hold_may_run_or_not(good_run):
    tick(schedule().after, 12)
    assert failures() == []
