"""The base of the pages: rows by id, newest first, and nothing can be typed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.lists import AFTER, LIVE, KeysetChangeList, ListAdmin
from delayed_queue.db.sql import Page
from delayed_queue.notifications import managing
from delayed_queue.notifications.models import Status

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

APP: Final = "delayed_queue_notifications"
MAX_LISTED: Final = 5_000
_CLASSES: Final = {
    Status.ENQUEUED: "dq-scheduled",
    Status.PROCESSING: "dq-leased",
    Status.SUCCESSFULLY_PROCESSED: "dq-due",
    Status.FAILED: "dq-alarm",
    Status.CANCELLED: "dq-scheduled",
    Status.EXPIRED: "dq-expired",
}


class CappedPaginator(Paginator):  # type: ignore[type-arg] # not subscriptable at run time
    """Counts no further than a cap: what lies beyond it is reached by pruning, not by paging."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return len(rows[:MAX_LISTED].values_list("pk", flat=True))


class ShownOnly(ListAdmin):
    """Read-only pages of bounded cost."""

    list_per_page = 100
    list_max_show_all = 0
    show_full_result_count = False
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    list_heading: Any = ""

    class Media:
        css = {"all": ["delayed_queue/admin.css", "notifications/pages.css"]}
        js = [LIVE]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """Head the list by what is in it: nothing needs to be selected."""
        heading = {"title": self.list_heading} if self.list_heading else {}
        return super().changelist_view(request, {**heading, **(extra_context or {})})

    def _nobody(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _nobody

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters only: a lookup typed into the URL could scan, or spell out texts."""
        allowed = {getattr(each, "parameter_name", f"{each}__exact") for each in self.list_filter}
        return lookup in allowed


def may(request: HttpRequest, codename: str) -> bool:
    return bool(request.user.has_perm(f"{APP}.{codename}"))


def badge(status: str) -> SafeString:
    state = Status(status)
    return format_html(
        '<span class="dq-state {}" title="{}">{}</span>', _CLASSES[state], state.value, state.label
    )


RECIPIENT: Final = "recipient"


class StatusFilter(SimpleListFilter):
    """By state; the rows are chosen by the list itself, from an index."""

    title = _("state")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(each.value, str(capfirst(each.label))) for each in Status]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in (None, *Status.values):
            raise IncorrectLookupParameters("there is no such state")
        return queryset


class RecipientFilter(SimpleListFilter):
    """By recipient: shown once one was looked for; the URL has the hash, never the address."""

    title = _("recipient")
    parameter_name = RECIPIENT

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        chosen = request.GET.get(RECIPIENT)
        return [] if chosen is None else [(chosen, str(_("The requested one")))]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        yield from super().choices(changelist)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class NewestFirst(KeysetChangeList):
    """The newest notifications, of one state or of one recipient; nothing is counted."""

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
    """Return the id that a text is; None when it is none."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
