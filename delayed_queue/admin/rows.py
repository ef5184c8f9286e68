"""Rows as the admin reads them: with the database's instant of reading, and without payload."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Protocol

from django.db.models import BigIntegerField, ExpressionWrapper, F, Func, QuerySet, Value

from delayed_queue.db.fields import EpochMillisecondField
from delayed_queue.messages import MILLISECOND

# Any number of fewer digits is a bigint.
_MOST_DIGITS: Final = 19


class RowState(StrEnum):
    """Where a message stands when its page is made."""

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
