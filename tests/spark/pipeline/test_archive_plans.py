"""The plans of the archive's statements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.spark.pipeline.tables import Layout, Range, Table
from delayed_queue.spark.store.archiving import READ_OLD, SAMPLED_KEYS
from tests.plans.explain import explain

NOTES: Final = """
CREATE TABLE spark_notes AS
SELECT n::bigint AS id, to_timestamp(n) AS at, repeat('x', 100) AS text
FROM generate_series(1, 50000) AS n;
ALTER TABLE spark_notes ADD PRIMARY KEY (id);
ANALYZE spark_notes
"""
RANGE: Final = Range("20000", "21000")


@pytest.fixture
def notes(queue: DelayedQueue, other: psycopg.Connection[Any]) -> Iterator[Layout]:
    other.execute(NOTES)
    yield Layout.of(other, Table("spark_notes", "at"))
    other.execute("DROP TABLE spark_notes")


def test_a_range_is_read_by_its_keys_alone(notes: Layout, other: psycopg.Connection[Any]) -> None:
    statement = notes.statement(READ_OLD, RANGE).as_string(None)
    params = {"lower": RANGE.lower, "upper": RANGE.upper, "cutoff": 2**42}
    plan = explain(other, statement, params, generic=False)
    assert plan.indexes == {"spark_notes_pkey"}, plan
    assert plan.rows_read() == 1_000, plan


def test_a_sample_looks_at_so_many_pages_and_no_more(
    notes: Layout, other: psycopg.Connection[Any]
) -> None:
    """For any size of the table: here at some twenty of its nine hundred pages."""
    params = {"table": "spark_notes", "pages": 20, "shares": [0.25, 0.5, 0.75], "cutoff": 2**42}
    statement = notes.statement(SAMPLED_KEYS).as_string(None)
    plan = explain(other, statement, params, generic=False)
    assert plan.buffers < 100, plan
