"""The pages of messages, and of the overview of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, cast

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import filters, formats, searching
from delayed_queue.admin.base import KeyedRowAdmin, QueueModelAdmin
from delayed_queue.admin.formats import column
from delayed_queue.admin.history import history_view
from delayed_queue.admin.lists import NEWEST_FIRST, Keyset
from delayed_queue.admin.message_operations import MESSAGE_OPERATIONS, Seen
from delayed_queue.admin.overview import queues_view
from delayed_queue.admin.rows import RowState, state_of
from delayed_queue.admin.workers import holder_of, names_of_holders
from delayed_queue.models import Message, QueueOverview

_NEXT: Final = {
    RowState.SCHEDULED: _("falls due"),
    RowState.DUE: _("fell due"),
    RowState.LEASED: _("lease ends"),
    RowState.EXPIRED: _("lease ended, so due again"),
}
_BY_SCHEDULE: Final = Keyset("scheduled_at", is_partial=True)
_BY_KIND: Final = Keyset("kind", is_text=True)


@admin.register(Message)
class MessageAdmin(KeyedRowAdmin):
    """A queue in the order of delivery; all queues, newest first; leases by lease."""

    operations = MESSAGE_OPERATIONS
    terms: ClassVar = {
        "": searching.PREFIX, "key": searching.whole_key(_BY_KIND),
        "group": searching.of_group(
            _BY_SCHEDULE, Q(lease_id__isnull=True), Q(lease_id__isnull=False)
        ),
        "lease": searching.LEASE, "worker": searching.WORKER, "batch": searching.BATCH,
        "header": searching.HEADER,
        "failure": searching.with_text("last_error"),
    }  # fmt: skip
    search_help_text = _(
        "The beginning of a key; or group:, worker:, lease:, batch:, failure: or header:name= "
        "before a value."
    )
    list_filter = (filters.KindFilter, filters.StateFilter)
    list_display: Any = (
        "key_column", "queue_column", "state_column", "when_column", "lease_column",
        "attempts_column", "age_column",
    )  # fmt: skip
    readonly_fields: ClassVar[Any] = (
        "state", "queue", "key_column", "lease", "attempts_column", "times", "last_failure",
        "first_failure", "headers_shown", "payload_shown", "dead_letters",
    )  # fmt: skip

    state_column = column(_("state"), lambda row: formats.badge(state_of(row)))
    when_column = column(_("when"), formats.waiting)
    age_column = column(
        _("age"),
        lambda row: formats.moment(row.created_at, formats.human(row.read_at - row.created_at)),
    )
    state = column(
        _("state"),
        lambda row: format_html("{} {}", formats.badge(state_of(row)), formats.waiting(row)),
    )

    def listed_by(self, request: HttpRequest) -> Keyset:
        if request.GET.get(filters.STATE) in {RowState.LEASED, RowState.EXPIRED}:
            return searching.BY_LEASE
        return NEWEST_FIRST if filters.chosen_kind(request) is None else _BY_SCHEDULE

    def token_of(self, row: Any) -> str:
        return Seen.of(row).token

    def complete(self, request: HttpRequest, rows: Sequence[Any], using: str) -> None:
        if self.may(request, "delayed_queue.view_worker"):
            names = names_of_holders(rows, using)
            for row in rows:
                row.worker = names.get((row.lease_id or "")[: searching.HOLDER_LENGTH], "")

    @admin.display(description=_("lease"))
    def lease_column(self, row: Any) -> SafeString:
        lease_id, worker = row.lease_id, getattr(row, "worker", "")
        if lease_id is None:
            return formats.NOTHING
        query = urlencode({SEARCH_VAR: f"lease:{lease_id}"})
        return format_html(
            '<a href="?{}"><code title="{}">{}</code></a> {}',
            query, lease_id, lease_id[:8], formats.quiet(worker) if worker else "",
        )  # fmt: skip

    # The detail page

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        may_view = self.may(request, "delayed_queue.view_worker")
        if row is not None and row.lease_id is not None and may_view:
            row.holder = holder_of(row, self.get_queryset(request).db, self.admin_site.name)
        return row

    @admin.display(description=_("lease id"))
    def lease(self, row: Any) -> SafeString:
        if row.lease_id is None:
            return format_html("{} {}", formats.NOTHING, _("not leased"))
        return format_html("<code>{}</code> {}", row.lease_id, getattr(row, "holder", ""))

    @admin.display(description=_("timeline"))
    def times(self, row: Any) -> SafeString:
        is_moved = row.scheduled_at != row.scheduled_at_initially
        events = [
            (row.created_at, _("offered")),
            (row.scheduled_at_initially if is_moved else None, _("first scheduled for")),
            (row.due_at, _("fell due for the last delivery")),
            (row.scheduled_at, _NEXT[state_of(row)]),
        ]
        return formats.timeline(events, row.read_at)

    @admin.display(description=_("dead letters"))
    def dead_letters(self, row: Any) -> SafeString:
        url = self.url("delayed_queue_deadletter_changelist", q=f"key:{row.key}", kind=row.kind)
        return formats.link(url, _("Dead letters of this key"))


@admin.register(QueueOverview)
class QueueOverviewAdmin(KeyedRowAdmin):
    """The overview and the history of a queue, first where the admin lists its pages."""

    list_display = ("key_column",)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may(request, "delayed_queue.view_message")

    def get_urls(self) -> Any:
        queues, history = map(self.admin_site.admin_view, (self.queues, self.history))
        return [
            path("", queues, name="delayed_queue_queues"),
            path("", queues, name="delayed_queue_queueoverview_changelist"),
            path("history/", history, name="delayed_queue_history"),
        ]

    def queues(self, request: HttpRequest) -> HttpResponse:
        return queues_view(self._of_messages, request)

    def history(self, request: HttpRequest) -> HttpResponse:
        return history_view(self._of_messages, request)

    @property
    def _of_messages(self) -> QueueModelAdmin:
        """The admin of messages on the same site, whose database and permissions count."""
        return cast("QueueModelAdmin", self.admin_site.get_model_admin(Message))
