"""System checks: settings that cannot be used, and what a deployment should not forget."""

from __future__ import annotations

from typing import Any

from django.core import checks
from django.core.checks import CheckMessage, register
from django.core.exceptions import ImproperlyConfigured

from delayed_queue.notifications.conf import get_settings


@register
def check_settings(**_: Any) -> list[CheckMessage]:
    """Refuse unknown keys of ``NOTIFICATIONS``, and values that contradict each other."""
    try:
        get_settings()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="notifications.E001")]
    return []


@register
def check_providers(**_: Any) -> list[CheckMessage]:
    """Refuse providers, rates and secrets that cannot be used, before a message is tried."""
    # Not above: few commands need what providers import.
    from delayed_queue.notifications.channels import check_dispatch, unserved_channels

    try:
        check_dispatch()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="notifications.E002")]
    return [
        checks.Warning(
            f"The channel {channel} has no provider: what is accepted for it will fail.",
            hint="Add one to DISPATCH['PROVIDERS'] (NOTIFICATION_PROVIDERS).",
            id="notifications.W002",
        )
        for channel in unserved_channels()
    ]


@register(deploy=True)
def check_hash_key(**_: Any) -> list[CheckMessage]:
    """Warn where opt-outs would be forgotten with the next ``SECRET_KEY``."""
    if check_settings() or get_settings().HASH_KEY:
        return []
    return [
        checks.Warning(
            "The recipients' hashes depend on SECRET_KEY: when it changes, nobody is suppressed.",
            hint="Set NOTIFICATIONS['HASH_KEY'] (NOTIFICATIONS_HASH_KEY).",
            id="notifications.W001",
        )
    ]
