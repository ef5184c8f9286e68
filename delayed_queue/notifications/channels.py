"""The providers of each channel, in order, made from the settings, each behind a circuit."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from delayed_queue.exceptions import DelayedQueueError, InvalidConfiguration
from delayed_queue.http.callbacks.calls import PREFIX, sign
from delayed_queue.http.rates import SharedRate
from delayed_queue.notifications.conf import KEY, cached, get_settings
from delayed_queue.notifications.models import MAX_NAME_LENGTH, Channel
from delayed_queue.notifications.providers import Provider
from delayed_queue.notifications.services import USING, Outgoing
from delayed_queue.rates import Circuit, Room

_PACKAGE: Final = "delayed_queue.notifications.providers"
KINDS: Final = {
    "apprise": f"{_PACKAGE}.apprises.AppriseProvider",
    "console": f"{_PACKAGE}.ConsoleProvider",
    "email": f"{_PACKAGE}.email.EmailProvider",
    "http": f"{_PACKAGE}.http.HttpSmsProvider",
    "webhook": f"{_PACKAGE}.http.WebhookProvider",
}


@dataclass(frozen=True, slots=True)
class Route:
    """One provider of a channel: its shared rate, its circuit and its room in this process."""

    provider: Provider
    rate: SharedRate | None
    circuit: Circuit
    room: Room = field(default_factory=Room)

    @property
    def name(self) -> str:
        return self.provider.name


@cached
def routes_of(channel: str) -> tuple[Route, ...]:
    """Return the channel's routes in order of preference, made once for this process."""
    return _made_routes(channel)


def _made_routes(channel: str) -> tuple[Route, ...]:
    routes = tuple(map(_route, get_settings().PROVIDERS.get(channel, ())))
    names = [route.name for route in routes]
    if not routes or len(set(names)) < len(names):
        raise ImproperlyConfigured(f"{channel} needs providers, each by a name of its own.")
    return routes


def check_dispatch() -> None:
    """Raise ImproperlyConfigured for providers, rates and secrets that cannot be used.

    Called before a worker starts, because a dispatcher without providers would fail all messages.
    """
    for channel in get_settings().PROVIDERS:
        for route in _made_routes(channel):
            _check_message(route.provider, channel)
    # Imported late, because it needs the extra.
    from delayed_queue.notifications.events import sources

    sources()
    try:
        for channel in get_settings().THROTTLE:
            throttle_of(channel, b"")
        sign(signing_secrets(), "check", 0, b"")
    except (TypeError, InvalidConfiguration) as error:
        raise ImproperlyConfigured(f"{KEY}: {error}") from None


def _check_message(provider: Provider, channel: str) -> None:
    """Write a message for a probe address; sends nothing."""
    address = {"email": "probe@example.org", "sms": "+447700900123"}
    probe = Outgoing(
        uuid4(), uuid4(), "check", channel, "normal", "", True,
        address.get(channel, "https://example.org/"), b"", "Probe", "Probe", "", None, 1, False,
        provider.name, False,
    )  # fmt: skip
    check: Callable[[Outgoing], None] = getattr(provider, "check", lambda _: None)
    try:
        check(probe)
    except (TypeError, ValueError, ImportError, ImproperlyConfigured, DelayedQueueError) as error:
        reason = f"The provider {provider.name!r} cannot write a message: {error}"
        raise ImproperlyConfigured(reason) from None
    finally:
        provider.close()


def unserved_channels() -> list[str]:
    """Return the channels without a provider: all their notifications fail."""
    return [each for each in Channel.values if each not in get_settings().PROVIDERS]


def _route(entry: Mapping[str, Any]) -> Route:
    options = dict(entry)
    kind, rate = options.pop("kind", ""), options.pop("rate", None)
    if kind == "webhook":
        options.setdefault("secrets", signing_secrets())
    try:
        provider: Provider = import_string(KINDS.get(kind, kind))(**options)
        shared = None if rate is None else _shared_rate(f"provider:{provider.name}", rate)
    except (ImportError, TypeError, ValueError, InvalidConfiguration) as error:
        # Without the options, which may contain passwords.
        reason = f"A provider of the kind {kind!r} cannot be created: {error}"
        raise ImproperlyConfigured(reason) from None
    if not 0 < len(provider.name) <= MAX_NAME_LENGTH:
        raise ImproperlyConfigured(f"A provider's name has 1 to {MAX_NAME_LENGTH} characters.")
    chosen = get_settings()
    return Route(provider, shared, Circuit(chosen.CIRCUIT_FAILURES, chosen.CIRCUIT_PAUSE))


def signing_secrets() -> list[str]:
    """Return what to sign webhooks and callbacks with, the newest first."""
    return list(get_settings().SECRETS) or [_derived_secret(settings.SECRET_KEY)]


def _derived_secret(key: str) -> str:
    # The prefix separates it from other uses of the secret key.
    digest = hmac.digest(f"notifications.webhooks:{key}".encode(), b"", hashlib.sha256)
    return PREFIX + base64.b64encode(digest).decode()


def throttle_of(channel: str, recipient_hash: bytes) -> SharedRate | None:
    """Return the rate of this recipient, by its hash, if the channel has one."""
    limits = get_settings().THROTTLE.get(channel)
    return None if limits is None else _shared_rate(f"recipient:{recipient_hash.hex()}", limits)


def _shared_rate(name: str, limits: Any) -> SharedRate:
    per_second, burst = limits
    return SharedRate(name, per_second, burst, USING)


def close_routes() -> None:
    """Close the providers; the next use makes new ones."""
    if routes_of.cache_info().currsize:
        for channel in get_settings().PROVIDERS:
            for route in routes_of(channel):
                route.provider.close()
    routes_of.cache_clear()
