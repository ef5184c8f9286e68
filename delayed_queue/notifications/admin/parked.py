"""The page of the broker's messages that are no valid requests, with their errors."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import F, Func, IntegerField, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from delayed_queue.admin import formats
from delayed_queue.notifications.admin.base import APP, ShownOnly, may
from delayed_queue.notifications.models import ParkedRequest
from delayed_queue.notifications.parking import retry_parked

MAX_SHOWN = 20_000


@admin.register(ParkedRequest)
class ParkedRequestAdmin(ShownOnly):
    """The latest first."""

    list_heading = "Parked requests"
    list_display = ("reason", "origin", "tenant", "times", "size_column", "parked_column")
    ordering = ("-parked_at", "-id")
    actions = ("retry_selected",)
    readonly_fields = (
        "reason", "errors_shown", "origin", "tenant", "times", "message_id", "content_type",
        "parked_column", "body_shown",
    )  # fmt: skip

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "delete_parkedrequest")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return may(request, "retry_parkedrequest")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        size = Func(F("body"), function="octet_length", output_field=IntegerField())
        rows: QuerySet[Any] = super().get_queryset(request).annotate(size=size, read_at=Now())
        return rows.defer("body")

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            found.shows_body = may(request, "view_parked_body")
        return found

    @admin.display(description="size")
    def size_column(self, row: Any) -> str:
        return f"{row.size:,} bytes"

    @admin.display(description="last parked")
    def parked_column(self, row: Any) -> SafeString:
        return formats.moment(row.parked_at, formats.relative(row.parked_at, row.read_at))

    @admin.display(description="errors")
    def errors_shown(self, row: ParkedRequest) -> SafeString:
        items = ((each["path"] or "the message", each["message"]) for each in row.errors)
        lines = format_html_join("", "<li><code>{}</code> {}</li>", items)
        return format_html('<ul class="nt-errors">{}</ul>', lines)

    @admin.display(description="body")
    def body_shown(self, row: Any) -> SafeString:
        if not row.shows_body:
            return formats.quiet(f"Hidden: needs the permission {APP}.view_parked_body.")
        text = bytes(row.body[:MAX_SHOWN]).decode("utf-8", "backslashreplace")
        return formats.block(text.replace("\x00", "\\x00"))

    @transaction.atomic
    def _retry(self, request: HttpRequest, pk: int) -> bool:
        if not retry_parked(pk):
            return False
        user: Any = request.user
        rows = [ParkedRequest(pk=pk)]
        message = f"accepted parked request {pk}"
        LogEntry.objects.log_actions(user.pk, rows, CHANGE, message, single_object=True)
        return True

    @admin.action(description="Put through the intake again", permissions=["retry"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Accept those that are valid by now, for a template that was missing, say."""
        if not self.has_retry_permission(request):
            raise PermissionDenied
        chosen = list(queryset.values_list("pk", flat=True))
        accepted = sum(self._retry(request, pk) for pk in chosen)
        self.message_user(request, f"Accepted: {accepted}.", messages.SUCCESS)
        if left := len(chosen) - accepted:
            text = f"Still refused: {left}."
            self.message_user(request, text, messages.WARNING)
