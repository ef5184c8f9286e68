"""Stops and probes end while the database accepts connections and answers nothing (W20)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import psycopg
import pytest
from django.db import connection
from django.test import Client

from delayed_queue import DelayedQueue
from delayed_queue.http.api.service import readyz
from delayed_queue.http.tokens import VERBS, create_token
from example_project.postgres import EmbeddedPostgres
from tests.http.api.servers import uvicorn
from tests.http.api.test_waiting import popping, until_all_wait
from tests.support.ledger import effects
from tests.support.processes import LEAN, Process, children_of, managed, wait_until
from tests.support.programs import PRODUCTION
from tests.support.proxy import Proxy
from tests.support.sampling import sample
from tests.support.servers import private_server, stopped

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

# The contract's allowance beyond the shutdown timeout, and the time a busy machine needs to reap.
LIMIT = 5 + 4
TIMEOUT = 2


@pytest.fixture
def stallable(proxy: Proxy) -> Iterator[Proxy]:
    """The proxy of the tests; it forwards again after each test, passed or failed."""
    yield proxy
    proxy.resume()


def seconds_to_stop(process: Process) -> float:
    began_at = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.ended(90)
    return time.monotonic() - began_at


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_worker_ends_within_its_shutdown_timeout_and_five_seconds(stallable, processes):
    queue = DelayedQueue("ledger")
    arguments = ("--queue", "ledger", "--processes", processes, "--shutdown-timeout", str(TIMEOUT))
    variables = LEAN | PRODUCTION | {"DATABASE_URL": stallable.url}
    with managed("runqueueworker", "--poll-interval", "0.2", *arguments, **variables) as worker:
        queue.offer_or_update("before", 1)
        wait_until(lambda: effects()["before"] == 1)
        stallable.stall()
        assert seconds_to_stop(worker) < TIMEOUT + LIMIT
        stallable.resume()


def test_a_supervisor_watches_its_processes_while_it_recovers_what_a_dead_one_held(stallable):
    queue = DelayedQueue("ledger")
    variables = LEAN | PRODUCTION | {"DATABASE_URL": stallable.url}
    arguments = ("--queue", "ledger", "--processes", "2", "--poll-interval", "0.2")
    with managed("runqueueworker", *arguments, **variables) as worker:
        queue.offer_or_update("before", 1)
        wait_until(lambda: effects()["before"] == 1)
        wait_until(lambda: len(children_of(worker)) == 2)
        first, second = children_of(worker)
        stallable.stall()
        for pid in (first, second):
            os.kill(pid, signal.SIGKILL)
            wait_until(partial(_is_gone, worker, pid))
        wait_until(lambda: len(children_of(worker)) == 2)
        stallable.resume()
        queue.offer_or_update("after", 1)
        wait_until(lambda: effects()["after"] == 1)


def _is_gone(worker: Process, pid: int) -> bool:
    return pid not in children_of(worker)


def test_the_keeper_of_schedules_ends(stallable: Proxy) -> None:
    variables = PRODUCTION | {"DATABASE_URL": stallable.url}
    accepted = stallable.accepted
    with managed("installcron", **variables) as keeper:
        wait_until(lambda: stallable.accepted > accepted + 1)
        stallable.stall()
        assert seconds_to_stop(keeper) < LIMIT


def test_an_asgi_server_with_a_waiting_pop_ends(stallable: Proxy) -> None:
    token = create_token("consumer", verbs=VERBS, topics=["*"])
    with (
        uvicorn(url=stallable.url, POLL_INTERVAL=0.2, SHUTDOWN_TIMEOUT=TIMEOUT) as server,
        popping(server, token) as pop,
    ):
        pop()
        until_all_wait(server, 1)
        stallable.stall()
        pop()  # the token is not cached: a thread waits for the answer
        assert seconds_to_stop(server.process) < TIMEOUT + LIMIT


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedPostgres]:
    with private_server() as server:
        yield server


WORKER: Final = ("runqueueworker", "--queue", "ledger", "--shutdown-timeout", str(TIMEOUT))


COMMANDS: Final = {
    "worker": ((*WORKER, "--processes", "0"), TIMEOUT),
    "supervisor": ((*WORKER, "--processes", "2"), TIMEOUT),
    "installcron": (("installcron",), 0),
    "consumenotifications": (("consumenotifications",), TIMEOUT),
}


@pytest.mark.parametrize("name", sample(COMMANDS, "worker", "supervisor"))
def test_w20_a_process_ends_while_the_server_itself_is_stopped(own_server, name):
    """All processes of the server are stopped, so it answers neither a query nor a ping."""
    with on_server(own_server, name) as process:
        if name != "installcron":  # it waits for its tables without a session
            wait_until(lambda: has_sessions(own_server))
        wait_until(lambda: all(map(handles_sigterm, [process.pid, *children_of(process)])))
        with stopped(own_server):
            assert seconds_to_stop(process) < COMMANDS[name][1] + LIMIT


@pytest.mark.parametrize("name", sample(COMMANDS, "supervisor", "installcron"))
def test_a_process_ends_that_cannot_connect_to_a_stopped_server(own_server, name):
    with stopped(own_server), on_server(own_server, name) as process:
        wait_until(lambda: handles_sigterm(process.pid))
        assert seconds_to_stop(process) < COMMANDS[name][1] + LIMIT


def on_server(server: EmbeddedPostgres, name: str) -> AbstractContextManager[Process]:
    variables = PRODUCTION | {
        "DATABASE_URL": server.socket_url, "SHUTDOWN_SECONDS": str(TIMEOUT), "AMQP_URL": "memory://"
    }  # fmt: skip
    return managed(*COMMANDS[name][0], **variables)


def has_sessions(server: EmbeddedPostgres) -> bool:
    """True once the process has run its first statement, and waits."""
    with psycopg.connect(server.socket_url) as own:
        others = own.execute(
            "SELECT FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND datname = current_database() AND state = 'idle' AND pid <> pg_backend_pid()"
        )
        return others.rowcount > 0


def handles_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_queuehealth_answers_within_ten_seconds(stallable: Proxy) -> None:
    variables = PRODUCTION | {"DATABASE_URL": stallable.url}
    stallable.stall()
    with managed("queuehealth", "--format", "json", **variables) as probe:
        wait_until(partial(has_connected, probe, stallable.port))  # Python and Django have started
        began_at = time.monotonic()
        code, said = probe.ended(60)
        assert time.monotonic() - began_at < 10 + 4  # it is reaped late on a busy machine
    assert code == 1
    assert not json.loads(said.strip().splitlines()[-1])["healthy"]


def has_connected(process: Process, port: int) -> bool:
    found = psutil.Process(process.pid).net_connections()
    return any(each.raddr and each.raddr.port == port for each in found)


@pytest.mark.usefixtures("proxied")
@pytest.mark.urls("tests.http.api.urls")
def test_readiness_is_refused_while_the_database_is_away(proxy: Proxy, client: Client) -> None:
    proxy.refuse()
    response = client.get("/queue/readyz")
    assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")
    assert "Retry-After" in response.headers


@pytest.mark.usefixtures("proxied")
def test_readyz_answers_within_ten_seconds_and_holds_one_thread(stallable, rf):
    connection.close()
    stallable.stall()
    began_at = time.monotonic()
    answers = [readyz(rf.get("/queue/readyz")) for _ in range(2)]
    assert [each.status_code for each in answers] == [503, 503]
    assert time.monotonic() - began_at < 20
