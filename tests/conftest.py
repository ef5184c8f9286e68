"""The database server of the tests, started when the first test needs it.

It is left running: the next run saves its start, and concurrent runs share it.
`DJANGO_SETTINGS_MODULE=tests.settings python manage.py queuedb stop` stops it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any, Final

import hypothesis
import psycopg
import pytest
from django.conf import settings
from django.db import connections
from pytest_django import Settings

from delayed_queue.observe import signals
from tests.support.concurrency import raw_connection
from tests.support.sampling import sample
from tests.support.sessions import demand_none_is_left

# Tests of Spark without a JVM. Tests on the session of the run stay in one worker of xdist, since a
# session takes seconds and half a gigabyte. Tests that start JVMs stay in a second one. Files are
# listed by name: under pytest 9.2 the mark "xdist_group" of xdist 3.8 has no effect.
_WITHOUT_JVM: Final = (
    "tests/spark/pipeline/unit/",
    *(
        f"tests/spark/{name}.py"
        for name in (
            "source/test_answers",
            "test_driver",
            "source/test_filters",
            "source/test_leases",
            "source/test_leases_ahead",
            "source/test_leases_interleaved",
            "source/test_leases_shared",
            "source/test_ledger",
            "source/test_offering",
            "source/test_offers",
            "source/test_options",
            "source/test_ranges",
            "source/test_secrets",
            "pipeline/test_session",
            "source/test_staging",
            "pipeline/test_archive_plans",
            "pipeline/test_archive_races",
            "pipeline/test_admin_reports",
        )
    ),
)
_OWN_JVM: Final = (
    "tests/spark/test_kills.py",
    "tests/spark/test_processes.py",
    "tests/spark/pipeline/test_faults.py",
    "tests/example/test_demo_pipeline.py",
)
# Files whose tests share a slow fixture: filled tables, servers, clock changes.
_TOGETHER: Final = (
    "tests/http/api/test_asgi.py",
    "tests/http/api/test_grouping.py",
    "tests/http/api/test_waiting.py",
    "tests/admin/test_every_page.py",
    "tests/admin/test_plans.py",
    "tests/cron/test_schedules_zones.py",
    "tests/notifications/test_plans.py",
    "tests/plans/",
)
_ON_THE_SESSION: Final = "tests/spark/pipeline/test_faults.py::TestArchive"

# The number of examples of property tests: on further pairs of Python and Django, everyday, in
# `make test-all`, in `make chaos`. The first two repeat their examples in each run, so that a
# change does not fail by chance; the others search for new ones.
for _profile, _examples in (("brief", 10), ("everyday", 50), ("thorough", 500), ("soak", 2000)):
    hypothesis.settings.register_profile(
        _profile, max_examples=_examples, derandomize=_examples < 500, deadline=None
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))


def pytest_configure() -> None:
    # A shell's background process ignores Ctrl-C, and its children would too.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):  # type: ignore[misc] # untyped
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(_OWN_JVM) and not nodeid.startswith(_ON_THE_SESSION):
                return "jvm processes"
            if nodeid.startswith("tests/spark/") and not nodeid.startswith(_WITHOUT_JVM):
                return "jvm"
            if nodeid.startswith(_TOGETHER):
                return nodeid.partition("::")[0]
            return str(super()._split_scope(nodeid))

    return Scheduling(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "both_paths" in metafunc.fixturenames:
        paths = sample(["session", "cursors"], "session")
        metafunc.parametrize("both_paths", paths, indirect=True)


@pytest.fixture
def both_paths(request: pytest.FixtureRequest, settings: Settings) -> None:
    """Run the test over sessions, and again with all statements going through Django's cursors.

    Processes of the test (`tests.support.processes`) follow: they get a subclassed backend.
    """
    settings.DEBUG = request.param == "cursors"


@pytest.fixture
def other(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A second connection: to hold transactions open, to listen, to change rows."""
    with raw_connection() as connection:
        yield connection


@pytest.fixture
def admin(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A third connection, to watch and terminate the others."""
    with raw_connection() as connection:
        yield connection


@pytest.fixture
def no_other_receivers() -> Iterator[None]:
    """Disconnect the receivers of the worker's signals, such as metrics of other tests."""
    heard = (signals.leased, signals.acknowledged, signals.failed, signals.dead)
    kept = [each.receivers for each in heard]
    for each in heard:
        each.receivers = []
        each.sender_receivers_cache.clear()
    yield
    for each, receivers in zip(heard, kept, strict=True):
        each.receivers = receivers
        each.sender_receivers_cache.clear()


@pytest.fixture
def lite() -> Iterator[str]:
    """An alias that leads to SQLite."""
    connections.settings["lite"] = connections.configure_settings(
        {"default": {}, "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    )["lite"]
    yield "lite"
    del connections.settings["lite"]
    del connections["lite"]


@pytest.fixture(scope="session")
def database_server() -> None:
    """Start the database server; with xdist one of the workers does."""
    if settings.EMBEDDED_POSTGRES is not None:
        settings.EMBEDDED_POSTGRES.start()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The test database; at the end no session may use it, because it is dropped."""
    yield
    with django_db_blocker.unblock():
        demand_none_is_left()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, database_server: None
) -> None:
    """Start the server before pytest-django creates its test database there."""
