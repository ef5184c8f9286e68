"""The notifications' section of the settings, for one test."""

from __future__ import annotations

from typing import Any

from pytest_django.fixtures import Settings


def configure(settings: Settings, keys: Any) -> Any:
    """Apply these keys until the test ends; return them."""
    keys.setdefault("PUBLIC_URL", "https://notify.example/v1")
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {"NOTIFICATIONS": keys}
    return keys
