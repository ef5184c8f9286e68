"""Arguments that commands share, and the types of their values."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS
from django.utils.translation import gettext_lazy as _

from delayed_queue.conf import MAX_LEASE
from delayed_queue.durations import check_duration
from delayed_queue.exceptions import DelayedQueueError


class Argument(NamedTuple):
    """An argument of a command: its name and the options of ``add_argument``."""

    name: str
    options: dict[str, Any]


def arg(name: str, help: Any = None, **options: Any) -> Argument:  # noqa: A002
    return Argument(name, {"help": help, **options})


def flag(name: str, help: Any) -> Argument:  # noqa: A002
    return arg(name, help, action="store_true")


def text(name: str, metavar: str, help: Any) -> Argument:  # noqa: A002
    return arg(name, help, metavar=metavar)


def add_all(parser: Any, *arguments: Argument | tuple[Argument, ...]) -> None:
    """Add the arguments; those of a tuple exclude each other."""
    for each in arguments:
        if isinstance(each, Argument):
            parser.add_argument(each.name, **each.options)
        else:
            add_all(parser.add_mutually_exclusive_group(), *each)


def add_database(parser: ArgumentParser, commands: Any = None) -> None:
    """Add the database alias, before and after the names of subcommands."""
    parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help=str(_("database alias")))
    for each in () if commands is None else commands.choices.values():
        each.add_argument("--database", default=SUPPRESS, help=str(_("database alias")))


def count(least: int, most: int) -> Callable[[str], int]:
    """Return a type for whole numbers in that range."""

    def parse(text: str) -> int:
        # Length first: Python refuses to parse thousands of digits.
        if not text.isdecimal() or len(text) > 19 or not least <= int(text) <= most:
            raise ArgumentTypeError(f"{text!r} is not a number from {least:,} to {most:,}")
        return int(text)

    return parse


def number(name: str, help: Any, least: int, most: int, **options: Any) -> Argument:  # noqa: A002
    return arg(name, help, type=count(least, most), metavar="N", **options)


def duration(
    name: str,
    help: Any,  # noqa: A002
    least: timedelta = timedelta(0),
    most: timedelta = MAX_LEASE,
    **options: Any,
) -> Argument:
    """Return an option for a duration such as ``30m``, ``2d``, or a number of seconds."""

    def parse(text: str) -> timedelta:
        try:
            return check_duration(name.lstrip("-"), text, least, most)
        except DelayedQueueError as error:
            raise ArgumentTypeError(str(error)) from None

    return arg(name, help, type=parse, metavar="DURATION", **options)


def address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def one_of(*choices: str) -> Argument:
    """Return the format of the output; the first choice is the default."""
    words = _("json: everything, for programs (default: %s)") % choices[0]
    return arg("--format", words, choices=choices, default=choices[0])


def at_most(default: int, most: int) -> Argument:
    """Return the maximum number of rows."""
    return number("--limit", _("rows (default: %s)") % default, 1, most, default=default)


QUEUE: Final = arg("queue", _("a queue, or a kind as name|codec"))
OF_QUEUE: Final = text("--queue", "NAME", _("of one queue, or kind as name|codec"))
FORMAT: Final = one_of("table", "json")
DRY_RUN: Final = flag("--dry-run", _("only show what would change"))
WHY: Final = arg("--why", _("shown beside the queue"), default="", metavar="TEXT")
