"""The end of the waiting_pops of waiting pops, at every point where a pop may be."""

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

from delayed_queue.http.api.waiting import Waiter, WaitingPops, Wish
from tests.http.api.test_waiting import is_listening
from tests.support.processes import wait_until

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
def waiting_pops() -> Iterator[WaitingPops]:
    made = WaitingPops()
    yield made
    made.close()


@contextmanager
def waiting(waiting_pops: WaitingPops, *wishes: Wish[str]) -> Iterator[list[Future[Sequence[str]]]]:
    """The pops, each on an event loop of its own; all wait."""
    with ThreadPoolExecutor(len(wishes)) as pool:
        waits = [pool.submit(asyncio.run, waiting_pops.wait(each, 60)) for each in wishes]
        try:
            wait_until(lambda: waiting_pops.waiting == len(wishes))
            yield waits
        finally:
            waiting_pops.close()


def started(waiting_pops: WaitingPops) -> tuple[Loop, threading.Thread]:
    loop, thread = waiting_pops.room.loop, waiting_pops.room.thread
    assert loop is not None
    assert thread is not None
    return loop, thread


def assert_over(loop: Loop, thread: threading.Thread) -> None:
    assert not thread.is_alive()
    assert loop.is_closed()
    assert asyncio.all_tasks(loop) == set()


def test_all_who_wait_get_nothing_and_nothing_is_left(waiting_pops: WaitingPops):
    with waiting(waiting_pops, wish(), wish(), wish(line="b")) as waits:
        running = started(waiting_pops)
        waiting_pops.close()
        assert_over(*running)
        assert [each.result(60) for each in waits] == [[], [], []]


def test_who_waits_for_a_claim_gets_what_it_brings(waiting_pops: WaitingPops):
    claim = Claim()
    with waiting(waiting_pops, wish(claim), wish(line="b")) as waits, ThreadPoolExecutor() as pool:
        assert claim.is_under_way.wait(20)
        running = started(waiting_pops)
        closing = pool.submit(waiting_pops.close)
        assert waits[1].result(20) == []
        assert not closing.done()
        claim.may_end.set()
        closing.result(20)
        assert_over(*running)
        assert waits[0].result(60) == ["job"]
    assert claim.given_back == []


def test_a_claim_that_takes_too_long_is_given_back(waiting_pops: WaitingPops):
    claim = Claim()
    with waiting(waiting_pops, wish(claim)) as waits:
        assert claim.is_under_way.wait(20)
        running = started(waiting_pops)
        waiting_pops.close(timeout=0)
        assert_over(*running)
        assert waits[0].result(60) == []
        claim.may_end.set()
    wait_until(lambda: claim.given_back == [["job"]])


def test_who_looks_while_it_is_closed_does_not_wait(waiting_pops: WaitingPops):
    """Between the look and the line: it would wait where nobody ends it."""

    def close() -> Sequence[str]:
        waiting_pops.close()
        return []

    assert asyncio.run(asyncio.wait_for(waiting_pops.wait(wish(close), 60), 20)) == []
    assert waiting_pops.room.thread is None


def test_who_comes_to_the_line_after_a_drain_does_not_wait(waiting_pops: WaitingPops):
    room = waiting_pops.room
    waiting_pops.drain()
    assert room.admit(Waiter(wish()), 60).result(20) == []


def test_who_vanishes_after_the_end_is_no_error(waiting_pops: WaitingPops):
    with waiting(waiting_pops, wish()):
        room = waiting_pops.room
        waiting_pops.close()
        room.call(Waiter(wish()).leave)
        room.drain()


def test_closing_twice_is_harmless_and_a_later_wait_begins_anew(waiting_pops: WaitingPops):
    for _ in range(2):
        with waiting(waiting_pops, wish()) as waits:
            room = waiting_pops.room
            waiting_pops.close()
            waiting_pops.close()
            room.close(0)
            assert waits[0].result(60) == []


@pytest.mark.django_db(transaction=True)
def test_closing_while_a_connection_is_to_be_made_anew(
    waiting_pops: WaitingPops, other: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
):
    with waiting(waiting_pops, wish(kinds=["orders|json"])) as waits:
        wait_until(lambda: is_listening(other))
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'delayed_queue_pops' AND datname = current_database()"
        )
        wait_until(lambda: "event=listener_lost" in caplog.text)
        running = started(waiting_pops)
        waiting_pops.close()
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


def test_closing_while_a_connection_is_being_made(
    waiting_pops: WaitingPops, silent_database: socket.socket
):
    with waiting(waiting_pops, wish(kinds=["orders|json"], using="silent")) as waits:
        connection, _ = silent_database.accept()
        running = started(waiting_pops)
        waiting_pops.close(timeout=0)
        assert_over(*running)
        assert waits[0].result(60) == []
        connection.close()
