"""Threads with separate database connections, and ways to hold them at a point."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import psycopg
from django.db import connections

from tests.support.processes import wait_until

T = TypeVar("T")
TIMEOUT: Final = 20.0


@contextmanager
def raw_connection() -> Iterator[psycopg.Connection[Any]]:
    """A separate connection to the test database, in autocommit."""
    wrapper = connections["default"].copy()
    wrapper.connect()
    try:
        yield wrapper.connection
    finally:
        wrapper.close()


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Start the calls at the same moment, in a thread each; return their results in order."""
    barrier = threading.Barrier(len(calls), timeout=TIMEOUT)

    def run(call: Callable[[], T]) -> T:
        try:
            connections["default"].ensure_connection()
            barrier.wait()
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(run, call) for call in calls]
        return [future.result(TIMEOUT) for future in futures]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A running call in another thread, over that connection."""

    future: Future[T]
    connection: psycopg.Connection[Any]

    @property
    def pid(self) -> int:
        """The id of its server process."""
        return self.connection.info.backend_pid

    def answer(self) -> T:
        return self.future.result(TIMEOUT)


@contextmanager
def calling(call: Callable[[], T]) -> Iterator[Call[T]]:
    """Run the call in another thread, on a separate Django connection."""
    opened: Future[psycopg.Connection[Any]] = Future()

    def run() -> T:
        try:
            connections["default"].ensure_connection()
            opened.set_result(connections["default"].connection)
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        started = Call(pool.submit(run), opened.result(TIMEOUT))
        with _let_go(started):
            yield started


@contextmanager
def running(
    connection: psycopg.Connection[Any], statement: str, params: Any
) -> Iterator[Call[list[Any]]]:
    """Run the statement in another thread on that connection; its rows are the result."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: connection.execute(statement, params).fetchall())
        started = Call(future, connection)
        with _let_go(started):
            yield started


@contextmanager
def _let_go(call: Call[Any]) -> Iterator[None]:
    """End a blocked call of a failed test, which would otherwise wait for it."""
    try:
        yield
    except BaseException:
        call.connection.cancel_safe()
        raise


def wait_until_blocked(admin: psycopg.Connection[Any], call: Call[Any]) -> None:
    """Return once the call waits for a lock; fail if it returns instead."""

    def is_blocked() -> bool:
        assert not call.future.done(), f"it did not wait, and answered {call.future.result()!r}"
        row = admin.execute("SELECT cardinality(pg_blocking_pids(%s))", [call.pid]).fetchone()
        return row is not None and row[0] > 0

    wait_until(is_blocked, TIMEOUT)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds
