"""Spark's filters as conditions of SQL: only those that mean the same on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from psycopg import sql as composed
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from delayed_queue.messages import EPOCH, MILLISECOND

_TEXTS: Final = {"key", "kind", "state", "lock_uuid"}
_NUMBERS: Final = {"attempts", "id"}
_TIMES: Final = {"scheduled_at", "scheduled_at_initially", "created_at", "due_at"}
_OPERATORS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "IN",
    IsNull: "IS NULL",
    IsNotNull: "IS NOT NULL",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A column, one of our operators, and what it is compared with."""

    column: str
    operator: str
    value: Any = None

    def named(self, name: str) -> tuple[composed.Composable, dict[str, Any]]:
        """Return the condition with a placeholder of that name, and what belongs there."""
        column = composed.Identifier(self.column)
        if self.operator.startswith("IS"):
            return composed.SQL("{} " + self.operator).format(column), {}
        shape = "{} = ANY ({})" if self.operator == "IN" else "{} " + self.operator + " {}"
        query = composed.SQL(shape).format(column, composed.Placeholder(name))
        return query, {name: self.value}


def condition_of(given: Filter) -> Condition | None:
    """Return the condition, or None for what Spark must check itself.

    No order of texts: the database's collation is not Spark's. No payload and no queue, which
    the database does not have in that form.
    """
    operator = _OPERATORS.get(type(given))
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if operator is None or len(path) != 1:
        return None
    column = path[0]
    if operator.startswith("IS"):
        return Condition(column, operator) if column in _TEXTS | _NUMBERS | _TIMES else None
    value = _value(column, operator, getattr(given, "value", None))
    return None if value is None else Condition(column, operator, value)


def _value(column: str, operator: str, value: Any) -> Any:
    if operator == "IN":
        values = [_value(column, "=", each) for each in value]
        return None if None in values or not values else values
    if column in _TEXTS and operator == "=" and isinstance(value, str):
        return value if "\x00" not in value else None
    if column in _NUMBERS and isinstance(value, int):
        return value
    if column in _TIMES and isinstance(value, datetime):
        return _whole_milliseconds(value)
    return None


def _whole_milliseconds(value: datetime) -> int | None:
    """Return the instant as the column has it; None for one that falls between two of them."""
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    whole, rest = divmod(aware - EPOCH, MILLISECOND)
    return None if rest else whole
