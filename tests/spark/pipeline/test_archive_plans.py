"""What the archive's statements read of a table of the operator's choice, in which it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.spark.pipeline.tables import Layout, Piece, Table
from delayed_queue.spark.store.archiving import (
    BOUNDS,
    COUNT_RANGE,
    FIRST_INFINITE,
    READ_PIECE,
    SAMPLED_KEYS,
    Template,
)
from tests.plans.explain import Plan, explain

NOTES: Final = """
CREATE TABLE spark_notes AS
SELECT n::bigint AS key, to_timestamp(n) AS at, repeat('x', 100) AS text
FROM generate_series(1, 50000) AS n;
ALTER TABLE spark_notes ADD PRIMARY KEY (key);
ANALYZE spark_notes
"""
# As the cuts are made.
BY_KEY: Final = "SET enable_sort = off"
PIECE: Final = Piece("20000", "21000", is_first=False)


@pytest.fixture
def notes(queue: DelayedQueue, other: psycopg.Connection[Any]) -> Iterator[Layout]:
    other.execute(NOTES)
    yield Layout.of(other, Table("spark_notes", "key", "at"))
    other.execute("DROP TABLE spark_notes")


def planned(
    connection: psycopg.Connection[Any], layout: Layout, template: Template, **more: Any
) -> Plan:
    statement = layout.statement(template, PIECE).as_string(None)
    return explain(connection, statement, layout.params(PIECE, 2**42, **more), generic=False)


@pytest.mark.parametrize("template", [READ_PIECE, COUNT_RANGE, FIRST_INFINITE], ids=str)
def test_a_piece_is_read_by_its_keys_alone(
    template: Template, notes: Layout, other: psycopg.Connection[Any]
) -> None:
    plan = planned(other, notes, template)
    assert plan.indexes == {"spark_notes_pkey"}, plan
    assert plan.rows_read() == 1_000, plan


def test_the_cuts_of_a_piece_walk_along_its_keys_once(
    notes: Layout, other: psycopg.Connection[Any]
) -> None:
    other.execute(BY_KEY)
    plan = planned(other, notes, BOUNDS, piece=100)
    assert plan.indexes == {"spark_notes_pkey"}, plan
    assert plan.rows_read() < 2 * 1_000, plan


def test_a_sample_looks_at_so_many_pages_and_no_more(
    notes: Layout, other: psycopg.Connection[Any]
) -> None:
    """However large the table is: here at some twenty of its nine hundred pages."""
    more = {"table": "spark_notes", "pages": 20, "parts": 4}
    statement = notes.statement(SAMPLED_KEYS).as_string(None)
    plan = explain(
        other, statement, {"lower": None, "upper": None, "cutoff": 2**42, **more}, generic=False
    )
    assert plan.buffers < 100, plan
