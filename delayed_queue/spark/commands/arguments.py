"""Types of arguments: what is written wrong is refused by argparse, in a sentence."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.retries import parse_duration


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except (DelayedQueueError, ValueError, OverflowError) as error:
            raise ArgumentTypeError(str(error)) from None

    return parsed


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not name=value")
    return name, value


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


def _positive(text: str) -> timedelta:
    found = parse_duration(text)
    if not found:
        raise ValueError(f"{text!r} is no time at all")
    return found


def _ratio(text: str) -> float:
    found = float(text)
    if not 0 <= found <= 1:
        raise ValueError(f"{text!r} is not from 0 to 1")
    return found


def _delimiter(text: str) -> str:
    found = "\t" if text == "\\t" else text
    if len(found) != 1 or found in '"\r\n':
        raise ValueError(f"{text!r} is not one character that can stand between cells")
    return found


whole = _argument(_whole)
pair = _argument(_pair)
instant = _argument(_instant)
duration = _argument(_positive)
ratio = _argument(_ratio)
number = _argument(float)
delimiter = _argument(_delimiter)
