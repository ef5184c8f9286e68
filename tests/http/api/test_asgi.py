"""The wrapper around Django's ASGI application, over real sockets (J14, R8)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import psycopg
import pytest

from delayed_queue.http.tokens import VERBS, create_token
from tests.http.api.servers import LATER, Server, Shared, uvicorn
from tests.support.concurrency import raw_connection
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

KIB: Final = 1024


@pytest.fixture
def token(transactional_db: None) -> str:
    return create_token("caller", verbs=VERBS, topics=["*"])


def serving() -> AbstractContextManager[Server]:
    running: AbstractContextManager[Server] = uvicorn(
        BODY_BYTES=2 * KIB, BULK_BYTES=8 * KIB, THREADS=3
    )
    return running


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    with Shared(serving) as shared:
        yield shared


@pytest.fixture
def server(token: str, shared: Shared) -> Server:
    return shared.server()


@pytest.fixture
def own_server(token: str) -> Iterator[Server]:
    """The test's own server, whose sessions started after the test's."""
    with serving() as running:
        yield running


def head(token: str, *lines: str, path: str = "/orders/v1/orders") -> bytes:
    fixed = (
        f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json",
        f"Authorization: Bearer {token}",
    )  # fmt: skip
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


def exchange(server: Server, *parts: bytes) -> tuple[int, dict[str, Any]]:
    """Send parts until the server answers; return its status and JSON."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as opened:
        for part in parts:
            try:
                opened.sendall(part)
            except OSError:
                break  # it has answered and closed
        with opened.makefile("rb") as file:
            status = int(file.readline().split()[1])
            lines = [line.decode().strip().lower() for line in iter(file.readline, b"\r\n")]
            headers = dict(line.split(": ", 1) for line in lines)
            return status, json.loads(file.read(int(headers["content-length"])))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_a_body_of_chunks_is_bounded_by_the_view(server: Server, token: str):
    large = json.dumps({"topic": "a", "body": "x" * 3 * KIB}).encode()
    chunks = [chunk(large[at : at + 512]) for at in range(0, len(large), 512)]
    status, found = exchange(server, head(token, "Transfer-Encoding: chunked"), *chunks, chunk(b""))
    assert (status, found["code"]) == (413, "body_too_large")
    small = chunk(json.dumps({"topic": "a"}).encode())
    assert exchange(server, head(token, "Transfer-Encoding: chunked"), small, chunk(b""))[0] == 202


def test_an_endless_body_is_cut_off_before_django_has_it(server: Server, token: str):
    endless = (chunk(b"x" * KIB) for _ in range(100_000))
    status, found = exchange(server, head(token, "Transfer-Encoding: chunked"), *endless)
    assert (status, found["code"]) == (413, "body_too_large")


def test_an_announced_length_is_refused_before_the_body(server: Server, token: str):
    status, found = exchange(server, head(token, f"Content-Length: {10**12}"))
    assert (status, found["code"]) == (413, "body_too_large")


def test_more_than_announced_is_not_of_this_request(server: Server, token: str):
    body = json.dumps({"topic": "a"}).encode()
    status, found = exchange(server, head(token, f"Content-Length: {len(body)}"), body + b"x" * 99)
    assert (status, found["topic"]) == (202, "a")


def test_requests_share_a_few_connections_which_are_replaced(own_server: Server, token: str):
    good = [head(token, "Content-Length: 14"), b'{"topic": "a"}']
    pause = head(token, "Content-Length: 0", path="/queue/v1/topics/a/pause")
    with raw_connection() as other:
        assert [exchange(own_server, *good)[0] for _ in range(20)] == [202] * 20
        assert sessions(other) <= 3
        other.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {LATER}")  # noqa: S608
        assert [exchange(own_server, pause)[0] for _ in range(5)] == [200] * 5
    own_server.process.terminate()
    wait_until(lambda: own_server.process.poll() is not None)


def sessions(other: psycopg.Connection[Any]) -> int:
    row = other.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {LATER}").fetchone()  # noqa: S608
    assert row is not None
    return int(row[0])
