"""Conditions on the rows of a reader, in SQL, and which filters of a query are such."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
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

from delayed_queue.messages import EPOCH, MAX_MILLISECONDS, MILLISECOND, MIN_MILLISECONDS

_TEMPLATES: Final = {
    **{each: f"{{column}} {each} {{value}}" for each in ("=", "<", "<=", ">", ">=")},
    "IN": "{column} = ANY ({value})",
    "IS NULL": "{column} IS NULL",
    "IS NOT NULL": "{column} IS NOT NULL",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A column, one of our operators, and what it is compared with."""

    column: str
    operator: str
    value: Any = None

    def named(self, name: str) -> tuple[composed.Composable, dict[str, Any]]:
        """Return the condition with a placeholder of that name, and what belongs there."""
        query = composed.SQL(_TEMPLATES[self.operator]).format(
            column=composed.Identifier(self.column), value=composed.Placeholder(name)
        )
        return query, {name: self.value}


def conditions_of(filters: Iterable[Filter]) -> list[Condition]:
    """Return those filters that PostgreSQL decides exactly as Spark does, in its terms."""
    found = (_condition(each) for each in filters)
    return [each for each in found if each is not None]


def _condition(given: Filter) -> Condition | None:
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1:
        return None
    if isinstance(given, IsNull | IsNotNull):
        operator = "IS NULL" if isinstance(given, IsNull) else "IS NOT NULL"
        return Condition(path[0], operator) if path[0] in _NULLABLE else None
    operator = _OPERATORS.get(type(given), "")
    make = _MAKERS.get(path[0])
    value = make(operator, getattr(given, "value", None)) if operator and make else None
    return None if value is None else Condition(path[0], operator, value)


_OPERATORS: Final[Mapping[type[Filter], str]] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "IN",
}
_NULLABLE: Final = frozenset({"lock_uuid", "headers", "due_at"})


def _text(operator: str, value: Any) -> Any:
    """Only what needs no order: that of a database's collation is not Spark's."""
    if operator == "IN":
        return _each(_text, value)
    # PostgreSQL has no NUL in texts, and so no text that would be equal.
    fits = operator == "=" and isinstance(value, str) and "\x00" not in value
    return value if fits else None


def _number(operator: str, value: Any) -> Any:
    if operator == "IN":
        return _each(_number, value)
    return value if type(value) is int else None


def _time(operator: str, value: Any) -> Any:
    """Return milliseconds that divide the stored ones as the instant divides Spark's."""
    if operator == "IN":
        return _each(_time, value)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    floored = (value - EPOCH) // MILLISECOND
    is_exact = (value - EPOCH) % MILLISECOND == MILLISECOND * 0
    # What is stored outside of the years 1 to 9999 is shown at their ends.
    if not MIN_MILLISECONDS < floored < MAX_MILLISECONDS - 1:
        return None
    if operator == "=":
        return floored if is_exact else None
    return floored if is_exact or operator in {">", "<="} else floored + 1


def _each(make: Callable[[str, Any], Any], values: Iterable[Any]) -> list[Any] | None:
    """Return the values that a column could equal, or None when one cannot be told."""
    made = [make("=", each) for each in values if each is not None]
    return None if None in made else made


_MAKERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    **dict.fromkeys(("key", "kind", "state", "lock_uuid"), _text),
    **dict.fromkeys(("id", "attempts"), _number),
    **dict.fromkeys(("scheduled_at", "scheduled_at_initially", "created_at", "due_at"), _time),
}
