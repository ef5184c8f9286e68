"""The sections ``API`` and ``CALLBACKS`` of the settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from ipaddress import ip_network
from typing import Annotated, Any, Final

from delayed_queue.conf import (
    KIB,
    MIB,
    Rule,
    RuledSection,
    count_to,
    counts,
    each,
    is_flag,
    lasting,
    register_section,
    rules_of,
    section,
)
from delayed_queue.durations import LONGEST

_PATTERN: Final = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|[0-9a-f:.]+", re.IGNORECASE)
_TOPIC: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,79}\*?", re.ASCII)
# Characters of an idempotency key.
MAX_KEY: Final = 200


def _is_host(value: Any) -> bool:
    return isinstance(value, str) and _PATTERN.fullmatch(value) is not None


def _is_network(value: Any) -> bool:
    try:
        return isinstance(value, str) and ip_network(value) is not None
    except ValueError:
        return False


def _is_rate(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0.001 <= value <= 100_000)


def _is_topic(value: Any) -> bool:
    return isinstance(value, str) and _TOPIC.fullmatch(value) is not None


_FLAG: Final = Rule(is_flag, "It must be True or False.")
_TIMEOUT: Final = lasting(timedelta(milliseconds=1), timedelta(minutes=10))
_UP_TO_5_MINUTES: Final = lasting(timedelta(0), timedelta(minutes=5))
_HOSTS: Final = Rule(each(_is_host), "It must be a list of names, as in '*.corp.example'.")
_NETWORKS: Final = Rule(each(_is_network), "It must be a list of CIDR, as in '10.1.0.0/16'.")
_PORTS: Final = Rule(each(count_to(65_535)), "It must be a list of ints from 1 to 65535.")
_PATH: Final = Rule(lambda value: isinstance(value, str), "It must be a path, or empty.")
_RETRY_AFTER: Final = lasting(timedelta(0), timedelta(days=365))
_PAUSE: Final = lasting(timedelta(milliseconds=100), timedelta(hours=1))
_RETENTION: Final = lasting(timedelta(minutes=1), LONGEST)
_TOPICS: Final = Rule(
    each(_is_topic),
    "It must be a list of topics or prefixes with a star, as in ['orders', 'shop.*']. A star "
    "alone is refused: it would serve the project's own queues too.",
)
_ALIAS: Final = Rule(
    lambda value: isinstance(value, str) and bool(value), "It must be a database alias."
)
_RATE: Final = Rule(_is_rate, "It must be a number from 0.001 to 100000, or None.")


@dataclass(frozen=True, slots=True)
class CallbackSettings:
    """The settings ``CALLBACKS``: limits and targets of callbacks.

    ``ENABLED``: workers send the callbacks of all topics; False sends none.
    ``ALLOWED_HOSTS``: names whose addresses may be private: exact, or ``*.suffix``.
    ``ALLOWED_NETWORKS``: further allowed addresses that are not public, as CIDR.
    ``ALLOWED_PORTS``: allowed ports besides 80 and 443.
    ``CONNECT_TIMEOUT``: the limit of DNS, connection and TLS together.
    ``TOTAL_TIMEOUT``: the limit of a callback, with the answer's body.
    ``CONNECTIONS``: the maximum of callbacks that one event loop has on the wire.
    ``RETRY_AFTER_LIMIT``: the longest wait that a ``Retry-After`` header can cause.
    ``CA_FILE``: trusted certificates besides the system's, in PEM; empty for none.
    ``BREAKER_FAILURES``: failures in a row after which all workers suspend a host.
    ``BREAKER_PAUSE``: the first suspension; doubled while probes fail, up to an hour.
    ``ATTEMPTS_RETENTION``: how long the log of attempts is kept.
    """

    ENABLED: Annotated[bool, _FLAG] = False
    ALLOWED_HOSTS: Annotated[Sequence[str], _HOSTS] = ()
    ALLOWED_NETWORKS: Annotated[Sequence[str], _NETWORKS] = ()
    ALLOWED_PORTS: Annotated[Sequence[int], _PORTS] = ()
    CONNECT_TIMEOUT: Annotated[timedelta, _TIMEOUT] = timedelta(seconds=5)
    TOTAL_TIMEOUT: Annotated[timedelta, _TIMEOUT] = timedelta(seconds=15)
    CONNECTIONS: Annotated[int, counts(1, 10_000)] = 200
    RETRY_AFTER_LIMIT: Annotated[timedelta, _RETRY_AFTER] = timedelta(hours=24)
    CA_FILE: Annotated[str, _PATH] = ""
    BREAKER_FAILURES: Annotated[int, counts(1, 1000)] = 5
    BREAKER_PAUSE: Annotated[timedelta, _PAUSE] = timedelta(seconds=30)
    ATTEMPTS_RETENTION: Annotated[timedelta, _RETENTION] = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Limits and access of the HTTP API: the keys of ``DELAYED_QUEUE["API"]``, in upper case.

    ``TOPICS``: the served topics: names, or prefixes with a star; a queue with a handler only by
    its full name.
    ``PUBLIC``: answer requests without a token; for development only.
    ``DATABASE``: the alias of tokens and topics.
    ``THREADS``: database threads of a server process, one connection each.
    ``TOKEN_CACHE``: how long a process trusts a token that it has read.
    ``RATE``: requests per second of a token without a rate of its own; None is no limit.
    ``BURST``: requests at once under RATE.
    ``BODY_BYTES``: the maximum size of a request's body.
    ``DEPTH``: the maximum nesting of arrays and objects in it.
    ``BULK_BYTES``: the maximum size of a bulk request's body.
    ``BULK_ITEMS``: the maximum of items of a bulk request.
    ``POP_COUNT``: the maximum of jobs that one pop leases.
    ``POP_TIMEOUT``: the maximum wait of one pop.
    ``WAITERS``: the maximum of waiting pops in one process.
    """

    TOPICS: Annotated[Sequence[str], _TOPICS] = ()
    PUBLIC: Annotated[bool, _FLAG] = False
    DATABASE: Annotated[str, _ALIAS] = "default"
    THREADS: Annotated[int, counts(1, 1000)] = 8
    TOKEN_CACHE: Annotated[timedelta, _UP_TO_5_MINUTES] = timedelta(seconds=5)
    RATE: Annotated[float | None, _RATE] = None
    BURST: Annotated[int, counts(1, 1_000_000)] = 100
    BODY_BYTES: Annotated[int, counts(KIB, 16 * MIB)] = 256 * KIB
    DEPTH: Annotated[int, counts(1, 100)] = 32
    BULK_BYTES: Annotated[int, counts(KIB, 64 * MIB)] = 4 * MIB
    BULK_ITEMS: Annotated[int, counts(1, 10_000)] = 1000
    POP_COUNT: Annotated[int, counts(1, 1000)] = 100
    POP_TIMEOUT: Annotated[timedelta, _UP_TO_5_MINUTES] = timedelta(seconds=60)
    WAITERS: Annotated[int, counts(1, 100_000)] = 1000


register_section("API", RuledSection(ApiSettings, rules_of(ApiSettings)))
register_section("CALLBACKS", RuledSection(CallbackSettings, rules_of(CallbackSettings)))

# The sections in force; they raise as ``delayed_queue.conf.get_settings`` does.
api_settings: Final[Callable[[], ApiSettings]] = partial(section, "API")
callback_settings: Final[Callable[[], CallbackSettings]] = partial(section, "CALLBACKS")
