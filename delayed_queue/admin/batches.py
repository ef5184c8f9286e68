"""The unfinished batches: their progress, their members left, and cancelling them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.base import RecordAdmin
from delayed_queue.admin.formats import column, count_column
from delayed_queue.admin.lists import Keyset
from delayed_queue.admin.operations import Call, Operation, Report
from delayed_queue.admin.rows import RowState
from delayed_queue.models import StoredBatch
from delayed_queue.observe.overview import name_of
from delayed_queue.observe.stored_batches import MemberLeft, count_left, first_left

_OLDEST_FIRST: Final = Keyset()
# Members that the page of a batch shows.
_MAX_SHOWN: Final = 25
_DEAD: Final = "dead"
# The permissions that parts of the members need.
_SHOWN_TO: Final = {
    "worker": "delayed_queue.view_worker", "reason": "delayed_queue.view_deadletter",
}  # fmt: skip


class CancelBatch(Operation):
    permission = "delayed_queue.operate_batch"
    noun = ngettext_lazy("%(count)s batch", "%(count)s batches", "count")
    name, label, past = "cancel", _("Cancel"), _("Cancelled")
    help = _("Never offer the message; members stay as ordinary messages.")
    warning = _(
        "The message that waits for these batches will never be offered. Their members stay in "
        "their queues as ordinary messages."
    )
    is_destructive = True

    def change(self, row: Any, call: Call, report: Report) -> Any:
        return StoredBatch.objects.cancel(row.pk, using=call.using)

    def name_of(self, row: Any) -> str:
        return f"#{row.pk}"


@admin.register(StoredBatch)
class BatchAdmin(RecordAdmin):
    """The oldest first; a batch that has finished has no row."""

    operations = (CancelBatch(),)
    name_field = "then_key"
    change_form_template = "admin/delayed_queue/live_detail.html"
    list_display = (
        "key_column", "queue_column", "then_column", "age_column", "state_column", "done_column",
        "dead_column", "dropped_column", "expired_column", "left_column",
    )  # fmt: skip
    readonly_fields = (*list_display[1:], "members")

    key_column = column(_("batch"), lambda row: f"#{row.pk}")
    age_column = column(
        _("age"),
        lambda row: formats.moment(row.created_at, formats.human(row.read_at - row.created_at)),
    )
    state_column = column(
        _("state"),
        lambda row: (
            formats.state("scheduled", _("open"))
            if row.closed_at is None
            else formats.state("due", _("closed"))
        ),
    )
    then_column = column(
        _("offered at the end"),
        lambda row: format_html(
            "{} {}", formats.key_label(row.then_key), formats.kind_label(row.then_kind)
        ),
    )
    done_column = count_column(_("done"), "done")
    dead_column = count_column(_("dead"), "dead")
    dropped_column = count_column(_("dropped"), "dropped")
    expired_column = count_column(_("expired"), "expired")
    left_column = column(_("left"), lambda row: formats.counted(row.left))

    def listed_by(self, request: HttpRequest) -> Keyset:
        return _OLDEST_FIRST

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("then_payload", "then_headers")

    def complete(self, request: HttpRequest, rows: Sequence[Any], using: str) -> None:
        left = count_left([row.pk for row in rows], using=using)
        for row in rows:
            row.left = left[row.pk]

    def title_of(self, row: Any) -> str:
        return str(
            _("Batch %(id)s of %(queue)s") % {"id": row.pk, "queue": name_of(row.kind).queue}
        )

    # The detail page

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            row.first = self._first_left(request, row.pk)
        return row

    def _first_left(self, request: HttpRequest, batch: int) -> list[MemberLeft] | None:
        """Return what the user may see of the first members left; None for nothing."""
        if not self.may(request, "delayed_queue.view_message"):
            return None
        hidden: dict[str, Any] = {
            name: "" for name, permission in _SHOWN_TO.items() if not self.may(request, permission)
        }
        found = first_left(batch, _MAX_SHOWN, using=self.get_queryset(request).db)
        return [each._replace(**hidden) for each in found]

    @admin.display(description=_("members left"))
    def members(self, row: Any) -> SafeString:
        if row.first is None:
            return formats.quiet(_("Hidden: needs the permission delayed_queue.view_message."))
        heads = (_("queue"), _("key"), _("state"), _("time"), _("attempts"), _("why"))
        table = formats.table(heads, [self._line(each, row) for each in row.first])
        url = self.url("delayed_queue_message_changelist", q=f"batch:{row.pk}")
        link = formats.link(url, _("Show the messages left"))
        return format_html('<div class="dq-groups">{}</div>{}', table, link)

    def _line(self, each: MemberLeft, row: Any) -> tuple[Any, ...]:
        is_dead = each.state == _DEAD
        model = "deadletter" if is_dead else "message"
        url = self.url(f"delayed_queue_{model}_change", each.id)
        return (
            formats.kind_label(each.kind), formats.link(url, formats.key_label(each.key)),
            formats.state("alarm", _("dead")) if is_dead else formats.badge(RowState(each.state)),
            formats.since(each.time, row.read_at), each.attempts,
            formats.shortened(each.reason or each.worker, 80),
        )  # fmt: skip
