"""A session of Spark for the whole run, and the test database as Spark's executors see it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from django.db import connections

from delayed_queue import DelayedQueue
from delayed_queue.spark.connecting import VARIABLE, dsn_from_django
from delayed_queue.spark.room import TASKS
from tests.processes import ROOT, wait_until
from tests.races.concurrency import raw_connection
from tests.spark.support import QUIET

_OTHERS: Final = """
    SELECT application_name, state, query FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture(scope="session")
def dsn(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """The test database; it is left when no process of Spark is connected to it any more.

    Python workers of a session that was stopped, and servers of processes that were killed, end a
    moment later, and a database that is in use cannot be dropped.
    """
    yield dsn_from_django(connections["default"].settings_dict)
    with django_db_blocker.unblock(), raw_connection() as connection:
        connections["default"].close()
        wait_until(lambda: connection.execute(_OTHERS).fetchall() == [])


@pytest.fixture
def known(dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database in the environment of this process."""
    monkeypatch.setenv(VARIABLE, dsn)
    return dsn


@pytest.fixture
def queue(transactional_db: None, known: str) -> DelayedQueue:
    return DelayedQueue("orders")


@pytest.fixture
def other(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A connection to look at the tables, and to hold locks."""
    with raw_connection() as connection:
        yield connection


@pytest.fixture(scope="session")
def spark(dsn: str) -> Iterator[Any]:
    """One session: it takes seconds to start, and half a gigabyte."""
    from delayed_queue.spark import build_session

    os.environ[VARIABLE] = dsn
    os.environ[TASKS] = "4"
    os.environ["PYTHONPATH"] = str(ROOT)  # tasks that a test defines are found there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = build_session("tests", "local[2,4]", **QUIET)
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
    del os.environ[VARIABLE], os.environ[TASKS]


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")
