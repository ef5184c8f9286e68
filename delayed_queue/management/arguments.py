"""Types of command line arguments, whose refusals are said in words."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta


def count(least: int, most: int) -> Callable[[str], int]:
    """Return a type for whole numbers in that range."""

    def parse(text: str) -> int:
        # By length first: Python refuses to read a number of thousands of digits.
        if not text.isdecimal() or len(text) > 19 or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is not a number from {least:,} to {most:,}")
        return int(text)

    return parse


def seconds(text: str) -> timedelta:
    """Return the time span of so many seconds, fractions allowed."""
    try:
        span = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        span = timedelta(-1)
    if span < timedelta(0):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds")
    return span


def interval(text: str) -> timedelta:
    """Return a time span that is not zero."""
    if not (span := seconds(text)):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return span


def span(least: timedelta, most: timedelta) -> Callable[[str], timedelta]:
    """Return a type for time spans in that range, given in seconds."""
    bounds = " to ".join(f"{each.total_seconds():,.10g}" for each in (least, most))

    def parse(text: str) -> timedelta:
        try:
            found = timedelta(seconds=float(text))
        except (ValueError, OverflowError):
            found = timedelta.max
        if not least <= found <= most:
            raise ArgumentTypeError(f"{text!r} is not a number of seconds from {bounds}")
        return found

    return parse


def address(text: str) -> tuple[str, int]:
    """Return the host and the port of ``HOST:PORT``; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)
