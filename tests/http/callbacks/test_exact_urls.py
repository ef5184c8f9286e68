"""A URL is called byte for byte as given, or refused (J16)."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from pytest_django import Settings

from delayed_queue.http.models import CallbackAttempt, Endpoint
from delayed_queue.http.tokens import create_token
from delayed_queue.notifications.models import Notification
from tests.http.callbacks.delivering import add, permitted, send_due
from tests.http.callbacks.sending import reaching, send_once
from tests.http.callbacks.servers import Receiver
from tests.settings import EVERY_TOPIC

TARGETS = [
    "/hook?sig=a%2Fb%2Bc", "/a%2fb%3Ac/%7Euser", "/hook?q=a+b&c[]=1&d=%20", "/a//b/../c/./d",
    "/p;v=1/~!$'()*,:@?x=/?:@", "/hook?", "/hook?a&b=", "/%C3%A4",
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_valid_goes_out_byte_for_byte(target: str) -> None:
    with Receiver() as receiver:
        url = receiver.url.removesuffix("/hook") + target
        assert send_once(url, reaching(receiver)).is_success
        assert receiver.requests[0].path == target


@pytest.mark.parametrize(
    ("given", "called"),
    [("/ä?ö=ü", "/%C3%A4?%C3%B6=%C3%BC"), ('/{a}?b="<|>^`', "/%7Ba%7D?b=%22%3C%7C%3E%5E%60"),
     ("", "/"), ("?a=%2F", "/?a=%2F")],
)  # fmt: skip
def test_only_what_cannot_stand_in_a_request_line_is_escaped(given: str, called: str) -> None:
    with Receiver() as receiver:
        url = receiver.url.removesuffix("/hook") + given
        assert send_once(url, reaching(receiver)).is_success
        assert receiver.requests[0].path == called


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("fresh")
def test_the_attempt_log_and_the_endpoints_know_what_was_called() -> None:
    with Receiver() as receiver, permitted(receiver):
        call_command("queueendpoint", "add", f"{receiver.url}/%7euser")
        for name, path in (("a", "/%7Euser/x%2Fy"), ("b", "/~user/ä"), ("c", "/../hook/~user")):
            add(name, receiver.url + path)
        send_due()
        attempts = {each.key: each for each in CallbackAttempt.objects.all()}
    assert attempts["a"].url == f"{receiver.url}/%7Euser/x%2Fy"
    assert attempts["b"].url == f"{receiver.url}/~user/%C3%A4"
    known = Endpoint.objects.get(prefix=f"{receiver.url}/~user")
    assert {each.endpoint_id for each in attempts.values()} == {known.id}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/%zz", "/%", "/a?b=%2", "/%%20"])
def test_an_escape_that_is_none_is_refused(client: Client, settings: Settings, path: str) -> None:
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {
        "API": {"TOPICS": EVERY_TOPIC}, "CALLBACKS": {"ENABLED": True},
    }  # fmt: skip
    settings.ALLOWED_HOSTS = ["testserver"]
    token = create_token("caller", verbs=["add"], topics=["*"])
    url = f"https://example.org{path}"
    for place, field, body in (
        ("/queue/v1/jobs", "url", {"jobId": "a", "topic": "orders", "url": url}),
        ("/v1/notifications", "to", {"channel": "webhook", "to": url, "body": 1}),
        ("/v1/notifications", "callbackUrl",
         {"channel": "sms", "to": "+447700900123", "body": "x", "callbackUrl": url}),
    ):  # fmt: skip
        headers: dict[str, Any] = {"Authorization": f"Bearer {token}"}
        answer = client.post(place, body, content_type="application/json", headers=headers)
        assert answer.status_code == 400, place
        (error,) = answer.json()["errors"]
        assert error["path"] == field
        assert "An escape in a url is %" in error["message"]
    assert not Notification.objects.exists()
