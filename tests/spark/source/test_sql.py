"""A queue in Spark SQL: working forms, and forms that would use another queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from delayed_queue import DelayedQueue
from tests.spark.support import with_jvm
from tests.support.sampling import sample

pytestmark = [*with_jvm, pytest.mark.usefixtures("queue")]

Sql = Callable[[str], Any]


@pytest.fixture
def sql(spark: Any, queue: DelayedQueue) -> Iterator[Sql]:
    """Run statements on a table and a view over a queue of three, beside another queue."""
    for n in range(3):
        queue.offer_or_update(f"k{n}", n)
    DelayedQueue("beta").offer_or_update("other", 1)

    def run(text: str) -> Any:
        return spark.sql(text).collect()

    run("CREATE TEMPORARY VIEW v USING delayed_queue OPTIONS (queue 'orders')")
    run("CREATE TABLE t (key STRING, payload STRING) USING delayed_queue OPTIONS (queue 'orders')")
    yield run
    for each in ("VIEW v", "TABLE t", "TABLE IF EXISTS found"):
        run(f"DROP {each}")


def test_forms_that_say_the_queue(sql: Sql):
    assert sql("SELECT count(*) FROM t WITH (queue='orders')") == [(3,)]
    assert sql("SELECT key FROM t WITH (kind='beta|json')") == [("other",)]
    assert sql("SELECT count(*) FROM t WITH (queue='nosuch')") == [(0,)]
    assert sql("SELECT count(*) FROM t WITH (allQueues='true')") == [(4,)]
    assert sql("SELECT count(*) FROM v") == [(3,)]
    sql("INSERT INTO t WITH (queue='orders') VALUES ('k3', '{}')")
    assert sql("SELECT payload FROM t WITH (queue='orders') WHERE key = 'k3'") == [("{}",)]


@pytest.mark.parametrize(
    "statement",
    sample(
        ["SELECT count(*) FROM t", "SELECT * FROM t", "INSERT INTO t VALUES ('x', '1')"],
        "SELECT count(*) FROM t",
        "INSERT INTO t VALUES ('x', '1')",
    ),
)
def test_without_a_queue_it_is_refused_and_says_how(sql: Sql, statement: str):
    """Spark passes the table's OPTIONS to no source: it would read all queues."""
    with pytest.raises(Exception, match=r"WITH \(queue='orders'\)"):
        sql(statement)
    assert sql("SELECT count(*) FROM t WITH (allQueues='true')") == [(4,)]


def test_the_catalogs_own_properties_are_passed_over(sql: Sql, tmp_path: Any):
    """Without columns Spark passes them, to infer the schema."""
    sql(
        "CREATE TABLE found USING delayed_queue OPTIONS (queue 'orders') COMMENT 'orders' "
        f"LOCATION '{tmp_path}'"
    )
    assert sql("SELECT queue, attempts FROM found WITH (queue='beta')") == [("beta", 0)]


def test_a_frame_without_a_queue_is_refused(sql: Sql, spark: Any):
    reader = spark.read.format("delayed_queue")
    with pytest.raises(Exception, match="Name the queue to read"):
        reader.load().count()
    with pytest.raises(Exception, match="allQueues, not both"):
        reader.option("queue", "orders").option("allQueues", "true").load()
