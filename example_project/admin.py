"""The demo's orders, deliveries, closings and invoices in the admin."""

from __future__ import annotations

from django.contrib import admin

from example_project.models import Closing, Delivery, Invoice, Order, SalesReport


class RowsAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # not subscriptable at run time
    """Lists that look as those of the queues do, cards on a phone included."""

    class Media:
        css = {"all": ["delayed_queue/admin.css"]}


@admin.register(Order)
class OrderAdmin(RowsAdmin):
    list_display = [
        "order_id", "customer", "amount", "currency", "state", "close_at", "paid_at", "closed_at",
    ]  # fmt: skip
    list_filter = ["state", "currency"]
    search_fields = ["=order_id", "customer"]
    ordering = ["close_at"]


@admin.register(Delivery)
class DeliveryAdmin(RowsAdmin):
    list_display = [
        "order_id", "attempt", "delivery_type", "outcome", "worker", "due_at", "started_at",
    ]  # fmt: skip
    list_filter = ["outcome", "delivery_type", "attempt", "worker"]
    search_fields = ["=order_id"]
    ordering = ["-id"]


@admin.register(Closing)
class ClosingAdmin(RowsAdmin):
    list_display = ["order_id", "attempt", "worker", "closed_at"]
    search_fields = ["=order_id"]
    ordering = ["-id"]


@admin.register(Invoice)
class InvoiceAdmin(RowsAdmin):
    list_display = ["order_id", "text", "written_at"]
    search_fields = ["=order_id"]
    ordering = ["-id"]


@admin.register(SalesReport)
class SalesReportAdmin(RowsAdmin):
    list_display = ["planned_at", "closed", "amount", "worker", "written_at"]
    ordering = ["-id"]
