"""Connections with a session, and state left on the project's connections (R1, R3, R4, W21)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.db.backends.postgresql.base import Cursor, DatabaseWrapper
from django.test.utils import CaptureQueriesContext

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.db.session import MAX_PREPARED, session_of
from delayed_queue.db.sql import ONE_PLAN
from delayed_queue.db.statements import fetch
from delayed_queue.models import Message
from delayed_queue.observe import signals
from tests.support.operations import PAST
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with
from tests.support.tenants.base import schema

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def new_connection(transactional_db: None) -> Iterator[None]:
    connection.close()
    yield
    connections["default"].close()


@pytest.fixture
def orders() -> DelayedQueue:
    return DelayedQueue("orders")


def use(queue: DelayedQueue) -> None:
    """Offer, poll and consume once each, with failing and working effects."""
    for key in ("a", "b", "c"):
        queue.offer_or_update(key, 1, PAST)
    envelope = queue.try_poll()
    assert envelope is not None
    assert envelope.acknowledge()
    with suppress(LookupError), queue.consume() as envelope:
        assert envelope is not None
        raise LookupError
    with queue.consume() as envelope:
        assert envelope is not None


@contextmanager
def alias_with(**changes: Any) -> Iterator[None]:
    """Replace settings of the alias for the duration of the block."""
    kept = connections.settings["default"]
    connections["default"].close()
    connections.settings["default"] = {**kept, **changes}
    connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        connections["default"].close()
        getattr(connections["default"], "close_pool", lambda: None)()
        connections.settings["default"] = kept
        connections["default"] = connections.create_connection("default")


# R1: watched connections


@contextmanager
def wrapped() -> Iterator[list[str]]:
    seen: list[str] = []

    def wrapper(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        seen.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(wrapper):
        yield seen


@contextmanager
def captured() -> Iterator[list[str]]:
    seen: list[str] = []
    with CaptureQueriesContext(connection) as queries:
        yield seen
        seen += [each["sql"] for each in queries.captured_queries]


@contextmanager
def patched() -> Iterator[list[str]]:
    """Replace a method of the class under its own name, as instruments do."""
    seen: list[str] = []
    kept = DatabaseWrapper.create_cursor

    @functools.wraps(kept)
    def create_cursor(self: Any, name: str | None = None) -> Any:
        seen.append("a cursor")
        return kept(self, name)

    DatabaseWrapper.create_cursor = create_cursor  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        DatabaseWrapper.create_cursor = kept  # type: ignore[method-assign]


@contextmanager
def with_cursors_of_the_project() -> Iterator[list[str]]:
    seen: list[str] = []

    class Watched(Cursor):
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(str(query))
            return super().execute(query, *args, **kwargs)  # type: ignore[misc] # untyped

    options = {**connection.settings_dict["OPTIONS"], "cursor_factory": Watched}
    with alias_with(OPTIONS=options):
        yield seen


@pytest.mark.parametrize("watched", [wrapped, captured, patched, with_cursors_of_the_project])
def test_r1_what_watches_a_connection_sees_each_statement(orders, watched):
    with watched() as seen:
        use(orders)
    assert len(seen) > 8
    session = session_of(connections["default"])
    assert session is not None  # again, without a watcher


def test_r1_transactional_handlers_work_under_debug(orders, settings):
    settings.DEBUG = True
    for number in range(30):
        orders.offer_or_update(f"k{number}", number, PAST)
    worker = worker_with(handler_of("orders", lambda envelope: None, transactional=True))
    with running(worker):
        wait_until(lambda: worker.counts.done == 30)
    assert not Message.objects.exists()


# R3: tenants by schema


@pytest.fixture
def tenants() -> Iterator[None]:
    """Two schemas, each with its own queue."""
    with connection.cursor() as cursor:
        for each in ("t1", "t2"):
            cursor.execute(f"CREATE SCHEMA {each}")
            cursor.execute(f"CREATE TABLE {each}.delayed_queue (LIKE delayed_queue INCLUDING ALL)")
            cursor.execute(
                f"CREATE TABLE {each}.delayed_queue_dead_letter"
                " (LIKE delayed_queue_dead_letter INCLUDING ALL)"
            )
    with alias_with(ENGINE="tests.support.tenants"):
        yield
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA t1, t2 CASCADE")


def keys_in(tenant: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT "pKey" FROM {tenant}.delayed_queue ORDER BY 1')  # noqa: S608
        return [row[0] for row in cursor.fetchall()]


def test_r3_a_message_goes_to_the_table_of_its_tenant(orders: DelayedQueue, tenants: None) -> None:
    """Also on a connection that served another tenant before, alone or in a batch."""
    for tenant in ("t1", "t2", "t1"):
        token = schema.set(f"{tenant}, public")
        try:
            orders.offer_or_update(f"of {tenant}", 1, PAST)
            with transaction.atomic():
                orders.offer_or_update(f"{tenant} too", 1, PAST)
        finally:
            schema.reset(token)
    assert keys_in("t1") == ["of t1", "t1 too"]
    assert keys_in("t2") == ["of t2", "t2 too"]
    token = schema.set("t2, public")
    try:
        with orders.consume() as envelope:
            assert envelope is not None
            assert envelope.key == "of t2"
    finally:
        schema.reset(token)
    assert keys_in("t1") == ["of t1", "t1 too"]
    assert not keys_in("public")


# W21: a server session belongs to its current holder

LEFT = "SELECT count(*) FROM pg_prepared_statements"
SETTINGS = ("plan_cache_mode", "enable_seqscan", "jit", "default_transaction_isolation")


def state_of_session() -> dict[str, Any]:
    with connection.cursor() as cursor:
        found: dict[str, Any] = {}
        for name in SETTINGS:
            cursor.execute(f"SHOW {name}")
            found[name] = cursor.fetchone()[0]
        cursor.execute("SELECT * FROM pg_listening_channels()")
        return {**found, "channels": cursor.fetchall()}


@pytest.fixture
def pool() -> Iterator[None]:
    options = {**connection.settings_dict["OPTIONS"], "pool": {"min_size": 1, "max_size": 20}}
    with alias_with(OPTIONS=options, CONN_MAX_AGE=0):
        yield


def test_w21_a_pool_gets_its_connections_back_as_they_were(orders, pool):
    before = state_of_session()
    connection.close()
    handled: list[str] = []
    worker = worker_with(
        handler_of("orders", lambda each: handled.append(each.key)),
        handler_of("exact", lambda each: handled.append(each.key), transactional=True),
    )
    with running(worker):
        for number in range(100):
            orders.offer_or_update(f"k{number}", number, PAST)
            DelayedQueue("exact").offer_or_update(f"x{number}", number, PAST)
            connection.close()  # back to the pool, as after each request
        wait_until(lambda: worker.counts.done == 200)
    assert sorted(handled) == sorted(f"{prefix}{n}" for prefix in "kx" for n in range(100))
    pooled: Any = connections["default"]
    held = [pooled.pool.getconn() for _ in range(pooled.pool.get_stats()["pool_size"])]
    for raw in held:
        assert raw.execute(LEFT).fetchone() == (0,)
        assert raw.execute("SELECT * FROM pg_listening_channels()").fetchall() == []
        assert raw.execute("SHOW enable_seqscan").fetchone() == (before["enable_seqscan"],)
        pooled.pool.putconn(raw)


def test_w21_nothing_is_set_on_a_connection_of_the_project(orders: DelayedQueue) -> None:
    before = state_of_session()
    use(orders)
    orders.poll()
    assert state_of_session() == before


def test_w21_receivers_in_a_worker_query_on_a_connection_of_the_project(orders):
    before = state_of_session()
    found: list[dict[str, Any]] = []

    def look(envelopes: list[Envelope], **_: object) -> None:
        found.append(state_of_session())

    signals.leased.connect(look)
    try:
        orders.offer_or_update("a", 1, PAST)
        worker = worker_with(handler_of("orders", lambda envelope: None))
        with running(worker):
            wait_until(lambda: worker.counts.done == 1)
    finally:
        signals.leased.disconnect(look)
    assert found == [before]


def test_w21_two_wrappers_may_hold_one_connection_in_turn(orders: DelayedQueue) -> None:
    """As a third party's pool lends it."""
    orders.offer_or_update("a", 1, PAST)
    lent = connection.connection
    other: Any = connections.create_connection("default")
    connections["default"] = other
    other.ensure_connection()
    own, other.connection = other.connection, lent
    orders.offer_or_update("b", 1, PAST)
    own.close()
    assert Message.objects.count() == 2
    assert lent.execute(LEFT).fetchone() == (2,)  # the offer and its NOTIFY


def test_prepared_statements_are_limited() -> None:
    for number in range(MAX_PREPARED + 20):
        statement = f"SELECT {number}, %(value)s::integer"
        ONE_PLAN.add(statement)
        try:
            for value in (1, 2):
                assert fetch("default", statement, {"value": value}) == [(number, value)]
        finally:
            ONE_PLAN.discard(statement)
    assert connection.connection.execute(LEFT).fetchone() == (MAX_PREPARED,)


def test_cursors_are_used_where_psycopg_lacks_what_a_session_needs(orders, monkeypatch, caplog):
    monkeypatch.delattr(psycopg.generators, "fetch")
    use(orders)
    assert session_of(connections["default"]) is None
    lines = [each.getMessage() for each in caplog.records if "psycopg_differs" in each.getMessage()]
    assert len(lines) == 1
    assert "missing=generators.fetch" in lines[0]
