"""Sections of the settings: their keys, their suggestions and their hidden secrets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings

from delayed_queue.checks import check_settings
from delayed_queue.conf import get_settings
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.conf import callback_settings

RIGHT: list[tuple[str, Any]] = [
    ("ALLOWED_HOSTS", ["erp.internal", "*.hooks.corp", "localhost", "10.0.0.1", "::1", "a_b.x"]),
    ("ALLOWED_NETWORKS", ("10.0.0.0/8", "127.0.0.1", "fd00::/8", "::1")),
    ("ALLOWED_PORTS", [1, 65_535]),
    ("CONNECT_TIMEOUT", timedelta(milliseconds=1)),
    ("TOTAL_TIMEOUT", timedelta(minutes=10)),
    ("CONNECTIONS", 10_000),
    ("RETRY_AFTER_LIMIT", timedelta(0)),
    ("CA_FILE", "/etc/ssl/own.pem"),
]
WRONG: list[tuple[str, Any]] = [
    ("ALLOWED_HOSTS", "erp.internal"),
    ("ALLOWED_HOSTS", ["http://erp.internal/"]),
    ("ALLOWED_HOSTS", ["*"]),
    ("ALLOWED_HOSTS", ["a.*.corp"]),
    ("ALLOWED_HOSTS", ["b\u00fccher.example"]),
    ("ALLOWED_HOSTS", ["erp.internal:8080"]),
    ("ALLOWED_NETWORKS", ["10.0.0.1/8"]),
    ("ALLOWED_NETWORKS", [10]),
    ("ALLOWED_PORTS", ["80"]),
    ("ALLOWED_PORTS", [True]),
    ("CONNECT_TIMEOUT", "5 s"),
    ("TOTAL_TIMEOUT", timedelta(0)),
    ("CONNECTIONS", 0),
    ("RETRY_AFTER_LIMIT", timedelta(seconds=-1)),
    ("CA_FILE", None),
]


@pytest.mark.parametrize(("key", "value"), RIGHT)
def test_right_values(settings: LazySettings, key: str, value: Any) -> None:
    settings.DELAYED_QUEUE = {"CALLBACKS": {key: value}}
    assert check_settings() == []
    assert getattr(callback_settings(), key) == value


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_wrong_values(settings: LazySettings, key: str, value: Any) -> None:
    settings.DELAYED_QUEUE = {"CALLBACKS": {key: value}}
    [message] = check_settings()
    assert message.msg == f"DELAYED_QUEUE['CALLBACKS']['{key}'] cannot be used."
    assert message.hint
    with pytest.raises(InvalidConfiguration, match=key):
        get_settings()


def test_a_key_that_is_nearly_right_is_suggested(settings: LazySettings) -> None:
    settings.DELAYED_QUEUE = {"CALLBACKS": {"allowed_host": [], "COLOUR": "red"}}
    near, far = check_settings()
    assert near.hint == "Did you mean 'ALLOWED_HOSTS'?"
    assert far.hint is not None
    assert far.hint.startswith("Known keys: ENABLED, ALLOWED_HOSTS, ")
