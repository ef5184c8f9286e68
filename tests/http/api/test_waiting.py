"""Waiting pops, against a real server over real sockets (J6)."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from typing import Any

import psycopg
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.db.wakeups import channel_of
from delayed_queue.http.tokens import VERBS, create_token
from delayed_queue.models import Message
from tests.http.api.servers import LATER, Server, Shared, uvicorn
from tests.support.concurrency import raw_connection
from tests.support.processes import database_url, wait_until
from tests.support.proxies import proxied

pytestmark = pytest.mark.django_db(transaction=True)

THREADS = 4
OWN = "own_server"
# Django's own application, without our wrapper.
PLAIN_TOO = pytest.mark.parametrize("shared", ["application", "plain"], indirect=True)


@pytest.fixture
def token(transactional_db: None) -> str:
    return create_token("consumer", verbs=VERBS, topics=["*"])


@pytest.fixture(scope="module", params=["application"])
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    with Shared(lambda: uvicorn(request.param, THREADS=THREADS)) as made:
        yield made


@pytest.fixture
def server(token: str, shared: Shared) -> Server:
    """One server for all tests, with an empty line of waiting requests."""
    found = shared.server()
    until_all_wait(found, 0)
    return found


@pytest.fixture
def own_server(token: str) -> Iterator[Server]:
    """A server whose sessions are countable, by name and start time, or that ends.

    The session of the health check is older.
    """
    url = database_url()
    url += f"{'&' if '?' in url else '?'}application_name={OWN}"
    with uvicorn(url=url, THREADS=THREADS) as running:
        yield running


class Popper:
    """A client that has sent its request and not read the response."""

    def __init__(self, server: Server, token: str, *, timeout: float = 30, count: int = 1) -> None:
        self.connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
        self.connection.request(
            "POST",
            f"/queue/v1/topics/pops/pop?timeout={timeout}&count={count}",
            headers={"Authorization": f"Bearer {token}"},
        )
        self._answer: Any = None

    def has_answer(self) -> bool:
        sock: Any = self.connection.sock
        sock.setblocking(False)
        try:
            return bool(sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            sock.settimeout(20)

    def answer(self) -> tuple[int, list[dict[str, Any]]]:
        response = self.connection.getresponse()
        body = response.read()
        return response.status, json.loads(body) if body else []

    def vanish(self) -> None:
        self.connection.close()


@contextmanager
def popping(server: Server, token: str) -> Iterator[Callable[..., Popper]]:
    with ExitStack() as opened:

        def start(**more: Any) -> Popper:
            popper = Popper(server, token, **more)
            opened.callback(popper.vanish)
            return popper

        yield start


@pytest.fixture
def pop(server: Server, token: str) -> Iterator[Callable[..., Popper]]:
    with popping(server, token) as start:
        yield start


@pytest.fixture
def pop_own(own_server: Server, token: str) -> Iterator[Callable[..., Popper]]:
    with popping(own_server, token) as start:
        yield start


def is_listening(other: psycopg.Connection[Any]) -> bool:
    row = other.execute(
        "SELECT count(*) FROM pg_stat_activity "  # noqa: S608
        f"WHERE application_name = 'delayed_queue_pops' AND state = 'idle' AND {LATER}"
    ).fetchone()
    return row == (1,)


def until_all_wait(server: Server, number: int) -> None:
    wait_until(lambda: waiting(server) == number)


def waiting(server: Server) -> int:
    """Return the number of pops in line."""
    connection = server.connect()
    try:
        connection.request("GET", "/waiting")
        return int(connection.getresponse().read())
    finally:
        connection.close()


@PLAIN_TOO
def test_a_due_job_is_popped_at_once(pop: Callable[..., Popper]):
    DelayedQueue("pops").offer_or_update("a", 1)
    status, jobs = pop().answer()
    assert (status, [each["jobId"] for each in jobs]) == (200, ["a"])


def test_a_wait_that_ends_empty_is_a_204(pop: Callable[..., Popper]):
    assert pop(timeout=0.05).answer() == (204, [])
    assert pop(timeout=0).answer() == (204, [])


def test_a_job_that_becomes_due_during_the_wait_is_popped(pop: Callable[..., Popper]):
    popper = pop()
    DelayedQueue("pops").offer_or_update("a", 1, delay=timedelta(milliseconds=700))
    assert popper.answer()[0] == 200


def test_one_of_two_hundred_waiters_gets_the_one_job(server, token, pop, other):
    poppers = [pop() for _ in range(200)]
    until_all_wait(server, 200)

    DelayedQueue("pops").offer_or_update("a", 1)
    wait_until(lambda: any(each.has_answer() for each in poppers))

    until_all_wait(server, 199)
    served = [each for each in poppers if each.has_answer()]
    assert len(served) == 1
    assert served[0].answer()[1][0]["jobId"] == "a"


def test_a_job_costs_one_look_however_many_wait(token: str):
    """The claim that gets it, and an empty one before the next sleep."""
    with ExitStack() as opened:
        proxy = opened.enter_context(proxied())
        server = opened.enter_context(uvicorn(url=proxy.url, POLL_INTERVAL=60))
        poppers = [Popper(server, token)]
        # Its own, and one of the line.
        wait_until(lambda: proxy.answers.count("UPDATE 0") == 2)
        poppers += [Popper(server, token) for _ in range(99)]
        for each in poppers:
            opened.callback(each.vanish)
        until_all_wait(server, 100)
        assert proxy.answers.count("UPDATE 0") == 2, "a later pop polled"

        before = len(proxy.answers)
        DelayedQueue("pops").offer_or_update("a", 1)
        until_all_wait(server, 99)
        wait_until(lambda: proxy.answers.count("UPDATE 0") == 3)
        assert proxy.answers[before:].count("UPDATE 1") == 1


def test_waiters_hold_no_connections_listen_again_and_end_at_shutdown(
    own_server: Server, token: str, pop_own: Callable[..., Popper], other: psycopg.Connection[Any]
):
    """Within one server: it remains while its waits and its listening connection change."""
    poppers = [pop_own() for _ in range(200)]
    until_all_wait(own_server, 200)
    wait_until(lambda: sessions(other)[1] == 0)
    assert sessions(other)[0] <= THREADS + 1
    assert not any(each.has_answer() for each in poppers)

    wait_until(lambda: is_listening(other))
    other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "  # noqa: S608
        f"WHERE application_name = 'delayed_queue_pops' AND {LATER}"
    )
    wait_until(lambda: "event=listener_lost" in own_server.log())
    wait_until(lambda: is_listening(other))
    DelayedQueue("pops").offer_or_update("a", 1)
    wait_until(lambda: any(each.has_answer() for each in poppers))

    own_server.process.terminate()
    assert sorted(each.answer()[0] for each in poppers) == [200] + [204] * 199
    own_server.process.wait(20)


def sessions(other: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return the number of the server's sessions, and of the active ones."""
    row = other.execute(
        f"SELECT count(*), count(*) FILTER (WHERE state <> 'idle') "  # noqa: S608
        f"FROM pg_stat_activity "
        f"WHERE application_name IN ('{OWN}', 'delayed_queue_pops') AND {LATER}"
    ).fetchone()
    assert row is not None
    assert row[0] > 0
    return row[0], row[1]


def test_waiters_are_served_in_the_order_of_their_coming(server, token, pop):
    poppers = []
    for number in range(1, 6):
        poppers.append(pop())
        until_all_wait(server, number)
    queue = DelayedQueue("pops")
    for each in "abcde":
        queue.offer_or_update(each, 1)
    assert [each.answer()[1][0]["jobId"] for each in poppers] == list("abcde")


@PLAIN_TOO
def test_who_vanishes_leaves_the_line(server: Server, token: str, pop: Callable[..., Popper]):
    first, second = pop(), pop()
    until_all_wait(server, 2)
    first.vanish()
    until_all_wait(server, 1)

    DelayedQueue("pops").offer_or_update("a", 1)
    _, (job,) = second.answer()
    assert (job["leaseToken"], job["attempt"]) == (Message.objects.get().lease_id, 1)


def test_a_job_claimed_for_who_vanished_is_given_back(server, token, pop, other):
    """A lock holds the claim while its client disconnects."""
    first = pop()
    until_all_wait(server, 1)
    with other.transaction():
        other.execute("LOCK TABLE delayed_queue_limit IN ACCESS EXCLUSIVE MODE")
        with raw_connection() as producer:
            producer.execute(
                'INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", '
                '"scheduledAtInitially", "createdAt") '
                "VALUES ('a', 'pops|json', '1', 0, 0, 0)"
            )
            producer.execute("SELECT pg_notify(%s, '')", [channel_of("pops|json")])
        wait_until(lambda: blocked_claims(other) == 1)
        first.vanish()
        until_all_wait(server, 0)
        assert blocked_claims(other) == 1
    # A job that is not given back stays leased for a minute, and would come as attempt 2.
    status, jobs = pop().answer()
    assert (status, jobs[0]["attempt"]) == (200, 1)


def blocked_claims(other: psycopg.Connection[Any]) -> int:
    row = other.execute(
        "SELECT count(*) FROM pg_locks "
        "WHERE relation = 'delayed_queue_limit'::regclass AND NOT granted AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_no_more_pops_wait_than_allowed_and_jobs_are_found_without_notifications(token: str):
    with uvicorn(WAITERS=2, NOTIFY=False, POLL_INTERVAL=0.2) as server, ExitStack() as opened:
        poppers = [Popper(server, token) for _ in range(2)]
        for each in poppers:
            opened.callback(each.vanish)
        until_all_wait(server, 2)
        third = Popper(server, token)
        opened.callback(third.vanish)
        response = third.connection.getresponse()
        assert response.status == 503
        assert json.loads(response.read())["code"] == "too_many_waiters"
        assert response.headers["Retry-After"]
        for key in "ab":
            DelayedQueue("pops").offer_or_update(key, 1)
        assert [each.answer()[0] for each in poppers] == [200, 200]
