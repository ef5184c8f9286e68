"""Fake third parties, and dispatchers that send to them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from delayed_queue import RetryPolicy
from tests.notifications.configured import configure
from tests.notifications.dispatchers import email_entry, sms_entry
from tests.notifications.fakes import FakeSms, FakeSmtp
from tests.support.proxied import proxied, proxy

__all__ = ["proxied", "proxy"]


@pytest.fixture
def smtp() -> Iterator[FakeSmtp]:
    with FakeSmtp() as server:
        yield server


@pytest.fixture
def sms() -> Iterator[FakeSms]:
    with FakeSms() as server:
        yield server


@pytest.fixture
def dispatch(settings: Settings, smtp: FakeSmtp, sms: FakeSms) -> dict[str, Any]:
    """The settings' section, with one provider per channel and immediate retries."""
    found: dict[str, Any] = configure(
        settings,
        {
            "PROVIDERS": {"email": [email_entry(smtp)], "sms": [sms_entry(sms)]},
            "RETRY": RetryPolicy.exponential(timedelta(milliseconds=10), max_attempts=4),
            "CIRCUIT_FAILURES": 1000,
        },
    )
    return found


@pytest.fixture
def two(dispatch: dict[str, Any], sms: FakeSms) -> Iterator[FakeSms]:
    """A second SMS provider, behind the first."""
    with FakeSms() as second:
        dispatch["PROVIDERS"]["sms"].append(sms_entry(second, "second"))
        yield second
