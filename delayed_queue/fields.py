"""Types of columns and indexes that Django lacks."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Func
from django.utils.translation import gettext_lazy as _

from delayed_queue.messages import from_milliseconds, to_milliseconds

if TYPE_CHECKING:
    _Base = models.Field[datetime | int | None, datetime]
    _Counts = models.Field[list[int], list[int]]
else:
    _Base = _Counts = models.Field


class EpochMillisecondField(_Base):
    """A BIGINT of milliseconds since 1970-01-01T00:00Z, seen from Python as an aware datetime."""

    description = _("An instant, stored as epoch milliseconds")

    def get_internal_type(self) -> str:
        return "BigIntegerField"

    def from_db_value(self, value: int | None, *args: Any) -> datetime | None:
        return None if value is None else from_milliseconds(value)

    def to_python(self, value: Any) -> Any:
        return from_milliseconds(value) if isinstance(value, int) else value

    def get_prep_value(self, value: Any) -> Any:
        value = super().get_prep_value(value)
        return to_milliseconds(value) if isinstance(value, datetime) else value


class DatabaseNow(Func):
    """The start of the statement by the database's clock, for an EpochMillisecondField."""

    template = "floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint"
    arity = 0
    output_field = EpochMillisecondField()


class CountsField(_Counts):
    """An array of integers, whose meaning is its writer's."""

    description = _("An array of integers")

    def db_type(self, connection: Any) -> str:
        return "integer[]"


class LongNamedIndex(models.Index):
    """An index under one of the seed's names, which exceed Django's portable 30 characters."""

    max_name_length = 63  # PostgreSQL's limit
