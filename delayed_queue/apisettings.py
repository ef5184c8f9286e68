"""The settings of the HTTP API: ``DELAYED_QUEUE["API"]``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Limits and doors of the HTTP API; every key of ``DELAYED_QUEUE["API"]``, in upper case.

    ``PUBLIC``: answer requests without a token; for development only.
    ``DOCS``: serve the documentation page; None does so where ``DEBUG`` is on.
    ``METRICS_PUBLIC``: serve ``/metrics`` without a token.
    ``DATABASE``: the alias that tokens and topics are kept in.
    ``THREADS``: threads of a server process that ask the database, one connection each.
    ``TOKEN_CACHE``: how long a process trusts what it read of a token.
    ``RATE``: requests per second of a token that has no rate of its own; None is no limit.
    ``BURST``: how many of them may come at once.
    ``BODY_BYTES``: the largest body of a request.
    ``DEPTH``: the deepest nesting of arrays and objects in it.
    ``BULK_BYTES``: the largest body of a bulk request.
    ``BULK_ITEMS``: the most items of a bulk request.
    ``POP_COUNT``: the most jobs that one pop leases.
    ``POP_TIMEOUT``: the longest that one pop waits.
    ``WAITERS``: the most pops that wait in one process.
    """

    PUBLIC: bool = False
    DOCS: bool | None = None
    METRICS_PUBLIC: bool = False
    DATABASE: str = "default"
    THREADS: int = 8
    TOKEN_CACHE: timedelta = timedelta(seconds=5)
    RATE: float | None = None
    BURST: int = 100
    BODY_BYTES: int = 256 * _KIB
    DEPTH: int = 32
    BULK_BYTES: int = 4 * _MIB
    BULK_ITEMS: int = 1000
    POP_COUNT: int = 100
    POP_TIMEOUT: timedelta = timedelta(seconds=60)
    WAITERS: int = 1000


_COUNTS: Final = {
    "THREADS": (1, 1000),
    "BURST": (1, 1_000_000),
    "BODY_BYTES": (_KIB, 16 * _MIB),
    "DEPTH": (1, 100),
    "BULK_BYTES": (_KIB, 64 * _MIB),
    "BULK_ITEMS": (1, 10_000),
    "POP_COUNT": (1, 1000),
    "WAITERS": (1, 100_000),
}
_SPANS: Final = {
    "TOKEN_CACHE": (timedelta(0), timedelta(minutes=5)),
    "POP_TIMEOUT": (timedelta(0), timedelta(minutes=5)),
}


def what_is_wrong(key: str, value: Any) -> str | None:
    """Return what the value of a key of API must be, or None when it is."""
    if key in _COUNTS:
        least, most = _COUNTS[key]
        fits = type(value) is int and least <= value <= most
        return None if fits else f"It must be an int from {least} to {most}."
    if key in _SPANS:
        shortest, longest = _SPANS[key]
        fits = isinstance(value, timedelta) and shortest <= value <= longest
        return None if fits else f"It must be a timedelta from {shortest} to {longest}."
    return _wrong_choice(key, value)


def _wrong_choice(key: str, value: Any) -> str | None:
    rules = {
        "PUBLIC": (isinstance(value, bool), "It must be True or False."),
        "METRICS_PUBLIC": (isinstance(value, bool), "It must be True or False."),
        "DOCS": (value is None or isinstance(value, bool), "It must be True, False or None."),
        "DATABASE": (isinstance(value, str) and bool(value), "It must be a database alias."),
        "RATE": (
            value is None or _is_rate(value),
            "It must be a number from 0.001 to 100000.",
        ),
    }
    fits, rule = rules[key]
    return None if fits else rule


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and 0.001 <= value <= 100_000
