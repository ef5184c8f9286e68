"""Filters pushed to the database with ``pushFilters``, seen in its log; opt-in only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from delayed_queue.spark.source.reader import BY_PAGES
from tests.spark.support import with_jvm
from tests.support.sampling import sample
from tests.support.servers import private_server

pytestmark = [*with_jvm, pytest.mark.slow]

CONF = "spark.sql.python.filterPushdown.enabled"
ROWS = 60
AT = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass
class Logged:
    """A server that logs each statement, with a queue of sixty messages."""

    url: str
    log: Path

    @contextmanager
    def reads(self) -> Iterator[list[str]]:
        """Yield the conditions of the reads within the block; they are complete at its end."""
        before = self.log.stat().st_size
        found: list[str] = []
        yield found
        with self.log.open("rb") as log:
            log.seek(before)
            text = log.read().decode()
        # A read goes page by page, see BY_PAGES.
        assert text.count(BY_PAGES) == text.count(") AS messages WHERE ")
        parts = (each.partition(") AS messages WHERE ")[2] for each in text.split("LOG:  "))
        lines = (each.strip().splitlines()[0] for each in parts if each)
        found += [each.removesuffix(") TO STDOUT (FORMAT binary)") for each in lines]


@pytest.fixture(scope="module")
def logged() -> Iterator[Logged]:
    with private_server() as server:
        with psycopg.connect(server.socket_url, autocommit=True) as connection:
            name = connection.info.dbname
            connection.execute(
                """INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt",
                    "scheduledAtInitially", "createdAt", "lockUuid", attempts)
                SELECT 'k' || n, 'orders|json', '1', at, at, at,
                    CASE WHEN n %% 10 = 0 THEN 'lease' END, n %% 4
                FROM (SELECT n, %s::bigint + n AS at FROM generate_series(0, %s) AS n) AS rows""",
                (int(AT.timestamp() * 1000), ROWS - 1),
            )
            connection.execute(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'")
        yield Logged(server.socket_url, server.home / "server.log")


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    """Spark pushes filters down."""
    spark.conf.set(CONF, "true")
    yield
    spark.conf.unset(CONF)


def frame(spark: Any, logged: Logged, **options: str) -> Any:
    given = {"queue": "orders", "dsn": logged.url, "numPartitions": "2", **options}
    return spark.read.format("delayed_queue").options(**given).load()


MILLISECONDS = int(AT.timestamp() * 1000)
KIND = "\"kind\" = 'orders|json'"


@pytest.mark.parametrize(
    ("condition", "sent"),
    sample(
        [
            ("key = 'k7'", "\"key\" = 'k7'"),
            ("key IN ('k7', 'k8', 'nothing')", ""),
            ("attempts >= 3 AND id < 20", '"id" < 20'),
            (
                "created_at > timestamp'2030-01-01 00:00:00.0105'",
                f'"created_at" > {MILLISECONDS + 10}',
            ),
            (
                "scheduled_at BETWEEN timestamp'2030-01-01' AND timestamp'2030-01-01 00:00:00.005'",
                f'"scheduled_at" >= {MILLISECONDS} AND "scheduled_at" <= {MILLISECONDS + 5}',
            ),
            ("length(payload) = 1 AND key = 'k7'", "\"key\" = 'k7'"),
            ("key > 'k5' OR attempts = 1", ""),
        ],
        ("attempts >= 3 AND id < 20", '"id" < 20'),
        ("length(payload) = 1 AND key = 'k7'", "\"key\" = 'k7'"),
    ),
)
@pytest.mark.usefixtures("pushing")
def test_the_database_filters(spark: Any, logged: Logged, condition: str, sent: str):
    expected = sorted(row.key for row in frame(spark, logged).where(condition).collect())
    assert len(expected) < ROWS
    with logged.reads() as reads:
        found = frame(spark, logged, pushFilters="true").where(condition).collect()
    assert sorted(row.key for row in found) == expected
    assert len(reads) == 2
    assert {each.replace("E'", "'") for each in reads} == {f"{KIND} AND {sent}" if sent else KIND}


@pytest.mark.long
def test_where_spark_hands_none_over_the_query_runs(spark: Any, logged: Logged):
    """Spark's default, under which it fails a reader that could take some filters."""
    with logged.reads() as reads:
        asked = frame(spark, logged, pushFilters="true")
        assert asked.where("key = 'k7'").count() == 1
        assert asked.count() == ROWS
    assert set(reads) == {KIND}


@pytest.mark.usefixtures("pushing")
def test_without_the_option_none_is_taken(spark: Any, logged: Logged):
    """Queries on one frame do not affect each other, even if Spark pushes filters."""
    with logged.reads() as reads:
        asked = frame(spark, logged)
        assert asked.where("key = 'k7'").count() == 1
        assert asked.count() == ROWS
        assert asked.where("key = 'k7'").union(asked.where("key = 'k8'")).count() == 2
    assert set(reads) == {KIND}
