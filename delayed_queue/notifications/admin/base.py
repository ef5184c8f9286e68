"""Base of the notification pages: states, filters, and the list of the newest."""

from __future__ import annotations

import uuid
from typing import Any, Final

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.filters import LinkedFilter
from delayed_queue.admin.lists import AFTER, KeysetChangeList
from delayed_queue.admin.operating import OperatingAdmin
from delayed_queue.admin.operations import Call, Operation, Report, primary_keys
from delayed_queue.db.sql import Page
from delayed_queue.notifications import managing
from delayed_queue.notifications.models import Status

APP: Final = "delayed_queue_notifications"
_CLASSES: Final = {
    Status.ENQUEUED: "scheduled",
    Status.PROCESSING: "leased",
    Status.SUCCESSFULLY_PROCESSED: "due",
    Status.FAILED: "alarm",
    Status.CANCELLED: "scheduled",
    Status.EXPIRED: "expired",
}


class ShownOnly(OperatingAdmin):
    """Read-only pages of bounded cost."""

    class Media:
        css = {"all": ["notifications/pages.css"]}


class CountedOperation(Operation):
    """An operation on rows, one after the other, whose report counts without names."""

    is_separate = True

    def rows(self, call: Call, report: Report) -> list[Any]:
        """Return the rows by their keys; the services lock them."""
        model = call.queryset.model
        return [model(pk=model._meta.pk.to_python(each)) for each in primary_keys(call)]

    def name_of(self, row: Any) -> str:
        return str(row.pk)


def may(request: HttpRequest, codename: str) -> bool:
    return bool(request.user.has_perm(f"{APP}.{codename}"))


def badge(status: str) -> SafeString:
    state = Status(status)
    return format_html(
        '<span class="dq-state dq-{}" title="{}">{}</span>',
        _CLASSES[state], state.value, state.label,
    )  # fmt: skip


RECIPIENT: Final = "recipient"


class StatusFilter(SimpleListFilter):
    """By state; the list itself reads the rows from an index."""

    title = _("state")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(each.value, str(capfirst(each.label))) for each in Status]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in (None, *Status.values):
            raise IncorrectLookupParameters("there is no such state")
        return queryset


class RecipientFilter(LinkedFilter):
    """By recipient; the URL has the hash, never the address."""

    title = _("recipient")
    parameter_name = RECIPIENT

    def label(self, chosen: str, model_admin: Any, request: HttpRequest) -> Any:
        return _("The requested one")

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class NewestFirst(KeysetChangeList):
    """The newest notifications, of one state or of one recipient, without a count."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        return []

    def get_results(self, request: HttpRequest) -> None:
        found = self._page(request)
        shown = self.root_queryset.in_bulk(list(found.items))
        self.result_list = [shown[each] for each in found.items if each in shown]
        self.result_count = len(self.result_list)
        after = found.next
        self.next_page = self.get_query_string({AFTER: str(after)}) if after else ""
        self.first_page = self.get_query_string() if AFTER in request.GET else ""
        self._settle()

    def _page(self, request: HttpRequest) -> managing.Ids:
        searched = request.GET.get(SEARCH_VAR, "").strip()
        if searched:
            id_ = as_id(searched)
            return Page([] if id_ is None else [id_])
        before = self._before(request)
        if RECIPIENT in request.GET:
            return self._of_recipient(request.GET[RECIPIENT], before)
        status = request.GET.get(StatusFilter.parameter_name)
        statuses = [Status(status)] if status in Status.values else list(Status)
        return managing.ids_in(statuses, None, before, self.list_per_page)

    def _of_recipient(self, text: str, before: uuid.UUID | None) -> managing.Ids:
        try:
            hash_ = bytes.fromhex(text)
        except ValueError as error:
            raise IncorrectLookupParameters from error
        return managing.ids_of(hash_, before, self.list_per_page)

    def _before(self, request: HttpRequest) -> uuid.UUID | None:
        text = request.GET.get(AFTER)
        found = None if text is None else as_id(text)
        if text is not None and found is None:
            raise IncorrectLookupParameters("no position")
        return found


def as_id(text: str) -> uuid.UUID | None:
    """Return the text as an id, or None."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
