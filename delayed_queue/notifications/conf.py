"""The section ``NOTIFICATIONS`` of the settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import _lru_cache_wrapper, cache
from typing import Annotated, Any, Final, TypeVar

from django.core.signals import setting_changed

from delayed_queue.conf import (
    MIB,
    Rule,
    RuledSection,
    count_to,
    counts,
    each,
    lasting,
    register_section,
    rules_of,
    section,
)
from delayed_queue.durations import LONGEST, ZERO
from delayed_queue.messages import CLAIMS
from delayed_queue.retries import RetryPolicy

T = TypeVar("T")
KEY: Final = "NOTIFICATIONS"
CHANNELS: Final = ("email", "sms", "webhook")
CONSOLES: Final = {channel: [{"kind": "console", "name": "console"}] for channel in CHANNELS}


def _by_channel(accepts: Callable[[Any], bool], contents: str) -> Rule:
    return Rule(
        lambda value: (
            isinstance(value, Mapping)
            and set(value) <= set(CHANNELS)
            and all(map(accepts, value.values()))
        ),
        f"It must be a dict of {', '.join(CHANNELS)}, with {contents} for each.",
    )


def _text(pattern: str, hint: str) -> Rule:
    found = re.compile(pattern, re.DOTALL)
    return Rule(lambda value: isinstance(value, str) and bool(found.fullmatch(value)), hint)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _is_period(value: Any) -> bool:
    return _is_pair(value) and count_to(1_000_000)(value[0]) and isinstance(value[1], timedelta)


def _is_entry(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("kind"), str)


# Not those of the message's own structure and addresses.
_FREE_HEADER: Final = re.compile(
    r"(?!(arc|content|list|resent)-|(bcc|cc|date|dkim-signature|from|message-id|mime-version"
    r"|received|reply-to|return-path|sender|subject|to)$)[a-z0-9][a-z0-9-]{0,60}"
)


def _is_free_header(name: Any) -> bool:
    return isinstance(name, str) and bool(_FREE_HEADER.fullmatch(name.lower()))


_YEARS: Final = lasting(ZERO, LONGEST)
_SECRET: Final = _text(".*", "It must be a text.")
_SECRETS: Final = Rule(each(_SECRET.accepts), "It must be a list of texts.")
_BROKER: Final = _text(".+", "It must be a url, as in 'amqp://…'.")
_QUEUE: Final = _text(".+", "It must be the name of a queue.")
_TENANT: Final = _text(".+", "It must be the name of a tenant.")
_PROVIDERS: Final = _by_channel(each(lambda entry: isinstance(entry, Mapping)), "a list of dicts")
_RETRY: Final = Rule(lambda value: isinstance(value, RetryPolicy), "It must be a RetryPolicy.")
_CLAIM: Final = Rule(lambda value: value in CLAIMS, f"It must be one of {', '.join(CLAIMS)}.")
_EVENTS: Final = Rule(
    lambda value: isinstance(value, Mapping) and all(map(_is_entry, value.values())),
    "It must be a dict of dicts, each with a 'kind'.",
)
_HEADERS: Final = Rule(
    each(_is_free_header), "It must be a list of headers that no mail has already."
)
# Mailbox providers demand https; plain http is for tests on one machine. With a longer prefix the
# link could exceed a line of a mail.
_PUBLIC: Final = _text(
    r"|(https://[!-~]{1,200}|http://(localhost|127\.0\.0\.1)[!-~]{0,100})",
    "It must be the https URL of the API, as in 'https://…/v1'.",
)


@dataclass(frozen=True, slots=True)
class NotificationSettings:
    """The keys of ``DELAYED_QUEUE["NOTIFICATIONS"]``, as in docs/reference/settings.md."""

    DEDUPE_WINDOW: Annotated[timedelta, _YEARS] = timedelta(hours=24)
    HASH_KEY: Annotated[str, _SECRET] = field(default="", repr=False)
    BULK_ITEMS: Annotated[int, counts(1, 10_000)] = 1000
    BROKER_URL: Annotated[str, _BROKER] = field(default="memory://", repr=False)
    BROKER_QUEUE: Annotated[str, _QUEUE] = "notifications"
    BROKER_TENANT: Annotated[str, _TENANT] = "broker"
    RETENTION: Annotated[timedelta, _YEARS] = timedelta(days=90)
    PROVIDERS: Annotated[Mapping[str, Sequence[Mapping[str, Any]]], _PROVIDERS] = field(
        default_factory=lambda: CONSOLES, repr=False
    )
    RETRY: Annotated[RetryPolicy, _RETRY] = field(
        default_factory=lambda: RetryPolicy.exponential(timedelta(seconds=5), max_attempts=8)
    )
    THROTTLE: Annotated[
        Mapping[str, tuple[float, int]], _by_channel(_is_pair, "(per second, burst)")
    ] = field(default_factory=dict)
    LEASE: Annotated[timedelta, lasting(timedelta(seconds=1), timedelta(days=1))] = timedelta(
        minutes=1
    )
    CLAIM: Annotated[str, _CLAIM] = "fast"
    WAIT: Annotated[timedelta, lasting(ZERO, timedelta(minutes=1))] = timedelta(milliseconds=500)
    SECRETS: Annotated[Sequence[str], _SECRETS] = field(default=(), repr=False)
    CIRCUIT_FAILURES: Annotated[int, counts(1, 1_000_000)] = 30
    CIRCUIT_PAUSE: Annotated[timedelta, lasting(ZERO, timedelta(days=1))] = timedelta(seconds=5)
    EVENTS: Annotated[Mapping[str, Mapping[str, Any]], _EVENTS] = field(
        default_factory=dict, repr=False
    )
    SOFT_BOUNCES: Annotated[
        tuple[int, timedelta], Rule(_is_period, "It must be a number and a timedelta.")
    ] = (5, timedelta(days=7))
    PUBLIC_URL: Annotated[str, _PUBLIC] = ""
    SMS_SEGMENTS: Annotated[int, counts(1, 255)] = 10
    ATTACHMENT_BYTES: Annotated[int, counts(0, 8 * MIB)] = MIB
    MAIL_HEADERS: Annotated[Sequence[str], _HEADERS] = (
        "Auto-Submitted", "In-Reply-To", "References", "X-Entity-Ref-ID",
    )  # fmt: skip


class _Section(RuledSection):
    """The section, in which two values may also contradict each other."""

    def wrongs(self, value: Any) -> Iterator[tuple[str, str]]:
        found = list(super().wrongs(value))
        yield from found
        if not found and (made := self.made(value)).RETENTION < made.DEDUPE_WINDOW:
            yield "['RETENTION'] cannot be used.", "It must not be below DEDUPE_WINDOW."


register_section(KEY, _Section(NotificationSettings, rules_of(NotificationSettings)))


def cached(build: Callable[..., T]) -> _lru_cache_wrapper[T]:
    """Cache the results of a function until settings change."""
    found = cache(build)
    setting_changed.connect(lambda **_: found.cache_clear(), weak=False)
    return found


def get_settings() -> NotificationSettings:
    """Return the section in force; raises InvalidConfiguration for what cannot be used."""
    found: NotificationSettings = section(KEY)
    return found
