"""Full tables in an uncommitted transaction, in three states of their statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from django.db import connections

from delayed_queue.spark.source.offering import CREATE_STAGE
from tests.plans.rows import FILLS, TABLES


@pytest.fixture(scope="module")
def filled(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any
) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that sees all tables filled and never analyzed, or those of the test's module.

    Its rows are invisible to autovacuum, which cannot analyze them in the middle of a test.
    """
    with django_db_blocker.unblock():
        alias = connections["default"].copy()
        alias.connect()
    connection = alias.connection
    try:
        with connection.transaction(force_rollback=True):
            # A new file: its statistics are missing, and vanish with the transaction.
            connection.execute(f"TRUNCATE {', '.join(TABLES)}")
            connection.execute(
                "DELETE FROM pg_statistic WHERE starelid = ANY (%s::regclass[])", [list(TABLES)]
            )
            connection.execute("SET LOCAL jit = off")
            connection.execute(CREATE_STAGE)
            for rows in getattr(request.module, "FILLS", FILLS):
                connection.execute(rows)
            yield connection
    finally:
        connection.close()


# Tables that were empty at their last autovacuum. PostgreSQL has then counted no messages on many
# pages, and estimates one row for any number of messages.
_DRAIN: Final = """
UPDATE pg_class
SET reltuples = CASE WHEN oid = 'delayed_queue'::regclass THEN 0 ELSE 1 END, relpages = 100
WHERE oid IN ('delayed_queue'::regclass, 'delayed_queue_dead_letter'::regclass)
"""


@pytest.fixture(scope="module", params=["never analyzed", "drained", "analyzed"])
def tables(
    request: pytest.FixtureRequest, filled: psycopg.Connection[Any]
) -> psycopg.Connection[Any]:
    """The tables without statistics, then with those of an empty queue, then with their own.

    The order matters: neither step can be undone.
    """
    if request.param == "analyzed":
        filled.execute(f"ANALYZE {', '.join(TABLES)}")
    elif request.param == "drained":
        filled.execute(_DRAIN)
    return filled
