"""Filters that go to PostgreSQL, with the same result as in Spark: without a JVM."""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from delayed_queue.messages import EPOCH, MAX_MILLISECONDS, MIN_MILLISECONDS, from_milliseconds
from delayed_queue.spark.database import bound
from delayed_queue.spark.source.filters import conditions_of
from delayed_queue.spark.source.reader import selected

COMPARISONS: Final[dict[Any, Any]] = {
    EqualTo: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
}
AT: Final = datetime(2030, 1, 1, tzinfo=UTC)


def taken(given: Filter) -> tuple[str, str, Any] | None:
    found = conditions_of([given])
    return (found[0].column, found[0].operator, found[0].value) if found else None


class TestWhichAreTaken:
    def test_keys_are_compared_for_equality_alone(self):
        assert taken(EqualTo(("key",), "a")) == ("key", "=", "a")
        # The order of a collation differs from Spark's order.
        for kind in (LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual):
            assert taken(kind(("key",), "a")) is None

    def test_ids(self):
        assert taken(GreaterThan(("id",), 3)) == ("id", ">", 3)

    @pytest.mark.parametrize(
        "given",
        [
            EqualTo(("queue",), "orders"),
            EqualTo(("payload",), "1"),
            EqualTo(("key", "part"), "a"),
            EqualTo(("key",), "a\x00"),
            EqualTo(("key",), None),
            EqualTo(("id",), "1"),
            EqualTo(("id",), True),
            EqualNullSafe(("key",), "a"),
            In(("key",), ("a", "b")),
            Not(EqualTo(("key",), "a")),
            StringStartsWith(("key",), "a"),
            EqualTo(("created_at",), AT.replace(tzinfo=None)),
            EqualTo(("created_at",), AT + timedelta(microseconds=1)),
            GreaterThan(("created_at",), datetime.min.replace(tzinfo=UTC)),
            LessThan(("created_at",), datetime.max.replace(tzinfo=UTC)),
        ],
        ids=str,
    )
    def test_all_others_are_left_to_spark(self, given: Filter):
        assert taken(given) is None


class TestTimes:
    @pytest.mark.parametrize(
        "column", ["scheduled_at", "scheduled_at_initially", "created_at", "due_at"]
    )
    def test_whole_milliseconds(self, column: str):
        at = (AT - EPOCH) // timedelta(milliseconds=1)
        assert taken(GreaterThanOrEqual((column,), AT)) == (column, ">=", at)

    @given(
        st.sampled_from(list(COMPARISONS)),
        st.datetimes(timezones=st.just(UTC)),
        st.one_of(
            st.integers(-(2**63), 2**63 - 1),
            st.integers(-2, 2),
            st.sampled_from([MIN_MILLISECONDS - 1, MAX_MILLISECONDS + 1]),
        ),
        st.booleans(),
    )
    def test_stored_ones_are_divided_as_those_that_are_shown(
        self, kind: Any, instant: datetime, stored: int, is_near: bool
    ):
        found = taken(kind(("due_at",), instant))
        if found is None:
            return
        near = (instant - EPOCH) // timedelta(milliseconds=1) + stored % 5 - 2
        stored = near if is_near else stored
        in_python = {"=": operator.eq, "<": operator.lt, ">": operator.gt}
        in_python |= {"<=": operator.le, ">=": operator.ge}
        shown = from_milliseconds(stored)
        assert in_python[found[1]](stored, found[2]) == COMPARISONS[kind](shown, instant)


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        (EqualTo(("key",), "a"), ["a"]),
        (EqualTo(("key",), "it's \\ % %(x)s"), []),
        (GreaterThanOrEqual(("id",), 2), ["b"]),
    ],
    ids=str,
)
def test_conditions_in_sql(other: psycopg.Connection[Any], given: Filter, keys: list[str]):
    rows = "SELECT * FROM (VALUES ('a', 1), ('b', 2)) AS rows (key, id)"
    query = selected(rows, ["key"], conditions_of([given]))
    assert [row[0] for row in other.execute(query)] == keys


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_a_condition_with_any_text(other: psycopg.Connection[Any], text: str):
    row = bound("SELECT %(row)s AS key", {"row": text})
    query = selected(row, ["key"], conditions_of([EqualTo(("key",), text)]))
    assert other.execute(query).fetchall() == [(text,)]
