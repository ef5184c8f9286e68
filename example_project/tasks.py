"""Tasks of the shop: what is done after a payment, and not while the customer waits."""

from __future__ import annotations

from delayed_queue.tasks import policy, task
from example_project.models import Invoice, Order


@task(queue_name="invoices")
@policy(transactional=True)
def write_invoice(order_id: str) -> str:
    """Write the invoice of a paid order; with its result and removal it is one commit."""
    order = Order.objects.get(order_id=order_id)
    invoice = Invoice.objects.create(
        order_id=order_id, text=f"{order.amount} {order.currency} received of {order.customer}."
    )
    return invoice.text
