"""Rows by name, and pages of them: what a statement answered, as its store declares it.

Free of Django and of any driver: whoever sends a statement can read its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

Row = tuple[Any, ...]
N = TypeVar("N", bound=NamedTuple)
T = TypeVar("T")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Page(Generic[T, C]):
    """A page of a list, and the key to go on from; None after the last."""

    items: Sequence[T]
    next: C | None = None


def page_of(rows: Sequence[T], limit: int, key: Callable[[T], C]) -> Page[T, C]:
    """Return a page of so many rows, of which one more was asked for: it tells of a next page."""
    items = rows[:limit]
    return Page(items, key(items[-1]) if len(rows) > limit else None)


def rows_of(named: type[N], answer: Sequence[Sequence[Any]]) -> list[N]:
    """Return the rows by name; raises TypeError when they have another number of columns.

    All rows of an answer have as many, so it is asked of the first alone.
    """
    if answer:
        named._make(answer[0])
    return list(map(partial(tuple.__new__, named), answer))


def row_of(named: type[N], answer: Sequence[Sequence[Any]]) -> N:
    """Return the row of an answer that has exactly one."""
    (row,) = answer
    return named._make(row)


def first_row(named: type[N], answer: Sequence[Sequence[Any]]) -> N | None:
    """Return the first row, or None when there is none."""
    return named._make(answer[0]) if answer else None


def column_of(answer: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the values of an answer of one column, or of the first of several."""
    return [row[0] for row in answer]


def value_of(answer: Sequence[Sequence[Any]]) -> Any:
    """Return the value of an answer of one row and column, or None when there is no row."""
    return answer[0][0] if answer else None


def beside(named: type[N], answer: Iterable[Sequence[Any]]) -> list[tuple[Any, N | None]]:
    """Return each row's first value and the rest by name: None where an outer join has no row."""
    return [(first, None if rest[0] is None else named._make(rest)) for first, *rest in answer]
