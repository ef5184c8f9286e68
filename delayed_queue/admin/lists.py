"""Rows as the admin reads them, and lists of them that cost the same at any depth."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from django import forms
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import (
    BigIntegerField,
    BooleanField,
    Expression,
    ExpressionWrapper,
    F,
    Func,
    QuerySet,
    Value,
)
from django.db.models.lookups import GreaterThan, LessThan
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from delayed_queue.messages import MILLISECOND
from delayed_queue.models import EpochMillisecondField

if TYPE_CHECKING:
    from delayed_queue.admin.base import QueueModelAdmin

    _Base = admin.ModelAdmin[Any]
else:
    _Base = admin.ModelAdmin  # cannot be subscripted at run time on Django 5.2

# Any number of fewer digits is a bigint.
_MOST_DIGITS: Final = 19
# What the script says: attributes of its tag, so that they come in the language of the page.
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


class RowState(StrEnum):
    """The state of a message when its page is made."""

    SCHEDULED = "scheduled"
    DUE = "due"
    LEASED = "leased"
    EXPIRED = "expired"


class MessageRow(Protocol):
    """A message as ``as_read`` annotates it."""

    id: int
    kind: str
    key: str
    scheduled_at: datetime
    scheduled_at_initially: datetime
    created_at: datetime
    lease_id: str | None
    attempts: int
    headers: Any
    due_at: datetime | None
    first_error: str | None
    last_error: str | None
    read_at: datetime
    created_ms: int


class LetterRow(Protocol):
    """A dead letter as ``as_read`` annotates it."""

    id: int
    kind: str
    key: str
    attempts: int
    reason: str
    headers: Any
    first_error: str | None
    last_error: str | None
    scheduled_at_initially: datetime
    created_at: datetime
    died_at: datetime
    read_at: datetime


class DatabaseClock(Func):
    """The instant of the statement on the database's clock, which leases are judged by.

    Stable within a statement, so an index serves comparisons with it.
    """

    template = "(floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint - %(expressions)s)"
    arity = 1
    output_field = EpochMillisecondField()

    def __init__(self, ago: timedelta = timedelta(0)) -> None:
        super().__init__(Value(ago // MILLISECOND, output_field=BigIntegerField()))


def raw(column: str) -> ExpressionWrapper[F]:
    """Return a millisecond column as the stored integer, which no datetime's range clamps."""
    return ExpressionWrapper(F(column), output_field=BigIntegerField())


def is_id(text: str) -> bool:
    """Return whether a row can have it; by length, as Python reads no number of 4,301 digits."""
    return text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS


def find(queryset: QuerySet[Any], object_id: str) -> Any:
    """Return the row of the id in a url; None when there is none."""
    return queryset.filter(pk=object_id).first() if is_id(object_id) else None


def as_read(queryset: QuerySet[Any]) -> QuerySet[Any]:
    """Add the instant of reading and leave out what only a detail page shows."""
    annotated: QuerySet[Any] = queryset.annotate(
        read_at=DatabaseClock(), created_ms=raw("created_at")
    )
    return annotated.defer("payload", "headers", "first_error", "last_error")


def state_of(message: MessageRow) -> RowState:
    is_leased = message.lease_id is not None
    if message.scheduled_at > message.read_at:
        return RowState.LEASED if is_leased else RowState.SCHEDULED
    return RowState.EXPIRED if is_leased else RowState.DUE


AFTER: Final = "after"
_MAX_BIGINT: Final = 2**63


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
    # Order by an expression on the id, which hides the primary key from the planner: it would
    # walk that in search of the few rows of one key.
    hides_index: bool = False
    # The index has only those of which the planner sees that the column is not NULL.
    is_partial: bool = False

    def ordered(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Order, and read the column as stored: a datetime may have been clamped."""
        if self.column is not None:
            if self.is_partial:
                queryset = queryset.filter(**{f"{self.column}__gte": -_MAX_BIGINT})
            stored = F(self.column) if self.is_text else raw(self.column)
            queryset = queryset.annotate(position=stored)
        return queryset.order_by(*self.ordering())

    def ordering(self) -> list[Expression]:
        last = F("id") + 0 if self.hides_index else F("id")
        terms = [last] if self.column is None else [F(self.column), last]
        return [term.desc() if self.descending else term.asc() for term in terms]

    def cursor(self, row: Any) -> str:
        """Return where the page that ends with the row ends."""
        return str(row.id) if self.column is None else f"{row.id}.{row.position}"

    def after(self, queryset: QuerySet[Any], cursor: str) -> QuerySet[Any]:
        """Keep what follows the cursor; raise ValueError when it is not one of this order."""
        text, dot, position = cursor.partition(".")
        last = _bigint(text)
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


def _bigint(text: str) -> int:
    number = int(text)
    if not -_MAX_BIGINT <= number < _MAX_BIGINT:
        raise ValueError("out of range")
    return number


class ListAdmin(_Base):
    """A model admin whose lists refuse a NUL in their URL: PostgreSQL cannot compare it."""

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        if any("\x00" in each for _, values in request.GET.lists() for each in values):
            raise IncorrectLookupParameters("text cannot contain a NUL character")
        return super().get_changelist_instance(request)


class KeysetChangeList(ChangeList):
    """A change list that neither counts nor skips rows: each page is one bounded read."""

    model_admin: QueueModelAdmin
    result_list: list[Any]

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().__init__(request, *args, **kwargs)
        self.title = self.model_admin.list_title(request)
        # The search form repeats these as hidden fields: a key is looked for in all queues and
        # states, or an operator would conclude from a forgotten filter that it is not there.
        self.params = {}

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
        keyset = self.model_admin.keyset_of(request)
        matching = keyset.ordered(self.queryset)
        rows = list(self._from(request, matching)[: self.list_per_page + 1])
        self.result_list = rows[: self.list_per_page]
        self.model_admin.complete(request, self.result_list, self.queryset.db)
        # As many as are shown: Django offers "select all" where there are more.
        self.result_count = len(self.result_list)
        self.next_page = (
            self.get_query_string({AFTER: keyset.cursor(self.result_list[-1])})
            if len(rows) > self.list_per_page
            else ""
        )
        self.first_page = self.get_query_string() if AFTER in request.GET else ""
        self._settle()

    def _from(self, request: HttpRequest, matching: QuerySet[Any]) -> QuerySet[Any]:
        cursor = request.GET.get(AFTER)
        if cursor is None:
            return matching
        try:
            return self.model_admin.keyset_of(request).after(matching, cursor)
        except ValueError as error:
            raise IncorrectLookupParameters from error

    def _settle(self) -> None:
        """Tell Django's templates that there is one page, and nothing to count."""
        self.show_full_result_count = False
        self.show_admin_actions = bool(self.result_list)
        self.full_result_count = self.result_count  # equal, the search form says no number
        self.can_show_all = False
        self.multi_page = False
