"""The section ``NOTIFICATIONS`` of the settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import _lru_cache_wrapper, cache
from typing import Any, Final, TypeVar

from django.core.signals import setting_changed

from delayed_queue.conf import (
    MIB,
    Rule,
    RuledSection,
    counts,
    each,
    lasting,
    register_section,
    section,
)
from delayed_queue.durations import LONGEST, ZERO
from delayed_queue.messages import CLAIMS
from delayed_queue.retries import RetryPolicy

T = TypeVar("T")
KEY: Final = "NOTIFICATIONS"
CHANNELS: Final = ("email", "sms", "webhook")
CONSOLES: Final = {channel: [{"kind": "console", "name": "console"}] for channel in CHANNELS}


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """The keys of ``DELAYED_QUEUE["NOTIFICATIONS"]``, as in docs/reference/settings.md."""

    DEDUPE_WINDOW: timedelta = timedelta(hours=24)
    HASH_KEY: str = field(default="", repr=False)
    BULK_ITEMS: int = 1000
    BROKER_URL: str = field(default="memory://", repr=False)
    BROKER_QUEUE: str = "notifications"
    BROKER_TENANT: str = "broker"
    RETENTION: timedelta = timedelta(days=90)
    PROVIDERS: Mapping[str, Sequence[Mapping[str, Any]]] = field(
        default_factory=lambda: CONSOLES, repr=False
    )
    RETRY: RetryPolicy = field(
        default_factory=lambda: RetryPolicy.exponential(timedelta(seconds=5), max_attempts=8)
    )
    THROTTLE: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    LEASE: timedelta = timedelta(minutes=1)
    CLAIM: str = "fast"
    WAIT: timedelta = timedelta(milliseconds=500)
    SECRETS: Sequence[str] = field(default=(), repr=False)
    CIRCUIT_FAILURES: int = 30
    CIRCUIT_PAUSE: timedelta = timedelta(seconds=5)
    EVENTS: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    SOFT_BOUNCES: tuple[int, timedelta] = (5, timedelta(days=7))
    PUBLIC_URL: str = ""
    SMS_SEGMENTS: int = 10
    ATTACHMENT_BYTES: int = MIB
    MAIL_HEADERS: Sequence[str] = ("Auto-Submitted", "In-Reply-To", "References", "X-Entity-Ref-ID")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_public(value: Any) -> bool:
    return isinstance(value, str) and bool(_PUBLIC.fullmatch(value))


def _by_channel(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Mapping)
        and set(value) <= set(CHANNELS)
        and all(map(accepts, value.values()))
    )


def _is_limit(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _has_kind(value: Any) -> bool:
    return isinstance(value, Mapping) and _is_name(value.get("kind"))


# Not those of the message's own structure and addresses.
_FREE_HEADER: Final = re.compile(
    r"(?!(arc|content|list|resent)-|(bcc|cc|date|dkim-signature|from|message-id|mime-version"
    r"|received|reply-to|return-path|sender|subject|to)$)[a-z0-9][a-z0-9-]{0,60}"
)
# Mailbox providers demand https; plain http is for tests on one machine. With a longer prefix the
# link could exceed a line of a mail.
_PUBLIC: Final = re.compile(r"|(https://[!-~]{1,200}|http://(localhost|127\.0\.0\.1)[!-~]{0,100})")
_YEARS: Final = lasting(ZERO, LONGEST)
RULES: Final[Mapping[str, Rule]] = {
    "DEDUPE_WINDOW": _YEARS,
    "HASH_KEY": Rule(_is_text, "It must be a text."),
    "BULK_ITEMS": counts(1, 10_000),
    "BROKER_URL": Rule(_is_name, "It must be a url, as in 'amqp://…'."),
    "BROKER_QUEUE": Rule(_is_name, "It must be the name of a queue."),
    "BROKER_TENANT": Rule(_is_name, "It must be the name of a tenant."),
    "RETENTION": _YEARS,
    "PROVIDERS": Rule(
        _by_channel(each(lambda entry: isinstance(entry, Mapping))),
        f"It must be a dict of {', '.join(CHANNELS)}, with a list of dicts for each.",
    ),
    "RETRY": Rule(lambda value: isinstance(value, RetryPolicy), "It must be a RetryPolicy."),
    "THROTTLE": Rule(
        _by_channel(_is_limit),
        f"It must be a dict of {', '.join(CHANNELS)}, with (per second, burst) for each.",
    ),
    "LEASE": lasting(timedelta(seconds=1), timedelta(days=1)),
    "CLAIM": Rule(lambda value: value in CLAIMS, f"It must be one of {', '.join(CLAIMS)}."),
    "WAIT": lasting(ZERO, timedelta(minutes=1)),
    "SECRETS": Rule(each(_is_text), "It must be a list of texts."),
    "CIRCUIT_FAILURES": counts(1, 1_000_000),
    "CIRCUIT_PAUSE": lasting(ZERO, timedelta(days=1)),
    "EVENTS": Rule(
        lambda value: isinstance(value, Mapping) and all(map(_has_kind, value.values())),
        "It must be a dict of dicts, each with a 'kind'.",
    ),
    "SOFT_BOUNCES": Rule(
        lambda value: (
            _is_limit(value)
            and type(value[0]) is int
            and value[0] > 0
            and isinstance(value[1], timedelta)
        ),
        "It must be a number and a timedelta.",
    ),
    "SMS_SEGMENTS": counts(1, 255),
    "ATTACHMENT_BYTES": counts(0, 8 * MIB),
    "MAIL_HEADERS": Rule(
        each(
            lambda name: isinstance(name, str) and _FREE_HEADER.fullmatch(name.lower()) is not None
        ),
        "It must be a list of headers that no mail has already.",
    ),
    "PUBLIC_URL": Rule(_is_public, "It must be the https URL of the API, as in 'https://…/v1'."),
}


class _Section(RuledSection):
    """The section, in which two values may also contradict each other."""

    def wrongs(self, value: Any) -> Iterator[tuple[str, str]]:
        found = list(super().wrongs(value))
        yield from found
        if not found and (made := self.made(value)).RETENTION < made.DEDUPE_WINDOW:
            yield "['RETENTION'] cannot be used.", "It must not be below DEDUPE_WINDOW."


register_section(KEY, _Section(NotificationSettings, RULES))


def cached(build: Callable[..., T]) -> _lru_cache_wrapper[T]:
    """Cache the results of a function until settings change."""
    found = cache(build)
    setting_changed.connect(lambda **_: found.cache_clear(), weak=False)
    return found


def get_settings() -> NotificationSettings:
    """Return the section in force; raises InvalidConfiguration for what cannot be used."""
    found: NotificationSettings = section(KEY)
    return found
