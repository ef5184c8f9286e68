"""Rows of the admin, annotated with the instant of reading."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from django.db.models import BigIntegerField, ExpressionWrapper, F, Func, QuerySet, Value

from delayed_queue.fields import EpochMillisecondField
from delayed_queue.messages import MILLISECOND

MAX_BIGINT: Final = 2**63
# Every number with fewer digits is a bigint.
_MAX_DIGITS: Final = 19


class RowState(StrEnum):
    """The state of a message at the instant of reading."""

    SCHEDULED = "scheduled"
    DUE = "due"
    LEASED = "leased"
    EXPIRED = "expired"


class DatabaseClock(Func):
    """The instant of the statement on the database's clock, which decides about leases.

    Stable within a statement, so an index serves comparisons with it.
    """

    template = "(floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint - %(expressions)s)"
    arity = 1
    output_field = EpochMillisecondField()

    def __init__(self, ago: timedelta = timedelta(0)) -> None:
        super().__init__(Value(ago // MILLISECOND, output_field=BigIntegerField()))


def raw(column: str) -> ExpressionWrapper[F]:
    """Return a millisecond column as stored, beyond the range of a datetime."""
    return ExpressionWrapper(F(column), output_field=BigIntegerField())


def is_id(text: str) -> bool:
    """True for a possible id. Length first: Python refuses to parse 4,301 digits."""
    return text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS


def find(queryset: QuerySet[Any], object_id: str) -> Any:
    """Return the row of an id from a URL, or None."""
    return queryset.filter(pk=object_id).first() if is_id(object_id) else None


def as_read(queryset: QuerySet[Any]) -> QuerySet[Any]:
    """Add the instant of reading; defer the columns of the detail page."""
    annotated: QuerySet[Any] = queryset.annotate(
        read_at=DatabaseClock(), created_ms=raw("created_at")
    )
    return annotated.defer("payload", "headers", "first_error", "last_error")


def state_of(message: Any) -> RowState:
    """Return the state of a message that ``as_read`` has annotated."""
    is_leased = message.lease_id is not None
    if message.scheduled_at > message.read_at:
        return RowState.LEASED if is_leased else RowState.SCHEDULED
    return RowState.EXPIRED if is_leased else RowState.DUE
