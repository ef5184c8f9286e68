"""Handlers of the shop's queues."""

from __future__ import annotations

import os

from django.db import transaction
from django.db.models import Count, Sum
from django.db.models.functions import Now

from delayed_queue import Envelope, Reject, RetryPolicy, handler
from example_project.gateway import GatewayRefusal, GatewayTimeout, void_payment
from example_project.models import Closing, Delivery, ExpiredVoucher, Order, SalesReport
from example_project.shop import (
    CAMPAIGN_QUEUE_NAME,
    QUEUE_NAME,
    SALES_QUEUE_NAME,
    VOUCHERS_QUEUE_NAME,
)


@handler(QUEUE_NAME, retry=RetryPolicy.ladder("1s 2s"))
def close_if_unpaid(envelope: Envelope) -> None:
    """Close the order unless it was paid; may run twice for an order and closes it once."""
    delivery = _recorded(envelope)
    order = Order.objects.get(order_id=envelope.key)
    if order.state != Order.State.OPEN:
        _finish(delivery, Delivery.Outcome.NOTHING_TO_DO)
        return
    try:
        void_payment(order.order_id, order.currency, envelope.attempt)
    except GatewayTimeout:
        _finish(delivery, Delivery.Outcome.TIMED_OUT)
        raise
    except GatewayRefusal as refusal:
        _finish(delivery, Delivery.Outcome.REFUSED)
        raise Reject(str(refusal)) from refusal
    _close(delivery)


def _recorded(envelope: Envelope) -> Delivery:
    """Write down the delivery, committed by itself: the record outlives a killed worker."""
    return Delivery.objects.create(
        order_id=envelope.key,
        attempt=envelope.attempt,
        delivery_type=envelope.delivery_type,
        due_at=envelope.due_at,
        worker=os.getpid(),
    )


@transaction.atomic
def _close(delivery: Delivery) -> None:
    """Close the order if it is still open, and record the closing with it."""
    still_open = Order.objects.filter(order_id=delivery.order_id, state=Order.State.OPEN)
    if not still_open.update(state=Order.State.CLOSED, closed_at=Now()):
        _finish(delivery, Delivery.Outcome.NOTHING_TO_DO)
        return
    Closing.objects.create(
        order_id=delivery.order_id, attempt=delivery.attempt, worker=delivery.worker
    )
    _finish(delivery, Delivery.Outcome.CLOSED)


def _finish(delivery: Delivery, outcome: Delivery.Outcome) -> None:
    Delivery.objects.filter(pk=delivery.pk).update(outcome=outcome)


@handler(SALES_QUEUE_NAME)
def report_sales(envelope: Envelope) -> None:
    """Write the report of the planned time, unless a delivery before this one has."""
    if SalesReport.objects.filter(key=envelope.key).exists():
        return
    closed = Order.objects.filter(state=Order.State.CLOSED)
    totals = closed.aggregate(orders=Count("pk"), amount=Sum("amount"))
    SalesReport.objects.create(
        key=envelope.key, planned_at=envelope.scheduled_at, closed=totals["orders"],
        amount=totals["amount"] or 0, worker=os.getpid(),
    )  # fmt: skip


@handler(VOUCHERS_QUEUE_NAME)
def expire_voucher(envelope: Envelope) -> None:
    """Expire the voucher, unless a delivery before this one has."""
    if envelope.payload["shop"] == "closed-shop":
        raise Reject("the shop is gone")
    if not ExpiredVoucher.objects.filter(number=envelope.key).exists():
        ExpiredVoucher.objects.create(number=envelope.key, due_at=envelope.due_at)


@handler(CAMPAIGN_QUEUE_NAME, transactional=True)
def store_notification(envelope: Envelope) -> None:
    """Store the record as a notification; the key makes a second delivery no second one."""
    # Imported late: web processes load these handlers, too.
    from delayed_queue.notifications.intake import Refused, accept

    request = {"dedupeKey": envelope.key, **envelope.payload}
    [answer] = accept([request], tenant=envelope.queue)
    if isinstance(answer, Refused):
        raise Reject("; ".join(f"{each.path}: {each.message}" for each in answer.errors))
