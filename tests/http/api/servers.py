"""HTTP servers in separate processes, on ports of their choice."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.client import HTTPConnection
from typing import Any, Final

from tests.support.processes import Process, environment, killed_at_last, wait_until

_PORT: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")

# The sessions of a server that started after the test's: a server killed before may have some left.
LATER: Final = """
    datname = current_database()
    AND backend_start > (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())
"""


class Server:
    """A server process, and its address."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def port(self) -> int:
        found = _PORT.search(self.log())
        return int(found[1]) if found else 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.process.said()

    def connect(self, timeout: float = 30) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def answers(self) -> bool:
        if not self.port:
            return False
        connection = self.connect(5)
        try:
            connection.request("GET", "/queue/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def serving(*command: str, url: str | None = None, **settings: Any) -> Iterator[Server]:
    """Run the server command; it chooses a free port and logs it.

    At the end kill its workers with it: those of gunicorn would run for another half minute.
    """
    variables = {
        "DJANGO_SETTINGS_MODULE": "tests.http.api.settings",
        "TEST_API_SETTINGS": json.dumps(settings),
    }
    env = environment() | variables | ({"DATABASE_URL": url} if url else {})
    with killed_at_last(Process(sys.executable, *command, env=env)) as process:
        server = Server(process)
        wait_until(lambda: process.poll() is not None or server.answers())
        assert process.poll() is None, server.log()
        yield server


# Not `--fd`: uvicorn takes such a socket for one of another family, for which asyncio keeps Nagle's
# algorithm. Each answer would then wait 40 ms for an acknowledgement.
def uvicorn(application: str = "application", **settings: Any) -> Any:
    """Run uvicorn as documented."""
    place = f"tests.http.api.asgi:{application}"
    return serving("-m", "uvicorn", place, "--port", "0", "--no-access-log", **settings)


def gunicorn(*options: str, **settings: Any) -> Any:
    command = ("-m", "gunicorn", "tests.http.api.wsgi:application", "--bind", "127.0.0.1:0")
    return serving(*command, *options, **settings)


class Shared:
    """A server for the tests of a module, started for the first of them.

    Tests that count its sessions, or stop it, start their own.
    """

    def __init__(self, start: Callable[[], AbstractContextManager[Server]]) -> None:
        self._start = start
        self._stack = ExitStack()
        self._server: Server | None = None

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def server(self) -> Server:
        """Return the server; a test has set up the database by now."""
        if self._server is None:
            self._server = self._stack.enter_context(self._start())
        return self._server
