"""Timestamps without an end: what Parquet cannot hold is refused by name, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MAX_MILLISECONDS
from delayed_queue.spark.pipeline.records import Checker, Rules
from delayed_queue.spark.pipeline.tables import Layout, Piece, Table
from tests.spark.records import check_one

pytestmark = pytest.mark.usefixtures("queue")

TABLE = Table("spark_notes", age="at")
WITHIN = Piece("1", "9")


@pytest.fixture
def notes(other: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    other.execute(
        "CREATE TABLE spark_notes (id bigint PRIMARY KEY, at timestamptz, day date, zone timestamp)"
    )
    other.execute("INSERT INTO spark_notes VALUES (1, '2020-01-01', NULL, 'infinity')")
    yield other
    other.execute("DROP TABLE spark_notes")


@pytest.mark.parametrize(
    ("row", "is_refused"),
    [
        (("2020-01-02", None), False),
        (("-infinity", None), True),
        (("2020-01-02", "infinity"), True),
        (("infinity", None), False),  # it never ages
    ],
)
def test_a_row_that_is_old_enough_is_named(
    notes: psycopg.Connection[Any], row: tuple[str, str | None], is_refused: bool
):
    notes.execute("INSERT INTO spark_notes VALUES (2, %s, %s, NULL)", row)
    layout = Layout.of(notes, TABLE)
    if not is_refused:
        layout.bounds(notes, WITHIN, MAX_MILLISECONDS, 10)
        return
    with pytest.raises(InvalidConfiguration, match="The row id = 2 of 'spark_notes'"):
        layout.bounds(notes, WITHIN, MAX_MILLISECONDS, 10)


def test_rows_that_are_left_out_may_be(notes: psycopg.Connection[Any]):
    notes.execute("INSERT INTO spark_notes VALUES (2, '-infinity', NULL, NULL)")
    layout = Layout.of(notes, Table("spark_notes", age="at", only={"id": ["1"]}))
    layout.bounds(notes, WITHIN, MAX_MILLISECONDS, 10)


@pytest.mark.parametrize(
    "when",
    [
        {"schedule_at": "infinity"},
        {"schedule_at": float("inf")},
        {"delay": "inf"},
        {"delay": float("-inf")},
        {"delay": "nan"},
    ],
)
def test_no_record_is_due_never(when: dict[str, Any]):
    found = check_one(Checker(Rules("orders")), {"key": "a", "payload": 1, **when})
    assert len(found.reasons) == 1
    assert next(iter(when)) in found.reasons[0]
