"""Sessions left on the test database before it is dropped."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import psycopg
from django.db import connections

from tests.support.concurrency import raw_connection
from tests.support.processes import wait_until

# The backends of killed processes end a moment later, those of Spark's workers too.
TIMEOUT: Final = 30.0
_OTHERS: Final = """
SELECT pid, application_name, state, backend_start, left(query, 200)
FROM pg_stat_activity
WHERE datname = current_database()
    AND pid <> pg_backend_pid()
    AND backend_type = 'client backend'
"""


def demand_none_is_left() -> None:
    """Wait until no other session is left; fail with the names of those that stay.

    It also terminates them, so that the database can be dropped. That is the last resort: each test
    closes its connections, or kills its processes and waits for them.
    """
    connections["default"].close()
    with raw_connection() as connection:
        try:
            wait_until(lambda: not connection.execute(_OTHERS).fetchall(), TIMEOUT)
        except AssertionError:
            named = list(_named(connection.execute(_OTHERS).fetchall()))
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            raise AssertionError("Sessions were left open:\n" + "\n".join(named)) from None


def _named(rows: list[tuple[Any, ...]]) -> Iterator[str]:
    own = set(_pids_of_this_process())
    for pid, name, state, began_at, query in rows:
        owner = "this process" if pid in own else "another process"
        yield f"{pid} of {owner}, {name or 'without a name'}, {state} since {began_at}: {query}"


def _pids_of_this_process() -> Iterator[int]:
    for each in gc.get_objects():
        # type(), because a weak proxy of a dead object raises on everything else.
        if issubclass(type(each), psycopg.Connection | psycopg.AsyncConnection):
            with suppress(psycopg.OperationalError):  # closed
                yield each.info.backend_pid
