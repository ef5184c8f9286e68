"""Clients with the standard library alone: threads, and calls of an HTTP API."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from django.db import connection

THREADS: Final = 16
T = TypeVar("T")


class Threads(ThreadPoolExecutor):
    """Threads of this process; ``over`` is set at the end of the block, so that they stop."""

    def __init__(self) -> None:
        super().__init__(THREADS)
        self.over = threading.Event()
        self._started: list[Future[None]] = []

    def __exit__(self, *exc_info: Any) -> None:
        self.over.set()
        super().__exit__(*exc_info)

    def start(self, target: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            with closing(connection):
                target(*arguments)

        self._started.append(self.submit(run))

    def play(
        self, do: Callable[[T], object], times: Sequence[tuple[float, T]], threads: int = 1
    ) -> None:
        """Call ``do`` for each thing at its Unix time, from a number of threads."""

        def run(start: int) -> None:
            for at, thing in times[start::threads]:
                if self.over.wait(max(at - time.time(), 0)):
                    return
                do(thing)

        for start in range(threads):
            self.start(run, start)

    @property
    def are_done(self) -> bool:
        return all(each.done() for each in self._started)

    @property
    def error(self) -> BaseException | None:
        """The first error of a thread; None if none has failed."""
        ended = (each.exception() for each in self._started if each.done())
        return next(filter(None, ended), None)


class Client:
    """Calls an API with a token, from any thread."""

    def __init__(self, address: str, token: str) -> None:
        found = urlsplit(address)
        self._host, self._prefix, self._token = found.netloc, found.path, token

    def call(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        """Return the status and the JSON of the answer; bytes are sent as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        with closing(http.client.HTTPConnection(self._host, timeout=70)) as connected:
            connected.request(method, self._prefix + path, data if body else None, headers)
            response = connected.getresponse()
            text = response.read()
        return response.status, json.loads(text) if text else None
