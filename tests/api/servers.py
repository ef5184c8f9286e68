"""HTTP servers in processes of their own, on sockets that listen before they start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from tests.processes import ROOT, environment, wait_until


class Server:
    """A server process, and where it listens."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Any) -> None:
        self.process = process
        self.port = port
        self._log = log

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def connect(self, timeout: float = 30) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def answers(self) -> bool:
        connection = self.connect(5)
        try:
            connection.request("GET", "/queue/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def serving(*command: str, **settings: Any) -> Iterator[Server]:
    """Run the server command; ``{fd}`` in it is the number of the listening socket."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        variables = {
            "DJANGO_SETTINGS_MODULE": "tests.api.settings",
            "TEST_API_SETTINGS": json.dumps(settings),
        }
        process = subprocess.Popen(
            [sys.executable, *(each.format(fd=listening.fileno()) for each in command)],
            cwd=ROOT,
            env=environment() | variables,
            pass_fds=[listening.fileno()],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        server = Server(process, listening.getsockname()[1], log)
        try:
            wait_until(lambda: process.poll() is not None or server.answers(), 60)
            assert process.poll() is None, server.log()
            yield server
        finally:
            process.kill()
            process.wait(30)
            print(server.log())  # noqa: T201 - pytest shows it beside a failure
            log.close()


def uvicorn(*options: str, **settings: Any) -> Any:
    """Run uvicorn as the documentation says."""
    command = ("-m", "uvicorn", "tests.api.asgi:application", "--fd", "{fd}", "--no-access-log")
    return serving(*command, *options, **settings)


def gunicorn(*options: str, **settings: Any) -> Any:
    command = ("-m", "gunicorn", "tests.api.wsgi:application", "--bind", "fd://{fd}")
    return serving(*command, *options, **settings)
