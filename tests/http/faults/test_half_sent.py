"""Endless bodies from callers without a token, at a WSGI server of four threads."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from delayed_queue.http.tokens import create_token
from tests.http.api.servers import Server, gunicorn

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# Each reader of a body: the view, its endpoint, and a view without a body.
PATHS = (
    "/queue/v1/jobs", "/queue/v1/jobs?ifExists=nonsense", "/queue/v1/jobs/bulk", "/queue/v1/tasks",
    "/queue/v1/topics/orders/jobs/a/finish", "/queue/v1/topics/orders/pop",
    "/v1/notifications", "/v1/notifications/bulk", "/v1/suppressions",
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[Server]:
    with gunicorn("--threads", "4", ROOT_URLCONF="example_project.urls") as running:
        yield running


def half_sent(server: Server, path: str, token: str = "") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"{authorization}Content-Length: 1000\r\n\r\n{{"
    )
    client.sendall(head.encode())
    return client


def test_they_are_refused_without_waiting_for_the_rest(server: Server) -> None:
    """Without a token check before the body, no request is answered and no thread is left."""
    with ExitStack() as opened:
        clients = [opened.enter_context(half_sent(server, each)) for each in PATHS]
        clients += [opened.enter_context(half_sent(server, PATHS[0], "unknown"))]
        token = create_token("reader", verbs=["read"], topics=["*"])
        clients += [opened.enter_context(half_sent(server, PATHS[0], token))]
        answers = [each.recv(4096).split(b" ", 2)[1] for each in clients]
        assert answers == [b"401"] * (len(PATHS) + 1) + [b"403"]
        assert server.answers()
