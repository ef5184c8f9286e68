"""Lists of bounded cost at any depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from django import forms
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import BooleanField, Expression, F, Func, Q, QuerySet, UUIDField, Value
from django.db.models.lookups import GreaterThan, LessThan
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.rows import MAX_BIGINT, DatabaseClock, raw

if TYPE_CHECKING:
    _Base = admin.ModelAdmin[Any]
else:
    _Base = admin.ModelAdmin  # cannot be subscripted at run time on Django 5.2

# The script's texts are attributes of its tag, in the language of the page.
LIVE: Final = forms.Script(
    "delayed_queue/live.js",
    defer=True,
    **{
        "data-off": _("Live: off"),
        "data-as-of": _("as of"),
        "data-no-answer": _("no answer, trying again"),
        "data-title": _("Refresh every few seconds while this tab is visible"),
    },
)

AFTER: Final = "after"
# The parameter of the chosen queue.
KIND: Final = "kind"
# Rows that a page of a search reads at most, where no index finds what is searched.
SCANNED: Final = 5_000
# Rows compared by one statement: of a few the planner finds each by its id.
_BATCH: Final = 2_000


class _Row(Func):
    """A row value: ``(a, b) > (x, y)`` is one position in an index, two conditions are not."""

    template = "(%(expressions)s)"
    output_field = BooleanField()


@dataclass(frozen=True, slots=True)
class Keyset:
    """An order that an index gives: by a column and the id, or by the id alone."""

    column: str | None = None
    is_text: bool = False
    descending: bool = False
    # Order by an expression on the id. Otherwise the planner would walk the primary key in search
    # of the few rows of one key.
    hides_index: bool = False
    # The index is partial: the statement must show that the column is not NULL.
    is_partial: bool = False

    def ordered(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Order the rows, with the column as stored: a datetime may be clamped."""
        if self.column is not None:
            if self.is_partial:
                queryset = queryset.filter(**{f"{self.column}__gte": -MAX_BIGINT})
            stored = F(self.column) if self.is_text else raw(self.column)
            queryset = queryset.annotate(position=stored)
        return queryset.order_by(*self.ordering())

    def ordering(self) -> list[Expression]:
        last = F("id") + 0 if self.hides_index else F("id")
        terms = [last] if self.column is None else [F(self.column), last]
        return [term.desc() if self.descending else term.asc() for term in terms]

    def cursor(self, row: Any) -> str:
        """Return the position after the row, for the link to the next page."""
        return str(row.id) if self.column is None else f"{row.id}.{row.position}"

    def position(self, row: Any) -> tuple[Any, Any]:
        return (row.id if self.column is None else row.position), row.id

    def after(self, queryset: QuerySet[Any], cursor: str) -> QuerySet[Any]:
        """Return the rows after the cursor; raise ValueError for a cursor of another order."""
        text, dot, position = cursor.partition(".")
        last = _id(queryset, text)
        if self.column is None:
            here, there = _Row(F("id")), _Row(Value(last))
        else:
            value = self._value(position if dot else None)
            here, there = _Row(F(self.column), F("id")), _Row(Value(value), Value(last))
        return queryset.filter((LessThan if self.descending else GreaterThan)(here, there))

    def _value(self, position: str | None) -> int | str:
        if position is None:
            raise ValueError("no position")
        return position if self.is_text else _bigint(position)


def _id(queryset: QuerySet[Any], text: str) -> Any:
    if isinstance(queryset.model._meta.pk, UUIDField):
        return UUID(text)
    return _bigint(text)


def _bigint(text: str) -> int:
    number = int(text)
    if not -MAX_BIGINT <= number < MAX_BIGINT:
        raise ValueError("out of range")
    return number


NEWEST_FIRST: Final = Keyset(descending=True)


class ListAdmin(_Base):
    """Read-only pages of bounded cost."""

    list_heading: Any = ""
    change_list_template = "admin/delayed_queue/keyset_change_list.html"
    object_history_template = "admin/delayed_queue/object_history.html"
    list_filter: ClassVar[Any] = ()
    list_per_page = 50
    list_max_show_all = 0
    empty_value_display = "—"
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # they count every choice over the whole table
    sortable_by: ClassVar[Any] = ()  # only the orders that an index gives
    actions: Any = None  # nor Django's own
    # The fields of the form that adds a row, and the permissions that fields of its page need.
    add_fields: tuple[str, ...] = ()
    guarded: ClassVar[dict[str, str]] = {}

    class Media:
        css = {"all": ["delayed_queue/admin.css"]}
        js = [LIVE]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return KeysetChangeList

    def keyset_of(self, request: HttpRequest) -> Keyset:
        """Return the order of the list; an index gives it under the list's filters."""
        return NEWEST_FIRST

    def search_in(self, request: HttpRequest) -> Any:
        """Return the search of the list, or None."""
        return None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows, each with the instant of reading."""
        rows: QuerySet[Any] = super().get_queryset(request).annotate(read_at=DatabaseClock())
        return rows

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        hidden = {name for name, needed in self.guarded.items() if not self.may(request, needed)}
        shown = self.add_fields if obj is None else self.readonly_fields
        return [each for each in shown if each not in hidden]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return () if obj is None else self.readonly_fields

    def complete(self, request: HttpRequest, rows: Sequence[Any], using: str) -> None:
        """Add columns of other tables to the rows of a page."""

    def list_title(self, request: HttpRequest) -> str:
        return str(self.list_heading or capfirst(self.opts.verbose_name_plural))

    def url(self, name: str, *args: Any, **query: Any) -> str:
        """Return the address of a page of the same admin site."""
        site = self.admin_site.name
        return reverse(f"admin:{name}", args=args, query=query or None, current_app=site)

    def may(self, request: HttpRequest, permission: str) -> bool:
        allowed: bool = request.user.has_perm(permission)
        return allowed

    def _nobody(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _nobody

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow filters only: other lookups in a URL could scan tables or reveal payloads."""
        return lookup in {
            getattr(each, "parameter_name", f"{each}__exact") for each in self.list_filter
        }

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Refuse a NUL in the URL: PostgreSQL cannot compare it."""
        if any("\x00" in each for _, values in request.GET.lists() for each in values):
            raise IncorrectLookupParameters("text cannot contain a NUL character")
        return super().get_changelist_instance(request)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list with its own title."""
        context = {"title": self.list_title(request), **(extra_context or {})}
        return super().changelist_view(request, context)

    def page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        """Return a page beside the lists; it needs the permission to view the model."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        common = {
            **self.admin_site.each_context(request), "opts": self.opts, "media": self.media,
        }  # fmt: skip
        return TemplateResponse(request, f"admin/{template}.html", common | context)


class KeysetChangeList(ChangeList):
    """A change list that neither counts nor skips rows: each page is one bounded read."""

    model_admin: ListAdmin
    result_list: list[Any]
    # Django's templates show one page without counts.
    can_show_all = multi_page = show_full_result_count = False

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        # The search form repeats them as hidden fields: a search keeps the queue alone.
        self.params = {name: each for name, each in self.params.items() if name == KIND}

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = super().get_filters_params(params)
        found.pop(AFTER, None)
        return found

    def get_query_string(self, new_params: Any = None, remove: Any = None) -> str:
        # Every link but "next page" leads to a first page.
        query: str = super().get_query_string({AFTER: None, **(new_params or {})}, remove)
        return query

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        return self.model_admin.keyset_of(request).ordering()

    def get_results(self, request: HttpRequest) -> None:
        keyset, search = self.model_admin.keyset_of(request), self.model_admin.search_in(request)
        self.needs_queue = search is not None and search.lacks_queue
        end = ""
        if search is not None and search.term.scans:
            window = self._from(request, keyset.ordered(search.narrowed(self.root_queryset)))
            rows, end = self._scanned(window, keyset)
        else:
            matching = self._from(request, keyset.ordered(self.queryset))
            branches = [Q()] if search is None else search.term.branches
            rows = self._merged([matching.filter(each) for each in branches], keyset)
        self.result_list = rows[: self.list_per_page]
        if len(rows) > self.list_per_page:
            end = keyset.cursor(self.result_list[-1])
        self.model_admin.complete(request, self.result_list, self.queryset.db)
        self.next_page = self.get_query_string({AFTER: end}) if end else ""
        self.first_page = self.get_query_string() if AFTER in request.GET else ""

    @property
    def result_count(self) -> int:  # type: ignore[override] # an attribute of Django's
        """The rows of this page: Django offers "select all" for a larger number."""
        return len(self.result_list)

    # Equal to the former, so that the search form shows no number.
    full_result_count = result_count

    @property
    def show_admin_actions(self) -> bool:  # type: ignore[override] # an attribute of Django's
        return bool(self.result_list)

    def _scanned(self, window: QuerySet[Any], keyset: Keyset) -> tuple[list[Any], str]:
        """Compare the first rows of the window; return those that match, and where it ends.

        By id: with the conditions beside the order, the planner might read the whole table.
        """
        columns = ["pk"] if keyset.column is None else ["pk", "position"]
        places = list(window.values_list(*columns)[:SCANNED])
        ids, found = [each[0] for each in places], list[Any]()
        for first in range(0, len(ids), _BATCH):
            some = ids[first : first + _BATCH]
            matching = set(self.queryset.filter(pk__in=some).values_list("pk", flat=True))
            found += [each for each in some if each in matching]
            if len(found) > self.list_per_page:
                break
        by_id = keyset.ordered(self.queryset).in_bulk(found[: self.list_per_page + 1])
        rows = [by_id[each] for each in found if each in by_id]
        return rows, ".".join(map(str, places[-1])) if len(places) == SCANNED else ""

    def _merged(self, branches: Sequence[QuerySet[Any]], keyset: Keyset) -> list[Any]:
        """Return the first rows of all branches in one order, with one more than a page shows."""
        found = [list(each[: self.list_per_page + 1]) for each in branches]
        if len(found) == 1:
            return found[0]
        rows = sorted(chain(*found), key=keyset.position, reverse=keyset.descending)
        return rows[: self.list_per_page + 1]

    def _from(self, request: HttpRequest, matching: QuerySet[Any]) -> QuerySet[Any]:
        cursor = request.GET.get(AFTER)
        if cursor is None:
            return matching
        try:
            return self.model_admin.keyset_of(request).after(matching, cursor)
        except ValueError as error:
            raise IncorrectLookupParameters from error
