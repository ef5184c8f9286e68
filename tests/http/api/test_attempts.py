"""The log of attempts over HTTP (J2, J9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from delayed_queue.http.api import attempts as log_of_attempts
from delayed_queue.http.models import CallbackAttempt

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.http.api.urls")]
ATTEMPTS = "/queue/v1/attempts"


def log(key: str, topic: str, *attempts: int) -> None:
    for attempt in attempts:
        CallbackAttempt.objects.create(
            key=key, topic=topic, kind=f"{topic}|callback", webhook_id="msg_1", attempt=attempt,
            started_at=1_800_000_000_000, duration=12, status=503, failure="status",
            detail="The answer was 503.", address="192.0.2.1", excerpt="busy", is_ambiguous=True,
        )  # fmt: skip


def shown(client: Client, **query: str) -> list[tuple[str, int]]:
    answer = client.get(ATTEMPTS, query).json()
    return [(each["topic"], each["attempt"]) for each in answer["items"]]


def test_j9_the_attempts_of_a_job_in_their_order(caller: Client):
    log("a", "orders", 1, 2)
    log("b", "orders", 1)
    answer = caller.get(ATTEMPTS, {"job": "a"}).json()
    assert answer["next"] is None
    first = answer["items"][0]
    first.pop("id")
    assert first == {
        "jobId": "a", "topic": "orders", "webhookId": "msg_1", "attempt": 1,
        "startedAt": "2027-01-15T08:00:00.000Z", "durationMs": 12, "status": 503,
        "failure": "status", "detail": "The answer was 503.", "address": "192.0.2.1",
        "excerpt": "busy", "isAmbiguous": True, "endpoint": None,
    }  # fmt: skip
    assert shown(caller, job="a") == [("orders", 1), ("orders", 2)]


def test_pages(caller: Client):
    log("a", "orders", 1, 2, 3)
    first = caller.get(ATTEMPTS, {"job": "a", "limit": "2"}).json()
    second = caller.get(ATTEMPTS, {"job": "a", "limit": "2", "after": str(first["next"])}).json()
    assert [each["attempt"] for each in [*first["items"], *second["items"]]] == [1, 2, 3]
    assert second["next"] is None


def test_of_one_topic_and_of_those_the_token_covers(make_client: Callable[..., Client]):
    log("a", "orders", 1)
    log("a", "bills", 2)
    client = make_client("some", topics=("orders",))
    assert shown(client, job="a") == [("orders", 1)]
    assert client.get(ATTEMPTS, {"job": "a", "topic": "bills"}).status_code == 403
    every = make_client("all")
    assert shown(every, job="a", topic="bills") == [("bills", 2)]


def test_j13_pages_tell_nothing_of_topics_that_the_token_does_not_cover(make_client, monkeypatch):
    monkeypatch.setattr(log_of_attempts, "PAGE", 2)
    log("a", "bills", *range(5))
    client = make_client("some", topics=("orders",))
    for limit in (1, 2, 5):
        answer = client.get(ATTEMPTS, {"job": "a", "limit": limit}).json()
        assert answer == {"items": [], "next": None}
    log("a", "orders", 1)
    log("a", "bills", *range(5))
    log("a", "orders", 2)
    assert shown(client, job="a", limit="2") == [("orders", 1), ("orders", 2)]


@pytest.mark.parametrize(
    "query", [{}, {"job": ""}, {"job": "a\0"}, {"job": "a\x85"}, {"job": "x" * 201}]
)
def test_a_job_must_be_named(caller: Client, query: dict[str, str]):
    assert caller.get(ATTEMPTS, query).status_code == 400


def test_without_a_token_it_is_closed(client: Client):
    assert client.get(ATTEMPTS, {"job": "a"}).status_code == 401
