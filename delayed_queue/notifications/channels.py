"""The providers of each channel, in order, made from the settings dict ``DISPATCH``."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache, lru_cache
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from delayed_queue import RetryPolicy
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.callbacks.signing import PREFIX, sign
from delayed_queue.http.rates import SharedRate
from delayed_queue.notifications.circuits import Circuit
from delayed_queue.notifications.models import MAX_NAME_LENGTH, Channel
from delayed_queue.notifications.providers import Provider

SETTING: Final = "DISPATCH"
_PACKAGE: Final = "delayed_queue.notifications.providers"
KINDS: Final = {
    "apprise": f"{_PACKAGE}.apprises.AppriseProvider",
    "console": f"{_PACKAGE}.console.ConsoleProvider",
    "email": f"{_PACKAGE}.email.EmailProvider",
    "http": f"{_PACKAGE}.http.HttpSmsProvider",
    "webhook": f"{_PACKAGE}.webhook.WebhookProvider",
}
_CONSOLE: Final = {channel.value: [{"kind": "console", "name": "console"}] for channel in Channel}


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Every key of ``DISPATCH``, in upper case.

    ``PROVIDERS``: for each channel its providers in order of preference, each a dict of ``kind``
    (or a dotted path), ``name``, perhaps ``rate`` (per second, burst), and the kind's options.
    ``RETRY``: when to try again after a transient failure, and how often.
    ``THROTTLE``: for each channel, how many a second one recipient gets, and how many at once.
    ``LEASE``: how long a dispatcher that died is waited for.
    ``CLAIM``: "fast", or "strict" where one batch must not be split between two dispatchers.
    ``GATHER``: how long what is to be written waits for more of it.
    ``WAIT``: how long a dispatcher waits in place for a provider's rate, before it snoozes.
    ``SECRETS``: what webhooks and callbacks are signed with, the newest first; empty derives one
    from ``SECRET_KEY``.
    ``CIRCUIT_FAILURES``, ``CIRCUIT_PAUSE``: after how many failures of a provider in a row it is
    left alone, and for how long.
    """

    PROVIDERS: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=lambda: _CONSOLE)
    RETRY: RetryPolicy = field(
        default_factory=lambda: RetryPolicy.exponential(timedelta(seconds=5), max_attempts=8)
    )
    THROTTLE: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    LEASE: timedelta = timedelta(minutes=1)
    CLAIM: str = "fast"
    GATHER: timedelta = timedelta(milliseconds=5)
    WAIT: timedelta = timedelta(milliseconds=500)
    SECRETS: Sequence[str] = ()
    CIRCUIT_FAILURES: int = 30
    CIRCUIT_PAUSE: timedelta = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Route:
    """One provider of a channel, its shared rate and its circuit."""

    provider: Provider
    rate: SharedRate | None
    circuit: Circuit

    @property
    def name(self) -> str:
        return self.provider.name


@lru_cache(maxsize=1)
def get_settings() -> DispatchSettings:
    """Return the settings; raises ImproperlyConfigured for an unknown key or channel."""
    configured: dict[str, Any] = getattr(settings, SETTING, {})
    _check_known(SETTING, configured, {each.name for each in fields(DispatchSettings)})
    made = DispatchSettings(**configured)
    _check_known("PROVIDERS", made.PROVIDERS, set(Channel.values))
    _check_known("THROTTLE", made.THROTTLE, set(Channel.values))
    return made


def _check_known(what: str, given: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(set(given) - known):
        raise ImproperlyConfigured(f"{what} has unknown keys: {', '.join(unknown)}.")


@cache
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
    """Raise ImproperlyConfigured for what no message could be sent with.

    Said before a worker starts: a dispatcher that finds out by the messages fails them all.
    """
    for channel in get_settings().PROVIDERS:
        for route in _made_routes(channel):
            route.provider.close()
    try:
        for channel in get_settings().THROTTLE:
            throttle_of(channel, b"")
        sign(signing_secrets(), "check", 0, b"")
    except (TypeError, InvalidConfiguration) as error:
        raise ImproperlyConfigured(f"{SETTING}: {error}") from None


def unserved_channels() -> list[str]:
    """Return the channels that have no provider, of which every notification fails."""
    return [each for each in Channel.values if each not in get_settings().PROVIDERS]


def _route(entry: Mapping[str, Any]) -> Route:
    options = dict(entry)
    kind, rate = options.pop("kind", ""), options.pop("rate", None)
    if kind == "webhook":
        options.setdefault("secrets", signing_secrets())
    try:
        provider: Provider = import_string(KINDS.get(kind, kind))(**options)
        shared = None if rate is None else SharedRate(f"provider:{provider.name}", *rate)
    except (ImportError, TypeError, ValueError, InvalidConfiguration) as error:
        # Not the options themselves: they may hold passwords.
        reason = f"A provider of the kind {kind!r} cannot be made: {error}"
        raise ImproperlyConfigured(reason) from None
    if not 0 < len(provider.name) <= MAX_NAME_LENGTH:
        raise ImproperlyConfigured(f"A provider's name has 1 to {MAX_NAME_LENGTH} characters.")
    chosen = get_settings()
    return Route(provider, shared, Circuit(chosen.CIRCUIT_FAILURES, chosen.CIRCUIT_PAUSE))


def signing_secrets() -> list[str]:
    """Return what to sign webhooks and callbacks with, the newest first."""
    return list(get_settings().SECRETS) or [_derived_secret(settings.SECRET_KEY)]


def _derived_secret(key: str) -> str:
    # The prefix keeps it apart from all other uses of the secret key.
    digest = hmac.digest(f"notifications.webhooks:{key}".encode(), b"", hashlib.sha256)
    return PREFIX + base64.b64encode(digest).decode()


def throttle_of(channel: str, recipient_hash: bytes) -> SharedRate | None:
    """Return the rate of this recipient, by its hash, if the channel has one."""
    limits = get_settings().THROTTLE.get(channel)
    return None if limits is None else SharedRate(f"recipient:{recipient_hash.hex()}", *limits)


def close_routes() -> None:
    """Close the providers that were made, and make them anew when they are next asked for."""
    if routes_of.cache_info().currsize:
        for channel in get_settings().PROVIDERS:
            for route in routes_of(channel):
                route.provider.close()
    routes_of.cache_clear()


def _forget(*, setting: str, **_: Any) -> None:
    if setting == SETTING:
        routes_of.cache_clear()
        get_settings.cache_clear()


setting_changed.connect(_forget)
