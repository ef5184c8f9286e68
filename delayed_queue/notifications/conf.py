"""The settings dict ``NOTIFICATIONS`` as one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

SETTING: Final = "NOTIFICATIONS"


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """Every key of ``NOTIFICATIONS``, in upper case.

    ``DEDUPE_WINDOW``: how long a ``dedupeKey`` stands for the first request that had it.
    ``MAX_AHEAD``: how far in the future ``sendAt`` and ``expiresAt`` may lie.
    ``HASH_KEY``: the key of the recipients' hashes; empty takes it from ``SECRET_KEY``, and then
    suppressions are lost when that changes.
    ``BODY_BYTES``, ``BULK_BYTES``, ``BULK_ITEMS``: the largest request, alone and in bulk.
    ``BROKER_URL``: where ``consumenotifications`` connects; ``memory://`` is this process alone.
    ``BROKER_QUEUE``: the queue it reads.
    ``BROKER_TENANT``: whose notifications those of the broker are.
    ``BROKER_BATCH``: the most messages it takes before it commits and acknowledges.
    ``RETENTION``: how long ended notifications are kept by ``prunenotifications``.
    """

    DEDUPE_WINDOW: timedelta = timedelta(hours=24)
    MAX_AHEAD: timedelta = timedelta(days=366)
    HASH_KEY: str = ""
    BODY_BYTES: int = 256 * 1024
    BULK_BYTES: int = 8 * 1024 * 1024
    BULK_ITEMS: int = 1000
    BROKER_URL: str = "memory://"
    BROKER_QUEUE: str = "notifications"
    BROKER_TENANT: str = "broker"
    BROKER_BATCH: int = 200
    RETENTION: timedelta = timedelta(days=90)


@lru_cache(maxsize=1)
def get_settings() -> NotificationSettings:
    """Return the settings; raises ImproperlyConfigured for what cannot be used."""
    configured: dict[str, Any] = getattr(settings, SETTING, {})
    known = {each.name for each in fields(NotificationSettings)}
    if unknown := sorted(set(configured) - known):
        raise ImproperlyConfigured(f"{SETTING} has unknown keys: {', '.join(unknown)}.")
    found = NotificationSettings(**configured)
    if found.RETENTION < found.DEDUPE_WINDOW:
        raise ImproperlyConfigured(f"{SETTING}: RETENTION must not be below DEDUPE_WINDOW.")
    return found


def _forget(*, setting: str, **_: Any) -> None:
    if setting == SETTING:
        get_settings.cache_clear()


setting_changed.connect(_forget)
