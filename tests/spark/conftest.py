"""One Spark session for the run, and the test database for its executors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from delayed_queue import DelayedQueue
from delayed_queue.spark.database import dsn_from_django
from delayed_queue.spark.settings import TASKS, VARIABLE
from tests.spark.support import QUIET
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from delayed_queue.spark.source.stream import LeasingReader


@pytest.fixture(scope="session")
def dsn(django_db_setup: None) -> str:
    """The test database."""
    return dsn_from_django(connections["default"].settings_dict)


@pytest.fixture
def known(dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database in the environment of this process."""
    monkeypatch.setenv(VARIABLE, dsn)
    return dsn


@pytest.fixture
def queue(transactional_db: None, known: str) -> DelayedQueue:
    return DelayedQueue("orders")


@pytest.fixture(scope="session")
def spark(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session: it takes seconds to start, and half a gigabyte."""
    from delayed_queue.spark import build_session

    os.environ[VARIABLE] = dsn
    os.environ[TASKS] = "4"
    os.environ["PYTHONPATH"] = str(ROOT)  # tasks defined by tests lie there
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tables = {"spark__sql__warehouse__dir": str(tmp_path_factory.mktemp("warehouse"))}
        session = build_session("tests", "local[2,4]", **QUIET, **tables)
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()
    del os.environ[VARIABLE], os.environ[TASKS]


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def source() -> Iterator[LeasingReader]:
    """A stream that leases, stopped at the end."""
    from tests.spark.leasing import reader

    made = reader()
    yield made
    made.stop()


@pytest.fixture
def after() -> Iterator[LeasingReader]:
    """The same stream in a later process."""
    from tests.spark.leasing import reader

    made = reader()
    yield made
    made.stop()
