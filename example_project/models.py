"""The orders of a shop, and a record of each delivery and of each closing, to count by."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from delayed_queue.messages import MAX_KEY_LENGTH


class Order(models.Model):
    """An order of the shop: open until it is paid, or closed at its deadline.

    Its message in the queue is offered and dropped in the transactions that create and pay it.
    """

    class State(models.TextChoices):
        OPEN = "open"
        PAID = "paid"
        CLOSED = "closed"

    order_id = models.CharField(max_length=MAX_KEY_LENGTH, unique=True)
    customer = models.CharField(max_length=200)
    amount = models.DecimalField(max_digits=12, decimal_places=2)
    currency = models.CharField(max_length=3)
    state = models.CharField(max_length=6, choices=State, default=State.OPEN)
    created_at = models.DateTimeField()
    close_at = models.DateTimeField(help_text="When it is closed if it was not paid.")
    pays_at = models.DateTimeField(
        null=True, blank=True, help_text="When the simulated customer pays, if ever."
    )
    paid_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["pays_at"], name="order_pays_at")]

    def __str__(self) -> str:
        return self.order_id


class Delivery(models.Model):
    """One delivery of a "close if unpaid" message to a worker, written before it is acted on."""

    class Outcome(models.TextChoices):
        UNFINISHED = "unfinished"
        CLOSED = "closed"
        NOTHING_TO_DO = "nothing to do"
        TIMED_OUT = "timed out"
        REFUSED = "refused"

    order_id = models.CharField(max_length=MAX_KEY_LENGTH)
    attempt = models.IntegerField()
    delivery_type = models.CharField(max_length=10)
    due_at = models.DateTimeField()
    # The database's clock, by which messages fall due: lateness is then free of skew.
    started_at = models.DateTimeField(db_default=Now())
    worker = models.IntegerField(help_text="The process id of the worker.")
    outcome = models.CharField(max_length=13, choices=Outcome, default=Outcome.UNFINISHED)

    class Meta:
        verbose_name_plural = "deliveries"
        indexes = [models.Index(fields=["order_id", "attempt"], name="delivery_order_attempt")]

    def __str__(self) -> str:
        return f"{self.order_id} attempt {self.attempt}"


class Closing(models.Model):
    """One closing that took effect. Nothing makes it unique: two for an order are two rows."""

    order_id = models.CharField(max_length=MAX_KEY_LENGTH, db_index=True)
    attempt = models.IntegerField()
    worker = models.IntegerField()
    closed_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.order_id} at {self.closed_at:%H:%M:%S}"


class Invoice(models.Model):
    """One invoice that a task wrote. Nothing makes it unique: two for an order are two rows."""

    order_id = models.CharField(max_length=MAX_KEY_LENGTH, db_index=True)
    text = models.TextField()
    written_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.order_id}: {self.text}"


class SalesReport(models.Model):
    """One report of a planned time. Nothing makes it unique: two for a time are two rows."""

    key = models.CharField(max_length=MAX_KEY_LENGTH, db_index=True)
    planned_at = models.DateTimeField()
    closed = models.IntegerField(help_text="Orders closed so far.")
    amount = models.DecimalField(max_digits=16, decimal_places=2)
    worker = models.IntegerField()
    written_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.planned_at:%H:%M:%S}"


class ExpiredVoucher(models.Model):
    """One expiry that took effect. Nothing makes it unique: two of a voucher are two rows."""

    number = models.CharField(max_length=MAX_KEY_LENGTH, db_index=True)
    due_at = models.DateTimeField()
    expired_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"{self.number} at {self.expired_at:%H:%M:%S}"
