"""Types of command line arguments, whose refusals are said in words."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta


def count(least: int, most: int) -> Callable[[str], int]:
    """Return a type for whole numbers in that range."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
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
