"""A read-only database counts as an outage until it takes writes again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import psycopg
import pytest
from django.db import connection
from psycopg import sql as composed
from psycopg.conninfo import conninfo_to_dict

from delayed_queue import DelayedQueue
from delayed_queue.http.tokens import VERBS, create_token
from example_project.postgres import EmbeddedPostgres, database_url
from tests.http.api.servers import LATER, Server, gunicorn, uvicorn
from tests.support.answers import only_row
from tests.support.ledger import effects
from tests.support.processes import ROOT, wait_until
from tests.support.programs import working
from tests.support.servers import environment_on, private_server, standby_of

pytestmark = pytest.mark.django_db(transaction=True)

SERVERS: Final[dict[str, Any]] = {
    "uvicorn": partial(uvicorn, RETRIES=1),
    "gunicorn": partial(gunicorn, "--threads", "2", "--worker-class", "gthread", RETRIES=1),
}
# For handlers that open the transaction themselves, and for handlers on the event loop.
OTHERS: Final = ("exact", "awaited")
# The sessions of the program under test; those of the test are older and keep writing.
_LATER: Final = f"SELECT count(*) FROM pg_stat_activity WHERE {LATER} AND pid <> %s"  # noqa: S608
_END_LATER: Final = _LATER.replace("count(*)", "count(pg_terminate_backend(pid))")


@contextmanager
def reading_only(admin: psycopg.Connection[Any]) -> Iterator[Callable[[], int]]:
    """Make every new session read-only and end the others, as if a standby had answered.

    Yields a function that counts the sessions started since. The session of the test keeps writing.
    """
    connection.ensure_connection()
    own = [connection.connection.info.backend_pid]
    name = composed.Identifier(admin.info.dbname)
    setting = composed.SQL("ALTER DATABASE {} {} default_transaction_read_only")
    admin.execute(setting.format(name, composed.SQL("SET")) + composed.SQL(" = on"))
    try:
        admin.execute(_END_LATER, own)
        yield lambda: int(only_row(admin.execute(_LATER, own))[0])
    finally:
        admin.execute(setting.format(name, composed.SQL("RESET")))


class Caller:
    """A client that adds jobs, and a probe."""

    def __init__(self, server: Server, token: str) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def add(self, job_id: str, **more: str) -> tuple[int, str]:
        job = json.dumps({"jobId": job_id, "topic": "orders"})
        return self._ask("POST", "/queue/v1/jobs", job, {**self._headers, **more})

    def probe(self) -> tuple[int, str]:
        return self._ask("GET", "/queue/readyz")

    def _ask(
        self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        connection = self._server.connect()
        try:
            connection.request(method, path, body or None, headers or {})
            response = connection.getresponse()
            found = json.loads(response.read())
            assert response.status < 500 or int(response.headers["Retry-After"]) >= 1
            return response.status, found.get("code", "")
        finally:
            connection.close()


@pytest.mark.parametrize("name", ["uvicorn", "gunicorn"])
def test_an_api_says_that_it_is_unavailable_and_comes_back(admin, name):
    token = create_token("caller", verbs=VERBS, topics=["*"])
    with SERVERS[name]() as server:
        caller = Caller(server, token)
        assert caller.add("before") == (202, "")
        assert caller.probe() == (200, "")
        with reading_only(admin):
            # On the terminated connection, before it is replaced, it is the former.
            while (found := caller.probe()) == (503, "database_unavailable"):
                pass
            assert found == (503, "database_read_only")
            assert caller.add("a") == (503, "database_unavailable")
            assert caller.add("b", **{"Idempotency-Key": "b"}) == (503, "database_unavailable")
        # On a connection opened while the database was read-only, in each thread.
        assert [caller.add(f"after-{each}") for each in range(8)] == [(202, "")] * 8
        assert {caller.probe() for _ in range(8)} == {(200, "")}
        assert "api_request_failed" not in server.log()


@pytest.mark.parametrize(
    "queue", ["patient", *(pytest.param(each, marks=pytest.mark.long) for each in OTHERS)]
)
def test_a_worker_sits_it_out_and_says_so_once(admin: psycopg.Connection[Any], queue: str) -> None:
    messages = DelayedQueue(queue)
    messages.offer_or_update("before", "before")
    with working("--queue", queue, "--poll-interval", "0.2") as worker:
        wait_until(lambda: effects()["before"] >= 1)
        with reading_only(admin) as sessions:
            wait_until(partial(worker.has_said, "database_unavailable"))
            wait_until(sessions)
            messages.offer_or_update("meanwhile", "meanwhile")
        wait_until(lambda: effects()["meanwhile"] >= 1)
        assert worker.log().count("event=database_unavailable") == 1
        assert "Traceback" not in worker.log()
        assert worker.starts == 1


def url_of(*servers: EmbeddedPostgres, **options: str) -> str:
    """Return a URL with the servers in this order."""
    found = conninfo_to_dict(servers[0].socket_url)
    hosts = ",".join(str(each.socket_directory) for each in servers)
    url = database_url(
        user=str(found["user"]), password="", host=hosts, port=str(found["port"]),
        name=str(found["dbname"]),
    )  # fmt: skip
    return "&".join([url, *(f"{name}={value}" for name, value in options.items())])


def token_on(url: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", "queuetoken", "create", "caller", "--topic", "*",
         *(f"--verb={verb}" for verb in VERBS)],
        cwd=ROOT, env=environment_on(url), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.long
@pytest.mark.parametrize("attributes", [{}, {"target_session_attrs": "read-write"}])
def test_a_promoted_standby_is_written_to_without_a_restart(attributes: dict[str, str]) -> None:
    """The URL names the standby first: without the option libpq connects to it while it answers."""
    with private_server() as primary, standby_of(primary) as standby:
        token = token_on(primary.socket_url)
        url = url_of(standby, primary, **attributes)
        with uvicorn(url=url, RETRIES=1) as server:
            caller = Caller(server, token)
            if attributes:
                assert (caller.add("a"), caller.probe()) == ((202, ""), (200, ""))
            else:
                wait_until(lambda: caller.add("a") == (503, "database_unavailable"))
                assert caller.probe() == (503, "database_read_only")
            primary.stop()
            assert caller.add("b") == (503, "database_unavailable")
            assert caller.probe()[0] == 503
            with psycopg.connect(standby.socket_url) as connected:
                connected.execute("SELECT pg_promote()")
            wait_until(lambda: caller.add("c")[0] in {202, 409})
            assert caller.probe() == (200, "")
            assert caller.add("d") == (202, "")
            assert "api_request_failed" not in server.log()
