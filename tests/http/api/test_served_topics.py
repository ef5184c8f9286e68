"""HTTP reaches only the topics that the settings name (J13)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import Client
from pytest_django import Settings

from delayed_queue import DelayedQueue, Reject, handler
from delayed_queue.handlers import registry
from delayed_queue.http.api.jobs import IDEMPOTENCY_KEY
from delayed_queue.http.models import CallbackAttempt, Topic
from delayed_queue.models import DeadLetter, Limit, Message
from tests.http.api.calls import JOB, get, post

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.http.api.urls"),
    pytest.mark.usefixtures("new_process", "internal"),
]

INTERNAL = "shop-lanes"
# Names that the API refuses, with the answer for a missing topic.
NAMES = [INTERNAL, "nothing-there", "order", "orders2"]
SERVED = {"API": {"TOPICS": ["orders", "mail.*"]}}


@pytest.fixture
def internal(transactional_db: None, settings: Settings) -> DelayedQueue:
    """A queue of Django code with a message and a dead one, and with a callback in the log."""
    settings.DELAYED_QUEUE = SERVED
    queue = DelayedQueue(INTERNAL)
    queue.offer_or_update("dead", 1)
    envelope = queue.try_poll()
    assert envelope is not None
    assert envelope.reject("of no use")
    queue.offer_or_update("a", {"secret": True})
    Topic.objects.create_once(INTERNAL)
    CallbackAttempt.objects.create(
        kind=f"{INTERNAL}|callback", topic=INTERNAL, key="a", webhook_id="w", attempt=1,
        started_at=datetime(2030, 1, 1, tzinfo=UTC), duration=1,
    )  # fmt: skip
    return queue


def traces() -> list[Any]:
    """Return all rows that a call could have changed."""
    return [list(each.objects.order_by("pk").values()) for each in
            (Message, DeadLetter, Topic, Limit)]  # fmt: skip


def calls_of_topics(client: Client) -> list[tuple[str, str]]:
    """Return the method and path of each call that names a topic in its path."""
    paths = get(client, "/openapi.json")["paths"]
    return [
        (method.upper(), re.sub(r"\{job_id\}", "a", path))
        for path, methods in paths.items()
        for method in methods
        if "{topic}" in path
    ]


@pytest.mark.parametrize("public", [False, True])
def test_no_call_reaches_a_queue_that_is_not_served(caller, client, settings, public):
    settings.DELAYED_QUEUE = {"API": {**SERVED["API"], "PUBLIC": public}}
    asking, before = client if public else caller, traces()
    calls = calls_of_topics(caller)
    assert len(calls) >= 12

    for method, path in calls:
        for name in NAMES:
            answer = asking.generic(
                method, path.replace("{topic}", name), b'{"leaseToken": "x"}', "application/json"
            )
            assert (answer.status_code, answer.json()["code"]) == (403, "topic_not_served"), path
            assert "TOPICS" in answer.json()["detail"]

    assert traces() == before


def test_no_body_or_query_reaches_one_either(caller: Client) -> None:
    before = traces()
    for name in NAMES:
        job = {**JOB, "topic": name}
        answers = [
            post(caller, "/jobs", job),
            post(caller, "/jobs?ifExists=update", {**job, "url": "https://example.org/"}),
            post(caller, "/jobs", job, **{IDEMPOTENCY_KEY: "k"}),
            caller.get(f"/queue/v1/dead?topic={name}"),
            caller.get(f"/queue/v1/attempts?job=a&topic={name}"),
        ]
        assert [each.json()["code"] for each in answers] == ["topic_not_served"] * 5
        lines = f'{{"jobId": "b", "topic": "{name}"}}'.encode()
        for answer in (
            post(caller, "/jobs/bulk", [job]),
            post(caller, "/jobs/bulk", lines, content_type="application/x-ndjson"),
        ):
            assert answer.json()["items"][0]["problem"]["code"] == "topic_not_served"
    assert traces() == before


def test_nothing_of_it_is_listed_or_found_by_its_id(caller: Client) -> None:
    letter = DeadLetter.objects.get().id
    assert get(caller, "/topics") == []
    assert get(caller, "/dead")["items"] == []
    assert get(caller, "/attempts?job=a")["items"] == []
    assert post(caller, f"/dead/{letter}/replay").status_code == 404
    assert caller.delete(f"/queue/v1/dead/{letter}").status_code == 404
    assert DeadLetter.objects.filter(id=letter).exists()


def test_what_is_served_goes_on_as_the_token_says(make_client: Callable[..., Client]) -> None:
    everything, mail = make_client("all"), make_client("mail", topics=["mail.*"])
    for topic in ("orders", "mail.daily"):
        assert post(everything, "/jobs", {**JOB, "topic": topic}).status_code == 202
    assert [each["name"] for each in get(everything, "/topics")] == ["mail.daily", "orders"]
    assert [each["name"] for each in get(mail, "/topics")] == ["mail.daily"]
    refused = post(mail, "/topics/orders/pop")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_a_queue_with_a_handler_is_served_by_its_full_name_only(caller, settings):
    @handler("mail.own")
    def handle(envelope: Any) -> None:
        raise Reject("never called")

    try:
        job = {**JOB, "topic": "mail.own"}
        assert post(caller, "/jobs", job).json()["code"] == "topic_not_served"
        settings.DELAYED_QUEUE = {"API": {"TOPICS": ["mail.*", "mail.own"]}}
        assert post(caller, "/jobs", job).status_code == 202
    finally:
        registry.remove("mail.own")


def test_a_star_alone_is_refused(settings: Settings) -> None:
    settings.DELAYED_QUEUE = {"API": {"TOPICS": ["*"]}}
    assert "delayed_queue.E001" in [each.id for each in run_checks()]
