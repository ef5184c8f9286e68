"""The shop's side of the queue: orders offer messages, payments drop them and enqueue tasks."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from django.db import transaction
from django.db.models.functions import Now

from delayed_queue import DelayedQueue, OfferOutcome, ScheduledMessage
from example_project.models import Order
from example_project.tasks import write_invoice

QUEUE_NAME: Final = "close-unpaid-orders"
SALES_QUEUE_NAME: Final = "sales-reports"
VOUCHERS_QUEUE_NAME: Final = "vouchers"
# Also the tenant of the campaign's notifications.
CAMPAIGN_QUEUE_NAME: Final = "demo-spring"
queue: Final = DelayedQueue(QUEUE_NAME)
sales_queue: Final = DelayedQueue(SALES_QUEUE_NAME)
vouchers: Final = DelayedQueue(VOUCHERS_QUEUE_NAME)
campaign: Final = DelayedQueue(CAMPAIGN_QUEUE_NAME)
# The smallest payment for which a task writes an invoice.
INVOICED_FROM: Final = Decimal(200)
# The queue of the tasks: the demo counts its messages, too.
invoices_queue: Final = DelayedQueue(write_invoice.queue_name)


@transaction.atomic
def place(orders: Iterable[Order]) -> int:
    """Store the orders and offer a message for each, due at its deadline.

    One transaction: no order is without its message, no message without its order. Returns the
    number of orders.
    """
    placed = Order.objects.bulk_create(orders)
    outcomes = queue.offer_batch([_closing_message(order) for order in placed])
    return outcomes.count(OfferOutcome.CREATED)


def _closing_message(order: Order) -> ScheduledMessage:
    payload = {"amount": str(order.amount), "currency": order.currency}
    return ScheduledMessage(order.order_id, payload, order.close_at)


@transaction.atomic
def pay(order_id: str) -> bool:
    """Pay the order, drop its message, enqueue its invoice if it is large.

    One transaction, again. Returns False after the deadline.
    """
    payable = Order.objects.filter(order_id=order_id, state=Order.State.OPEN, close_at__gt=Now())
    if not payable.update(state=Order.State.PAID, paid_at=Now()):
        return False
    queue.drop_message(order_id)
    if Order.objects.filter(order_id=order_id, amount__gte=INVOICED_FROM).exists():
        write_invoice.enqueue(order_id)
    return True
