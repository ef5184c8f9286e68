"""Arguments that commands share, and the types of their values."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS
from django.utils.translation import gettext_lazy as _


class Argument(NamedTuple):
    """An argument of a command: its name, and the options of ``add_argument``."""

    name: str
    options: dict[str, Any]


def arg(name: str, help: Any = None, **options: Any) -> Argument:  # noqa: A002
    return Argument(name, {"help": help, **options})


def flag(name: str, help: Any) -> Argument:  # noqa: A002
    return arg(name, help, action="store_true")


def text(name: str, metavar: str, help: Any) -> Argument:  # noqa: A002
    return arg(name, help, metavar=metavar)


QUEUE: Final = arg("queue", _("a queue, or a kind as name|codec"))
OF_QUEUE: Final = text("--queue", "NAME", _("of one queue, or kind as name|codec"))
FORMAT: Final = arg(
    "--format",
    _("json: everything, for programs (default: table)"),
    choices=["table", "json"],
    default="table",
)
DRY_RUN: Final = flag("--dry-run", _("only show what would change"))
WHY: Final = arg("--why", _("shown beside the queue"), default="", metavar="TEXT")


def add_all(parser: ArgumentParser, *arguments: Argument) -> None:
    for each in arguments:
        parser.add_argument(each.name, **each.options)


def add_format(parser: ArgumentParser, *more: str) -> None:
    options = {**FORMAT.options, "choices": ["table", "json", *more]}
    parser.add_argument("--format", **options)


def add_database(parser: ArgumentParser, commands: Any = None) -> None:
    """Add the database alias, before and behind the names of subcommands."""
    parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help=str(_("database alias")))
    for each in () if commands is None else commands.choices.values():
        each.add_argument("--database", default=SUPPRESS, help=str(_("database alias")))


def count(least: int, most: int) -> Callable[[str], int]:
    """Return a type for whole numbers in that range."""

    def parse(text: str) -> int:
        # By length first: Python refuses to read a number of thousands of digits.
        if not text.isdecimal() or len(text) > 19 or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is not a number from {least:,} to {most:,}")
        return int(text)

    return parse


def seconds(text: str) -> timedelta:
    """Convert a number of seconds, fractions allowed, to a time span."""
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
