"""The end of the hub of waiting pops, at every point where a pop may be."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connections

from delayed_queue.http.api.waiting import Hub, Waiter, Wish
from tests.api.test_waiting import is_listening
from tests.processes import wait_until

Loop = asyncio.AbstractEventLoop


def find_nothing() -> Sequence[str]:
    return []


class Claim:
    """Finds nothing at the first look; from the second on it waits, and brings a job."""

    def __init__(self) -> None:
        self.looks = 0
        self.is_under_way, self.may_end = threading.Event(), threading.Event()
        self.given_back: list[Sequence[str]] = []

    def __call__(self) -> Sequence[str]:
        self.looks += 1
        if self.looks == 1:
            return []
        self.is_under_way.set()
        assert self.may_end.wait(20)
        return ["job"]


def wish(
    claim: Callable[[], Sequence[str]] = find_nothing,
    *,
    line: str = "a",
    kinds: Sequence[str] = (),
    using: str = "default",
) -> Wish[str]:
    given_back: list[Sequence[str]] = claim.given_back if isinstance(claim, Claim) else []
    return Wish(line, kinds, claim, lambda: 60.0, given_back.append, using)


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.close()


@contextmanager
def waiting(hub: Hub, *wishes: Wish[str]) -> Iterator[list[Future[Sequence[str]]]]:
    """The pops, each on an event loop of its own; all wait."""
    with ThreadPoolExecutor(len(wishes)) as pool:
        waits = [pool.submit(asyncio.run, hub.wait(each, 60)) for each in wishes]
        try:
            wait_until(lambda: hub.waiting == len(wishes))
            yield waits
        finally:
            hub.close()


def started(hub: Hub) -> tuple[Loop, threading.Thread]:
    loop, thread = hub._room._loop, hub._room._thread
    assert loop is not None
    assert thread is not None
    return loop, thread


def assert_over(loop: Loop, thread: threading.Thread) -> None:
    assert not thread.is_alive()
    assert loop.is_closed()
    assert asyncio.all_tasks(loop) == set()


def test_all_who_wait_get_nothing_and_nothing_is_left(hub: Hub):
    with waiting(hub, wish(), wish(), wish(line="b")) as waits:
        running = started(hub)
        hub.close()
        assert_over(*running)
        assert [each.result(60) for each in waits] == [[], [], []]


def test_who_waits_for_a_claim_gets_what_it_brings(hub: Hub):
    claim = Claim()
    with waiting(hub, wish(claim), wish(line="b")) as waits, ThreadPoolExecutor() as pool:
        assert claim.is_under_way.wait(20)
        running = started(hub)
        closing = pool.submit(hub.close)
        assert waits[1].result(20) == []
        assert not closing.done()
        claim.may_end.set()
        closing.result(20)
        assert_over(*running)
        assert waits[0].result(60) == ["job"]
    assert claim.given_back == []


def test_a_claim_that_takes_too_long_is_given_back(hub: Hub):
    claim = Claim()
    with waiting(hub, wish(claim)) as waits:
        assert claim.is_under_way.wait(20)
        running = started(hub)
        hub.close(patience=0)
        assert_over(*running)
        assert waits[0].result(60) == []
        claim.may_end.set()
    wait_until(lambda: claim.given_back == [["job"]])


def test_who_looks_while_it_is_closed_does_not_wait(hub: Hub):
    """Between the look and the line: it would wait where nobody ends it."""

    def close() -> Sequence[str]:
        hub.close()
        return []

    assert asyncio.run(asyncio.wait_for(hub.wait(wish(close), 60), 20)) == []
    assert hub._room._thread is None


def test_who_comes_to_the_line_after_a_drain_does_not_wait(hub: Hub):
    room = hub._room
    hub.drain()
    assert room.admit(Waiter(wish()), 60).result(20) == []


def test_who_vanishes_after_the_end_is_no_error(hub: Hub):
    with waiting(hub, wish()):
        room = hub._room
        hub.close()
        room.call(Waiter(wish()).leave)
        room.drain()


def test_closing_twice_is_harmless_and_a_later_wait_begins_anew(hub: Hub):
    for _ in range(2):
        with waiting(hub, wish()) as waits:
            room = hub._room
            hub.close()
            hub.close()
            room.close(0)
            assert waits[0].result(60) == []


@pytest.mark.django_db(transaction=True)
def test_closing_while_a_connection_is_to_be_made_anew(
    hub: Hub, other: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
):
    with waiting(hub, wish(kinds=["orders|json"])) as waits:
        wait_until(lambda: is_listening(other))
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'delayed_queue_pops' AND datname = current_database()"
        )
        wait_until(lambda: "event=listener_lost" in caplog.text)
        running = started(hub)
        hub.close()
        assert_over(*running)
        assert waits[0].result(60) == []
    assert not is_listening(other)


@pytest.fixture
def silent_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A database that takes connections and says nothing, under the alias "silent"."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        port = server.getsockname()[1]
        found = {**connections.databases["default"], "HOST": "127.0.0.1", "PORT": port}
        monkeypatch.setitem(connections.databases, "silent", found)
        yield server


def test_closing_while_a_connection_is_being_made(hub: Hub, silent_database: socket.socket):
    with waiting(hub, wish(kinds=["orders|json"], using="silent")) as waits:
        connection, _ = silent_database.accept()
        running = started(hub)
        hub.close(patience=0)
        assert_over(*running)
        assert waits[0].result(60) == []
        connection.close()
