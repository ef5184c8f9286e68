"""How a range of ids is read, on PostgreSQL and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from delayed_queue.spark.database import Session, connect
from delayed_queue.spark.options import parse_options
from delayed_queue.spark.reader import BY_PAGES, wrap
from delayed_queue.spark.store.streaming import ID_RANGE, READ_RANGE
from tests.spark.support import job, offer, rows

pytestmark = pytest.mark.usefixtures("queue")

KEYS = [f"{each * 7919 % 10_007:05}" for each in range(5000)]


@pytest.fixture(params=["adbc", "psycopg"])
def session(request: pytest.FixtureRequest, known: str) -> Iterator[Session]:
    made = connect(parse_options({"driver": request.param}), reads_rows=True)
    yield made
    made.close()


def test_each_page_is_visited_once(session: Session, other: psycopg.Connection[Any]):
    """Of tasks that write at once, the ids are on many pages in turns."""
    offer(job(), [rows(KEYS, "1" * 100)])
    other.execute("ANALYZE delayed_queue")
    statement, params = wrap(READ_RANGE, ["id", "payload"], [])
    session.run(BY_PAGES)
    (first,) = session.fetch(ID_RANGE, {"now": None})[0][:1]
    params |= {"first": first, "last": first + 1000, "now": 0}
    plan = "\n".join(row[0] for row in session.fetch(f"EXPLAIN {statement}", params))
    assert "Bitmap Heap Scan" in plan
    session.rollback()
    assert session.fetch("SELECT current_setting('enable_indexscan')", {}) == [("on",)]
