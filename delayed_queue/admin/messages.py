"""The messages: what is scheduled, due and leased."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from delayed_queue.admin import formats
from delayed_queue.admin.filters import (
    KIND,
    STATE,
    WORKER,
    KindFilter,
    LeaseFilter,
    StateFilter,
    WorkerFilter,
    chosen_kind,
)
from delayed_queue.admin.keyed import KeyedRowAdmin
from delayed_queue.admin.keysets import Keyset
from delayed_queue.admin.message_operations import MESSAGE_OPERATIONS, Seen
from delayed_queue.admin.overview import queues_view
from delayed_queue.admin.rows import MessageRow, RowState, state_of
from delayed_queue.models import Message

_NEXT = {
    RowState.SCHEDULED: "falls due",
    RowState.DUE: "fell due",
    RowState.LEASED: "lease ends",
    RowState.EXPIRED: "lease ended, so due again",
}
_NEWEST_FIRST = Keyset(descending=True)
_BY_SCHEDULE = Keyset("scheduled_at")
_BY_LEASE = Keyset("lease_id", is_text=True)
_BY_KIND = Keyset("kind", is_text=True)


@admin.register(Message)
class MessageAdmin(KeyedRowAdmin):
    """A queue in the order of delivery; all queues, newest first; leases by lease."""

    operations = MESSAGE_OPERATIONS
    list_filter = (KindFilter, StateFilter, LeaseFilter, WorkerFilter)
    list_display = (
        "key_column",
        "queue_column",
        "state_column",
        "when_column",
        "lease_column",
        "attempts_column",
        "age_column",
    )
    readonly_fields = (
        "state",
        "queue",
        "key_shown",
        "lease",
        "attempts_column",
        "times",
        "last_failure",
        "first_failure",
        "headers_shown",
        "payload_shown",
        "dead_letters",
    )

    def get_urls(self) -> Any:
        view = self.admin_site.admin_view(self.queues)
        return [path("queues/", view, name="delayed_queue_queues"), *super().get_urls()]

    def queues(self, request: HttpRequest) -> HttpResponse:
        return queues_view(self, request)

    def keyset_of(self, request: HttpRequest) -> Keyset:
        if request.GET.get("q"):
            return _BY_KIND
        if not {formats.LEASE, WORKER}.isdisjoint(request.GET):
            return _BY_LEASE
        if request.GET.get(STATE) in {RowState.LEASED, RowState.EXPIRED}:
            return _BY_LEASE
        return _NEWEST_FIRST if chosen_kind(request) is None else _BY_SCHEDULE

    def token_of(self, row: MessageRow) -> str:
        return Seen.of(row).token

    # Columns

    @admin.display(description="state")
    def state_column(self, row: MessageRow) -> SafeString:
        return formats.badge(state_of(row))

    @admin.display(description="when")
    def when_column(self, row: MessageRow) -> SafeString:
        return formats.waiting(row)

    @admin.display(description="lease")
    def lease_column(self, row: MessageRow) -> SafeString:
        return formats.short_lease(row.lease_id)

    @admin.display(description="age")
    def age_column(self, row: MessageRow) -> SafeString:
        return formats.moment(row.created_at, formats.human(row.read_at - row.created_at))

    # The detail page

    @admin.display(description="state")
    def state(self, row: MessageRow) -> SafeString:
        return format_html("{} {}", self.state_column(row), formats.waiting(row))

    @admin.display(description="lease id")
    def lease(self, row: MessageRow) -> SafeString:
        if row.lease_id is None:
            return format_html("{} not leased", formats.NOTHING)
        return format_html("<code>{}</code>", row.lease_id)

    @admin.display(description="timeline")
    def times(self, row: MessageRow) -> SafeString:
        is_moved = row.scheduled_at != row.scheduled_at_initially
        events = [
            (row.created_at, "offered"),
            (row.scheduled_at_initially if is_moved else None, "first scheduled for"),
            (row.due_at, "fell due for the last delivery"),
            (row.scheduled_at, _NEXT[state_of(row)]),
        ]
        return formats.timeline(events, row.read_at)

    @admin.display(description="dead letters")
    def dead_letters(self, row: MessageRow) -> SafeString:
        name, site = "admin:delayed_queue_deadletter_changelist", self.admin_site.name
        url = reverse(name, current_app=site)
        query = urlencode({"q": row.key, KIND: row.kind})
        return format_html('<a href="{}?{}">Dead letters of this key</a>', url, query)
