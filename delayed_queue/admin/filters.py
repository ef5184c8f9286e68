"""Filters that an index serves; no other filter is offered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import BadRequest
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.formats import codec_of
from delayed_queue.admin.lists import KIND as KIND
from delayed_queue.admin.rows import DatabaseClock, RowState
from delayed_queue.codecs import check_kind
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.observe.overview import MAX_KINDS, name_of

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin
    from django.contrib.admin.views.main import ChangeList

STATE: Final = "state"
FAILURE: Final = "failure"


def chosen_kind(request: HttpRequest) -> str | None:
    return request.GET.get(KIND)


def valid_kind(kind: str) -> str:
    """Return the kind; raise BadRequest for one that no queue can have."""
    try:
        return check_kind(kind)
    except InvalidMessage as error:
        raise BadRequest(str(error)) from error


class KindFilter(SimpleListFilter):
    """By queue: the stored kinds, read by a loose index scan."""

    title = _("queue")
    parameter_name = KIND

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        manager: Any = model_admin.model._default_manager
        kinds = manager.kinds(MAX_KINDS, using=model_admin.get_queryset(request).db)
        chosen = chosen_kind(request)
        if chosen is not None and chosen not in kinds:
            kinds.append(chosen)
        return [(kind, _label(kind)) for kind in kinds]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        every, *kinds = super().choices(changelist)
        # The filters that need a queue go with it.
        query_string = changelist.get_query_string(remove=[KIND, STATE, FAILURE])
        yield {**every, "query_string": query_string}
        yield from kinds

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        kind = self.value()
        return queryset if kind is None else queryset.filter(kind=kind)


def _label(kind: str) -> str:
    name = name_of(kind)
    codec = codec_of(name)
    return f"{name.queue} ({codec})" if codec else name.queue


class ChoiceFilter(SimpleListFilter):
    """A filter with a condition for each of its choices."""

    # The words and the condition of each choice.
    offered: ClassVar[dict[str, tuple[Any, Q]]]

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        return [(value, words) for value, (words, _condition) in self.offered.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        if value not in dict(self.lookup_choices):
            raise IncorrectLookupParameters(f"{self.parameter_name}={value} is not offered here")
        return queryset.filter(self.offered[value][1])


_NOW: Final = DatabaseClock()
# The states that need no queue: leases have an index of their own, across all queues.
_ALWAYS: Final = frozenset({RowState.LEASED.value, RowState.EXPIRED.value})


class StateFilter(ChoiceFilter):
    """By state; the index on due times starts with the kind, so those states need a queue."""

    title, parameter_name = _("state"), STATE
    offered: ClassVar = {
        RowState.DUE.value: (_("Due"), Q(lease_id=None, scheduled_at__lte=_NOW)),
        RowState.SCHEDULED.value: (_("Scheduled"), Q(lease_id=None, scheduled_at__gt=_NOW)),
        RowState.LEASED.value: (_("Leased"), Q(lease_id__isnull=False, scheduled_at__gt=_NOW)),
        RowState.EXPIRED.value: (
            _("Lease expired, due again"), Q(lease_id__isnull=False, scheduled_at__lte=_NOW)
        ),
    }  # fmt: skip

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        self.site_name = model_admin.admin_site.name
        self.is_narrow = chosen_kind(request) is not None or bool(request.GET.get(SEARCH_VAR))
        choices = super().lookups(request, model_admin)
        return [each for each in choices if self.is_narrow or each[0] in _ALWAYS]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        yield from super().choices(changelist)
        if not self.is_narrow:
            hint = _("Due, scheduled: choose a queue…")
            url = _overview_url(self.site_name)
            yield {"selected": False, "query_string": url, "display": hint}


class LinkedFilter(SimpleListFilter):
    """A filter of a column that links set; it has too many choices to list."""

    column = ""

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        chosen = request.GET.get(self.parameter_name or "")
        return [] if chosen is None else [(chosen, chosen)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset if chosen is None else queryset.filter(**{self.column: chosen})


class FailureFilter(LinkedFilter):
    """By failure; its index starts with the queue."""

    title, parameter_name, column = _("failure"), FAILURE, "fingerprint"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is not None and chosen_kind(request) is None:
            raise IncorrectLookupParameters("choose a queue for a failure")
        return super().queryset(request, queryset)


def _overview_url(site_name: str) -> str:
    try:
        return reverse("admin:delayed_queue_queues", current_app=site_name)
    except NoReverseMatch:  # an admin site of the project's own, without the messages
        return "?"
