"""Filters that an index serves; no other filter is offered."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
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
from delayed_queue.admin.rows import DatabaseClock, RowState, find, is_id
from delayed_queue.codecs import check_kind
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.models import Worker
from delayed_queue.observe.overview import MAX_KINDS, name_of

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin
    from django.contrib.admin.views.main import ChangeList

LEASE: Final = "lease"
WORKER: Final = "worker"
BATCH: Final = "batch"
STATE: Final = "state"
DIED: Final = "died"
FAILURE: Final = "failure"


def chosen_kind(request: HttpRequest) -> str | None:
    return request.GET.get(KIND)


def valid_kind(kind: str) -> str:
    """Return the kind; raise BadRequest for one that no queue can have."""
    try:
        return check_kind(kind)
    except InvalidMessage as error:
        raise BadRequest(str(error)) from error


def is_narrow(request: HttpRequest) -> bool:
    """True for a list of one queue or one key, where an index serves filters by time."""
    return chosen_kind(request) is not None or bool(request.GET.get(SEARCH_VAR))


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
        query_string = changelist.get_query_string(remove=[KIND, STATE, DIED, FAILURE])
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


class NarrowFilter(ChoiceFilter):
    """A filter by time, which needs a queue: the index on times starts with the kind."""

    # The choices that need no queue, and a hint in place of the others.
    always: ClassVar[frozenset[str]] = frozenset()
    hint: Any

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        self.site_name = model_admin.admin_site.name
        self.is_narrow = is_narrow(request)
        choices = super().lookups(request, model_admin)
        return [each for each in choices if self.is_narrow or each[0] in self.always]

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        yield from super().choices(changelist)
        if not self.is_narrow:
            url = _overview_url(self.site_name)
            yield {"selected": False, "query_string": url, "display": self.hint}


_NOW: Final = DatabaseClock()


class StateFilter(NarrowFilter):
    """By state; leases have an index of their own, across all queues."""

    title = _("state")
    parameter_name = STATE
    hint = _("Due, scheduled: choose a queue…")
    offered: ClassVar = {
        RowState.DUE.value: (_("Due"), Q(lease_id=None, scheduled_at__lte=_NOW)),
        RowState.SCHEDULED.value: (_("Scheduled"), Q(lease_id=None, scheduled_at__gt=_NOW)),
        RowState.LEASED.value: (_("Leased"), Q(lease_id__isnull=False, scheduled_at__gt=_NOW)),
        RowState.EXPIRED.value: (
            _("Lease expired, due again"), Q(lease_id__isnull=False, scheduled_at__lte=_NOW)
        ),
    }  # fmt: skip
    always = frozenset({RowState.LEASED.value, RowState.EXPIRED.value})


class DiedFilter(NarrowFilter):
    """By the time of death."""

    title = _("time of death")
    parameter_name = DIED
    hint = _("By time: choose a queue…")
    offered: ClassVar = {
        "hour": (_("In the past hour"), Q(died_at__gte=DatabaseClock(timedelta(hours=1)))),
        "day": (_("In the past day"), Q(died_at__gte=DatabaseClock(timedelta(days=1)))),
        "week": (_("In the past week"), Q(died_at__gte=DatabaseClock(timedelta(days=7)))),
        "older": (_("More than a week ago"), Q(died_at__lt=DatabaseClock(timedelta(days=7)))),
    }


class LinkedFilter(SimpleListFilter):
    """A filter of a column that links set; it has too many choices to list."""

    column = ""

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        chosen = request.GET.get(self.parameter_name or "")
        return [] if chosen is None else [(chosen, self.label(chosen, model_admin, request))]

    def label(self, chosen: str, model_admin: ModelAdmin[Any], request: HttpRequest) -> Any:
        return chosen

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset if chosen is None else queryset.filter(**{self.column: chosen})


class LeaseFilter(LinkedFilter):
    """By lease: the messages that were claimed together and are still leased."""

    title, parameter_name, column = _("lease"), LEASE, "lease_id"


# A lease id starts with as many characters of its worker process.
HOLDER_LENGTH: Final = 8


def held_by(worker: Worker | None) -> Q:
    """Return the condition for messages under the worker's leases, which start with its prefix."""
    if worker is None or not worker.holder:
        return Q(pk__in=[])
    # "g" sorts behind every hexadecimal digit.
    return Q(lease_id__gte=worker.holder, lease_id__lt=f"{worker.holder}g")


class WorkerFilter(LinkedFilter):
    """By worker: the messages under its leases."""

    title = _("worker")
    parameter_name = WORKER

    def label(self, chosen: str, model_admin: ModelAdmin[Any], request: HttpRequest) -> Any:
        worker = _worker(chosen, model_admin.get_queryset(request).db)
        return _("a worker that has stopped") if worker is None else str(worker)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return (
            queryset if chosen is None else queryset.filter(held_by(_worker(chosen, queryset.db)))
        )


def _worker(chosen: str, using: str) -> Worker | None:
    found: Worker | None = find(Worker.objects.using(using).all(), chosen)
    return found


class BatchFilter(LinkedFilter):
    """By batch: the members that are left."""

    title, parameter_name = _("batch"), BATCH

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if chosen is None:
            return queryset
        # With equality the planner would walk the primary key: only the id would order the rows.
        chosen_only = Q(batch_id__gte=chosen, batch_id__lte=chosen)
        return queryset.filter(chosen_only if is_id(chosen) else Q(pk__in=[]))


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
