"""Filters of a query that PostgreSQL decides exactly as Spark does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from psycopg import sql as composed
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)

from delayed_queue.messages import EPOCH, MAX_MILLISECONDS, MILLISECOND, MIN_MILLISECONDS

_OPERATORS: Final[Mapping[type[Filter], str]] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}
_TIMES: Final = frozenset({"scheduled_at", "scheduled_at_initially", "created_at", "due_at"})


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a column with a value."""

    column: str
    operator: str
    value: Any

    def sql(self) -> composed.Composable:
        """Return the condition as SQL, its value as a literal."""
        name, value = composed.Identifier(self.column), composed.Literal(self.value)
        return composed.SQL("{} {} {}").format(name, composed.SQL(self.operator), value)


def conditions_of(filters: Iterable[Filter]) -> list[Condition]:
    """Return the filters on key, id and times; Spark applies all filters itself as well."""
    found = (_condition(each) for each in filters)
    return [each for each in found if each is not None]


def _condition(given: Filter) -> Condition | None:
    path: tuple[str, ...] = getattr(given, "attribute", ())
    operator, value = _OPERATORS.get(type(given)), getattr(given, "value", None)
    if operator is None or len(path) != 1:
        return None
    (column,) = path
    if column in _TIMES:
        value = _milliseconds(operator, value)
    elif not (_is_key(operator, value) if column == "key" else _is_id(column, value)):
        return None
    return None if value is None else Condition(column, operator, value)


def _is_key(operator: str, value: Any) -> bool:
    """Equality only: the order of a database's collation is not Spark's."""
    # PostgreSQL stores no NUL in texts.
    return operator == "=" and isinstance(value, str) and "\x00" not in value


def _is_id(column: str, value: Any) -> bool:
    return column == "id" and type(value) is int


def _milliseconds(operator: str, value: Any) -> int | None:
    """Return the milliseconds that divide stored instants as ``value`` divides Spark's."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    floored = (value - EPOCH) // MILLISECOND
    is_exact = (value - EPOCH) % MILLISECOND == MILLISECOND * 0
    # Instants outside the years 1 to 9999 are shown clamped.
    if not MIN_MILLISECONDS < floored < MAX_MILLISECONDS - 1:
        return None
    if operator == "=":
        return floored if is_exact else None
    return floored if is_exact or operator in {">", "<="} else floored + 1
