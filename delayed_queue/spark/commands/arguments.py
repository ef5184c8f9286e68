"""The base of commands: how one ends, and arguments that are refused in a sentence."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from delayed_queue.codecs import check_kind, codec_named, kind_of
from delayed_queue.exceptions import DelayedQueueError, InvalidConfiguration
from delayed_queue.retries import parse_duration

DONE: Final = 0
FAILED: Final = 1
QUARANTINED: Final = 3


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


def add_partitions(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--partitions", type=whole, metavar="N", help="of what is read or offered, at most"
    )


CODECS: Final = ("json", "text", "bytes")
MODES: Final = ("offer", "upsert")


def asked_kind(options: Namespace) -> str:
    """Return the kind of --queue: a name and the codec's, or a kind as it is written.

    Raises what ``check_kind`` raises.
    """
    name = str(options.queue)
    if "|" in name:
        return check_kind(name)
    return check_kind(kind_of(check_kind(name), codec_named(options.codec)))


def asked_name(options: Namespace) -> str | None:
    """Return the name of --queue, also of one that is written as a kind.

    Raises InvalidConfiguration when that kind is of another codec than --codec.
    """
    name, bar, codec = (options.queue or "").rpartition("|")
    if not bar:
        return options.queue  # type: ignore[no-any-return]
    if codec != options.codec:
        raise InvalidConfiguration(
            f"--queue {options.queue!r} is a kind of the codec {codec!r}, and --codec is "
            f"{options.codec!r}."
        )
    return name
