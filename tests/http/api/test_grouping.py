"""Concurrent jobs over HTTP, against real servers over real sockets (J5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any, Final

import pytest

from delayed_queue.http.jobs.catalogue import create_topic
from delayed_queue.http.tokens import VERBS, create_token
from delayed_queue.models import Message
from tests.http.api.servers import Server, Shared, gunicorn, uvicorn

pytestmark = pytest.mark.django_db(transaction=True)

MANY: Final = 40
# Larger than the limit for a shared transaction.
LARGE: Final = "x" * 20_000


@pytest.fixture
def token(transactional_db: None) -> str:
    create_topic("orders")
    return create_token("caller", verbs=VERBS, topics=["*"])


@pytest.fixture(scope="module", params=["application", "plain", "gunicorn"])
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    def start() -> Any:
        if request.param == "gunicorn":
            return gunicorn("--threads", "8", "--worker-class", "gthread")
        return uvicorn(request.param, THREADS=8)

    with Shared(start) as shared:
        yield shared


@pytest.fixture
def server(token: str, shared: Shared) -> Server:
    return shared.server()


class Post:
    """A request whose response has not been read."""

    def __init__(self, server: Server, token: str, data: Any, **headers: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        fixed = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request("POST", "/queue/v1/jobs", body, fixed | named)

    def answer(self) -> tuple[HTTPResponse, dict[str, Any]]:
        response = self._connection.getresponse()
        found = json.loads(response.read())
        self._connection.close()
        return response, found

    def status(self) -> int:
        return self.answer()[0].status


def job(job_id: str, **fields: Any) -> dict[str, Any]:
    return {"jobId": job_id, "topic": "orders", **fields}


@pytest.mark.parametrize("padding", ["", LARGE], ids=["small", "large"])
def test_small_and_large_ones_are_answered_alike(server: Server, token: str, padding: str):
    """Small jobs share a transaction on an event loop, large ones have one each."""
    stranger = create_token("stranger", verbs=["add"], topics=["other"])
    reader = create_token("reader", verbs=["read"], topics=["*"])
    hurried = create_token("hurried", verbs=["add"], rate=0.01, burst=1, topics=["*"])
    good = job("a", body=padding)

    def told(post: Post) -> tuple[int, str]:
        response, found = post.answer()
        return response.status, found.get("code", "")

    assert told(Post(server, token, good)) == (202, "")
    assert told(Post(server, token, good)) == (409, "job_already_exists")
    assert told(Post(server, token, {**good, "delay": -1})) == (400, "invalid_request")
    assert told(Post(server, token, json.dumps(good).encode()[:-1])) == (400, "malformed_json")
    assert told(Post(server, token, good, Content_Type="text/plain"))[0] == 415
    assert told(Post(server, "dq_unknown", good))[0] == 401
    assert told(Post(server, stranger, good))[0] == 403
    assert told(Post(server, reader, good))[0] == 403
    assert told(Post(server, hurried, job("b", body=padding))) == (202, "")
    assert told(Post(server, hurried, job("c", body=padding))) == (429, "too_many_requests")


def test_an_answer_that_is_kept_under_a_key_is_replayed(server: Server, token: str):
    first, found = Post(server, token, job("a"), Idempotency_Key="k").answer()
    again, replayed = Post(server, token, job("a"), Idempotency_Key="k").answer()
    assert (first.status, first.headers["Idempotency-Replayed"]) == (202, None)
    assert (again.status, again.headers["Idempotency-Replayed"]) == (202, "true")
    assert found == replayed
    assert Post(server, token, job("b"), Idempotency_Key="k").status() == 422


@pytest.mark.parametrize("keys", [("a", "b"), ("a", "a"), ("a,b",)])
def test_j19_a_doubled_idempotency_key_is_refused(server, token, keys):
    body = json.dumps(job("a")).encode()
    connection = server.connect()
    connection.putrequest("POST", "/queue/v1/jobs")
    for name, value in (
        ("Authorization", f"Bearer {token}"), ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))), *(("Idempotency-Key", each) for each in keys),
    ):  # fmt: skip
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    (error,) = json.loads(response.read())["errors"]
    assert (response.status, error["path"]) == (400, "Idempotency-Key")
    connection.close()
    assert not Message.objects.exists()
