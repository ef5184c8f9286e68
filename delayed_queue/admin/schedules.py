"""The schedules: what runs next, and those that operators make."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import connections, router
from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from delayed_queue.admin import formats
from delayed_queue.admin.keysets import Keyset
from delayed_queue.admin.records import WithForm
from delayed_queue.admin.rows import DatabaseClock, find
from delayed_queue.admin.schedule_forms import ScheduleForm
from delayed_queue.admin.schedule_operations import SCHEDULE_OPERATIONS, take_back
from delayed_queue.admin.schedule_rules import next_run, preview
from delayed_queue.handlers import registry
from delayed_queue.models import Schedule

_TYPES = ("cron", "daily", "periodic", "other")
_MADE = ("type", "expression", "timezone", "gap", "fold", "missed", "missed_cap")
_SHOWN = ("declared_column", "installed_column", "runs")
_ORDER = Keyset()


@admin.register(Schedule)
class ScheduleAdmin(WithForm):
    """In the order they were made; operators' own can be edited, those of code only paused."""

    form = ScheduleForm
    operations = SCHEDULE_OPERATIONS
    list_filter = ()
    list_display = (
        "key_column",
        "queue_column",
        "rule_column",
        "zone_column",
        "enabled_column",
        "next_column",
        "installed_column",
        "declared_column",
    )
    search_help_text = "The whole key prefix, in every queue."

    def keyset_of(self, request: HttpRequest) -> Keyset:
        return _ORDER

    def token_of(self, row: Any) -> str:
        return str(row.id)

    # Reading

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return those with a definition; a program may have ticks for each of its users."""
        found = admin.ModelAdmin.get_queryset(self, request).filter(type__in=_TYPES)
        annotated: QuerySet[Any] = found.annotate(read_at=DatabaseClock(), key=F("key_prefix"))
        return annotated

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the row; locked where it is about to be changed, or a pause could be undone."""
        queryset = self.get_queryset(request)
        locked = queryset.select_for_update()
        if request.method == "POST" and connections[locked.db].in_atomic_block:
            queryset = locked
        return find(queryset, object_id)

    # Permissions

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("delayed_queue.add_schedule"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_own = obj is None or not obj.declared_in
        return is_own and bool(request.user.has_perm("delayed_queue.change_schedule"))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_own = obj is None or not obj.declared_in
        return is_own and bool(request.user.has_perm("delayed_queue.delete_schedule"))

    def _may_pause(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("delayed_queue.pause_schedule"))

    # Columns

    @admin.display(description="key prefix")
    def key_column(self, row: Schedule) -> SafeString:
        return formats.key_label(row.key_prefix)

    @admin.display(description="queue")
    def queue_column(self, row: Schedule) -> SafeString:
        return formats.kind_label(row.kind)

    @admin.display(description="runs")
    def rule_column(self, row: Schedule) -> SafeString:
        return format_html('{} <span class="dq-at">{}</span>', row.type, row.expression)

    @admin.display(description="zone")
    def zone_column(self, row: Schedule) -> str | SafeString:
        return row.timezone or (formats.NOTHING if row.type == "periodic" else "default")

    @admin.display(description="enabled")
    def enabled_column(self, row: Schedule) -> SafeString:
        if row.is_enabled:
            return format_html('<span class="dq-state dq-due">{}</span>', "enabled")
        return format_html('<span class="dq-state dq-scheduled">{}</span>', "paused")

    @admin.display(description="next run")
    def next_column(self, row: Any) -> SafeString:
        return next_run(row, row.read_at)

    @admin.display(description="last installed")
    def installed_column(self, row: Any) -> SafeString:
        if row.installed_at is None:
            return formats.NOTHING
        return formats.moment(row.installed_at, formats.relative(row.installed_at, row.read_at))

    @admin.display(description="declared in")
    def declared_column(self, row: Schedule) -> str:
        return row.declared_in or "admin"

    # The form and the detail page

    @admin.display(description="next runs")
    def runs(self, row: Any) -> SafeString:
        return preview(row, row.read_at)

    @admin.display(description="payload")
    def payload_shown(self, row: Schedule) -> SafeString:
        if row.declared_in:
            return formats.quiet("Made by the code that declares the schedule.")
        return formats.block(json.dumps(row.payload, indent=2, ensure_ascii=False))

    @admin.display(description="payload")
    def payload_hidden(self, row: Schedule) -> SafeString:
        return formats.quiet("Hidden: needs the permission delayed_queue.view_payload.")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ("queue", "key_prefix", *_MADE, "payload", "is_enabled")
        return ("queue", "key_prefix", "codec", *_MADE, self._payload_field(request, obj),
                "is_enabled", *_SHOWN)  # fmt: skip

    def _payload_field(self, request: HttpRequest, row: Schedule) -> str:
        if not row.declared_in and not self.may_view_payload(request):
            return "payload_hidden"
        return "payload" if self.has_change_permission(request, row) else "payload_shown"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ()
        # Another queue or prefix would be another schedule, and the ticks of this one stay.
        fixed = ("queue", "key_prefix", "codec", "payload_hidden", "payload_shown", *_SHOWN)
        return fixed if self._may_pause(request) else (*fixed, "is_enabled")

    # Changing

    def save_model(self, request: HttpRequest, obj: Any, form: forms.Form, change: bool) -> None:
        """Save, and take the pending ticks back at once where that pauses it."""
        super().save_model(request, obj, form, change)
        if change and "is_enabled" in form.changed_data and not obj.is_enabled:
            take_back(obj, router.db_for_write(Schedule, instance=obj))
        if lack := registry.lack_of(obj.queue, obj.kind):
            text = f"{lack} What the schedule offers waits until one takes it."
            self.message_user(request, text, messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete, with the pending ticks: nobody would take them back without the row."""
        take_back(obj, router.db_for_write(Schedule, instance=obj))
        super().delete_model(request, obj)
