"""What the system checks and the consumer say of settings."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from delayed_queue.notifications.checks import check_hash_key, check_providers, check_settings
from tests.processes import managed, wait_until


@pytest.mark.parametrize("configured", [{"DEDUPE_WINDOWS": 1}, {"RETENTION": timedelta(hours=1)}])
def test_settings_that_cannot_be_used_are_an_error(settings, configured):
    settings.NOTIFICATIONS = configured
    (found,) = check_settings()
    assert found.id == "notifications.E001"
    assert next(iter(configured)) in found.msg
    assert check_hash_key() == []


def test_a_deployment_without_a_key_for_hashes_is_warned(settings):
    settings.NOTIFICATIONS = {}
    assert [each.id for each in check_hash_key()] == ["notifications.W001"]
    settings.NOTIFICATIONS = {"HASH_KEY": "of its own"}
    assert check_settings() == check_hash_key() == []


@pytest.mark.parametrize(
    "configured",
    [
        {"PROVIDERS": {"sms": [{"kind": "http", "name": "a", "urls": "s3cret"}]}},
        {"PROVIDERS": {"sms": []}},
        {"PROVIDERS": {"sms": [{"kind": "console", "name": "a", "rate": [0, 1]}]}},
        {"THROTTLE": {"sms": (1, 0)}},
        {"SECRETS": ["s3cret"]},
        {"PROVIDER": {}},
    ],
)
def test_what_would_fail_every_message_is_an_error_before_the_first(settings, configured):
    settings.DISPATCH = configured
    (found,) = check_providers()
    assert found.id == "notifications.E002"
    assert "s3cret" not in found.msg


def test_a_channel_without_providers_is_warned_of(settings):
    settings.DISPATCH = {"PROVIDERS": {"sms": [{"kind": "console", "name": "a"}]}}
    assert [each.id for each in check_providers()] == ["notifications.W002"] * 2
    settings.DISPATCH = {}
    assert check_providers() == []


@pytest.mark.django_db(transaction=True)
def test_a_consumer_without_a_broker_says_so_and_stops_when_told():
    with managed("consumenotifications", AMQP_URL="memory://") as process:
        # The handlers of signals are there before it connects.
        wait_until(lambda: process.has_said("event=consumer_connected"))
        assert process.has_said("set AMQP_URL")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
