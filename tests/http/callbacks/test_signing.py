"""Signatures, checked by an independent verifier, and secrets at rest (J10)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import LazySettings
from hypothesis import given
from hypothesis import settings as running
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage, SecretNotReadable
from delayed_queue.http.callbacks import secrets
from delayed_queue.http.callbacks.calls import new_secret, sign, webhook_id

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def verify(secret: str, body: bytes, headers: dict[str, str]) -> None:
    Webhook(secret).verify(body, headers, json_parse=False)


def signed(*held: str, body: bytes = b'{"a": "\xc3\xa9"}') -> tuple[bytes, dict[str, str]]:
    return body, sign(held, "msg_1", int(time.time()), body)


def test_the_example_of_the_specification() -> None:
    headers = sign(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@given(st.text())
@running(deadline=None)
def test_the_independent_verifier_agrees(text: str) -> None:
    secret = new_secret()
    body, headers = signed(secret, body=text.encode("utf-8", "replace"))
    verify(secret, body, headers)


@pytest.mark.parametrize("changed", ["body", "webhook-id", "webhook-timestamp", "secret"])
def test_what_was_changed_does_not_verify(changed: str) -> None:
    secret = new_secret()
    body, headers = signed(secret)
    if changed in headers:
        headers[changed] = str(int(headers[changed].strip("msg_")) + 1)
    body = b"{}" if changed == "body" else body
    with pytest.raises(WebhookVerificationError):
        verify(new_secret() if changed == "secret" else secret, body, headers)


def test_both_secrets_of_a_rotation_verify_and_no_third() -> None:
    new, old = new_secret(), new_secret()
    body, headers = signed(new, old)
    assert len(headers["webhook-signature"].split(" ")) == 2
    verify(new, body, headers)
    verify(old, body, headers)
    with pytest.raises(WebhookVerificationError):
        verify(new_secret(), body, headers)


def test_bytes_that_are_no_text_are_signed_as_they_are() -> None:
    secret, body = new_secret(), os.urandom(100)
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = hmac.new(key, b"msg_1.5." + body, hashlib.sha256).digest()
    signature = sign([secret], "msg_1", 5, body)["webhook-signature"]
    assert signature == "v1," + base64.b64encode(expected).decode()


@pytest.mark.parametrize("message_id", ["", "a.b", "a b", "a\n", "\u00e9", "x" * 129])
def test_ids_that_cannot_be_signed(message_id: str) -> None:
    with pytest.raises(InvalidMessage, match="webhook-id"):
        sign([new_secret()], message_id, 1, b"")


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_????", "whsec_YWJj", base64.b64encode(b"x" * 32).decode()]
)
def test_secrets_that_are_none(secret: str) -> None:
    with pytest.raises(InvalidConfiguration, match="whsec_ and the base64") as caught:
        sign([secret], "msg_1", 1, b"")
    assert len(secret) < 7 or secret not in str(caught.value)


def test_a_callback_without_a_secret_is_not_signed() -> None:
    with pytest.raises(InvalidConfiguration, match="at least one secret"):
        sign([], "msg_1", 1, b"")


def test_ids_are_stable_and_told_apart() -> None:
    assert webhook_id("orders", "1") == webhook_id("orders", "1")
    ids = {
        webhook_id("a", "bc"),
        webhook_id("ab", "c"),
        webhook_id("abc"),
        webhook_id("a", "\ud800"),
    }
    assert len(ids) == 4
    assert all(sign([new_secret()], each, 1, b"") for each in ids)


class TestSecretsAtRest:
    def test_a_sealed_secret_shows_nothing_and_opens(self) -> None:
        secret = new_secret()
        sealed = secrets.seal(secret)
        assert secret not in sealed
        assert sealed != secrets.seal(secret)
        assert secrets.unseal(sealed) == secret

    def test_secrets_are_long_and_differ(self) -> None:
        made = {new_secret() for _ in range(100)}
        assert len(made) == 100
        assert {len(base64.b64decode(each.removeprefix("whsec_"))) for each in made} == {32}

    def test_it_opens_after_djangos_key_was_rotated(self, settings: LazySettings) -> None:
        sealed = secrets.seal("one")
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "new", [settings.SECRET_KEY]
        assert secrets.unseal(sealed) == "one"
        settings.SECRET_KEY_FALLBACKS = []
        with pytest.raises(SecretNotReadable):
            secrets.unseal(sealed)

    def test_what_was_tampered_with_does_not_open(self) -> None:
        sealed = secrets.seal("secret")
        with pytest.raises(SecretNotReadable) as caught:
            secrets.unseal(sealed[:-4] + "AAA=")
        assert sealed not in str(caught.value)

    @pytest.mark.parametrize(("hours", "number"), [(0, 2), (23.99, 2), (24, 1), (1000, 1), (-1, 2)])
    def test_the_previous_secret_signs_for_a_day(self, hours: float, number: int) -> None:
        held = secrets.in_force("new", "old", NOW - timedelta(hours=hours), NOW)
        assert held == ("new", "old")[:number]

    def test_without_a_previous_secret_there_is_one(self) -> None:
        assert secrets.in_force("new", "", NOW, NOW) == ("new",)
        assert secrets.in_force("new", "old", None, NOW) == ("new",)
