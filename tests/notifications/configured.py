"""The section of the notifications, as a test wants it."""

from __future__ import annotations

from typing import Any

from pytest_django.fixtures import Settings


def configure(settings: Settings, keys: Any) -> Any:
    """Put these keys in force until the test ends; return them."""
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {"NOTIFICATIONS": keys}
    return keys
