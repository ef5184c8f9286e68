"""Lists of notifications that cost the same at any depth: pages by id, newest first."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest

from delayed_queue.admin.keysets import AFTER, KeysetChangeList
from delayed_queue.notifications import listing
from delayed_queue.notifications.models import Status

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

RECIPIENT: Final = "recipient"


class StatusFilter(SimpleListFilter):
    """By state; the rows are chosen by the list itself, from an index."""

    title = "state"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        return [(each.value, each.label.capitalize()) for each in Status]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in (None, *Status.values):
            raise IncorrectLookupParameters("no such state")
        return queryset


class RecipientFilter(SimpleListFilter):
    """By recipient: shown once one was looked for; the URL has the hash, never the address."""

    title = "recipient"
    parameter_name = RECIPIENT

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        chosen = request.GET.get(RECIPIENT)
        return [] if chosen is None else [(chosen, "The one looked for")]

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
        shown = self.root_queryset.in_bulk(list(found.ids))
        self.result_list = [shown[each] for each in found.ids if each in shown]
        self.result_count = len(self.result_list)
        after = found.next_before
        self.next_page = self.get_query_string({AFTER: str(after)}) if after else ""
        self.first_page = self.get_query_string() if AFTER in request.GET else ""
        self._settle()

    def _page(self, request: HttpRequest) -> listing.Ids:
        searched = request.GET.get(SEARCH_VAR, "").strip()
        if searched:
            id_ = as_id(searched)
            return listing.Ids([] if id_ is None else [id_], None)
        before = self._before(request)
        if RECIPIENT in request.GET:
            return self._of_recipient(request.GET[RECIPIENT], before)
        status = request.GET.get(StatusFilter.parameter_name)
        statuses = [Status(status)] if status in Status.values else list(Status)
        return listing.ids_in(statuses, None, before, self.list_per_page)

    def _of_recipient(self, text: str, before: uuid.UUID | None) -> listing.Ids:
        try:
            hash_ = bytes.fromhex(text)
        except ValueError as error:
            raise IncorrectLookupParameters from error
        return listing.ids_of(hash_, before, self.list_per_page)

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
