"""What the system checks and the consumer say of settings."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from example_project.notifications.checks import check_hash_key, check_settings
from tests.processes import manage


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


@pytest.mark.django_db(transaction=True)
def test_a_consumer_without_a_broker_says_so_and_stops_when_told():
    process = manage("consumenotifications", AMQP_URL="memory://")
    try:
        assert process.stdout is not None
        assert any("set AMQP_URL" in line for line in process.stdout)
        # The handlers of signals are there before it connects.
        assert any("event=consumer_connected" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
