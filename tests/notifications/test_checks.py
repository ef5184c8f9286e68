"""Errors of settings, from the system checks and the consumer."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from delayed_queue.checks import check_settings
from delayed_queue.notifications.apps import check_hash_key, check_providers
from tests.notifications.configured import configure
from tests.support.processes import managed, wait_until


@pytest.mark.parametrize(
    "configured",
    [
        {"DEDUPE_WINDOWS": 1}, {"RETENTION": timedelta(hours=1)}, {"PROVIDER": {}},
        {"PROVIDERS": {"fax": []}}, {"THROTTLE": {"fax": (1, 1)}}, {"HASH_KEY": 1},
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_an_error_and_nothing_else_is_said(settings, configured):
    configure(settings, configured)
    (found,) = check_settings()
    assert found.id == "delayed_queue.E001"
    assert next(iter(configured)) in found.msg
    assert check_hash_key() == check_providers() == []


def test_a_deployment_without_a_key_for_hashes_is_warned(settings):
    configure(settings, {})
    assert [each.id for each in check_hash_key()] == ["delayed_queue.W009"]
    configure(settings, {"HASH_KEY": "of its own"})
    assert check_hash_key() == []


@pytest.mark.parametrize(
    "configured",
    [
        {"PROVIDERS": {"sms": [{"kind": "http", "name": "a", "urls": "s3cret"}]}},
        {"PROVIDERS": {"sms": []}},
        {"PROVIDERS": {"sms": [{"kind": "console", "name": "a", "rate": [0, 1]}]}},
        {"THROTTLE": {"sms": (1, 0)}},
        {"SECRETS": ["s3cret"]},
    ],
)
def test_what_would_fail_every_message_is_an_error_before_the_first(settings, configured):
    configure(settings, configured)
    (found,) = check_providers()
    assert found.id == "delayed_queue.E008"
    assert "s3cret" not in found.msg


@pytest.mark.parametrize(
    "sender",
    [
        "Shop, Inc. <shop@example.org>", "Shop: <shop@example.org>", "Shop [x] <shop@example.org>",
        "Shop shop@example.org", "Shop <shop@example.org", "<shop@exa mple.org>", "a b@example.org",
        "shop", "", "shop@", "@example.org", "shop@example..org", "sh\u00f6p@example.org",
        "a@example.org, b@example.org", "Shop <shop@example.org>,", "Shop\n <shop@example.org>",
        None,
    ],
)  # fmt: skip
def test_n24_a_sender_that_is_no_address_is_refused(settings, sender):
    entry = {"kind": "email", "name": "a", "sender": sender}
    configure(settings, {"PROVIDERS": {"email": [entry]}})
    (found,) = check_providers()
    assert found.id == "delayed_queue.E008"
    assert "The sender is not an address" in found.msg


@pytest.mark.parametrize(
    "sender",
    [
        "shop@example.org", "Shop Inc. <shop@example.org>", '"Shop, Inc." <shop@example.org>',
        "B\u00fccher <shop@b\u00fccher.example>",
    ],
)  # fmt: skip
def test_n24_an_address_with_or_without_a_name_is_a_sender(settings, sender):
    configure(
        settings, {"PROVIDERS": {"email": [{"kind": "email", "name": "a", "sender": sender}]}}
    )
    assert {each.id for each in check_providers()} == {"delayed_queue.W008"}


@pytest.mark.parametrize(
    ("channel", "entry", "reason"),
    [
        ("email", {"kind": "email", "sender": "a@b.example", "use_tls": True, "use_ssl": True},
         "EMAIL_USE_TLS/EMAIL_USE_SSL are mutually exclusive"),
        ("email", {"kind": "email", "sender": "a@b.example", "backend": "anymail.Nope"},
         'does not define a "Nope"'),
        ("sms", {"kind": "http", "url": "https://a.example", "headers": {"X-Key": "a\r\nB: c"}},
         "The header 'X-Key' has a value that cannot be sent."),
        ("sms", {"kind": "apprise", "url": "nonsense"}, "The url is not one of Apprise."),
        ("webhook", {"kind": "webhook", "secrets": ["s3cret"]}, "A secret is whsec_"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
def test_n24_what_no_message_could_be_written_with_is_an_error(settings, channel, entry, reason):
    configure(settings, {"PROVIDERS": {channel: [entry | {"name": "relay"}]}})
    (found,) = check_providers()
    assert found.id == "delayed_queue.E008"
    assert found.msg.startswith("The provider 'relay' cannot write a message: ")
    assert reason in found.msg
    assert "s3cret" not in found.msg


def test_a_channel_without_providers_is_warned_of(settings):
    configure(settings, {"PROVIDERS": {"sms": [{"kind": "console", "name": "a"}]}})
    assert [each.id for each in check_providers()] == ["delayed_queue.W008"] * 2
    configure(settings, {})
    assert check_providers() == []


@pytest.mark.django_db(transaction=True)
def test_a_consumer_with_an_empty_broker_url_says_so_and_stops_when_told():
    with managed("consumenotifications", AMQP_URL="") as process:
        # The signal handlers are installed before it connects.
        wait_until(lambda: process.has_said("event=consumer_connected"))
        assert process.has_said("Set AMQP_URL")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
