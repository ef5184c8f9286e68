"""Base of the notification pages: operations that services carry out, and states."""

from __future__ import annotations

from typing import Any, Final

from django.utils.safestring import SafeString
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.operating import OperatingAdmin
from delayed_queue.admin.operations import Call, Operation, Report, primary_keys
from delayed_queue.notifications.models import Status

APP: Final = "delayed_queue_notifications"
_LOOKS: Final = {
    Status.ENQUEUED: "scheduled", Status.PROCESSING: "leased",
    Status.SUCCESSFULLY_PROCESSED: "due", Status.FAILED: "alarm",
    Status.CANCELLED: "scheduled", Status.EXPIRED: "expired",
}  # fmt: skip


class ShownOnly(OperatingAdmin):
    """Read-only pages of bounded cost."""

    class Media:
        css = {"all": ["notifications/pages.css"]}


class ServiceOperation(Operation):
    """An operation on one row after the other; the services lock the rows."""

    is_separate = True
    noun = ngettext_lazy("%(count)s notification", "%(count)s notifications", "count")

    def rows(self, call: Call, report: Report) -> list[Any]:
        return list(call.written.filter(pk__in=primary_keys(call)))

    def name_of(self, row: Any) -> str:
        return str(row.pk)


def badge(status: str) -> SafeString:
    state = Status(status)
    return formats.state(_LOOKS[state], state.label)
