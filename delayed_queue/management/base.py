"""The commands' common ground: a slip is answered in one sentence, with an exit code."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.utils.translation import gettext

from delayed_queue.db.resilience import advice_on
from delayed_queue.exceptions import DelayedQueueError, SchemaMismatch, did_you_mean
from delayed_queue.management.tables import add_format
from delayed_queue.observe.overview import find_kinds, is_known, measure, name_of
from delayed_queue.queue.queue import DelayedQueue


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


WRONG_CONFIGURATION: Final = 1
WRONG_USAGE: Final = 2
# As of a worker: the tables are of another version, so that starting again is in vain.
WRONG_SCHEMA: Final = 78


class QueueCommand(BaseCommand):
    """A command that keeps tracebacks to itself; Django's ``--traceback`` shows them."""

    def create_parser(self, *args: Any, **kwargs: Any) -> CommandParser:
        self.help = gettext(self.help)
        return super().create_parser(*args, **kwargs)

    def execute(self, *args: Any, **options: Any) -> str | None:
        using = options.get("database", DEFAULT_DB_ALIAS)
        check_alias(using)
        try:
            return super().execute(*args, **options)
        except DelayedQueueError as error:
            raise CommandError(str(error), returncode=self.exit_code(error)) from error
        except Error as error:
            raise _answered(error, using) from error

    def exit_code(self, error: DelayedQueueError) -> int:
        """Return the exit code of an error of the package."""
        return WRONG_SCHEMA if isinstance(error, SchemaMismatch) else WRONG_CONFIGURATION


def add_switch(parser: CommandParser) -> None:
    """Add what pausing and resuming a queue have in common."""
    parser.add_argument("queue", help=gettext("a queue, or a kind as name|codec"))
    parser.add_argument(
        "--dry-run", action="store_true", help=gettext("only say what would change")
    )
    add_format(parser)
    parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help=gettext("database alias"))


def queue_named(name: str, using: str) -> DelayedQueue:
    """Return the queue of that name, or of a kind ``name|codec``; refuse one that is not there."""
    if not is_known(name, using):
        there_are = {name_of(kind).queue for kind in find_kinds(using)[0]}
        raise CommandError(
            f"There is no queue {name!r}.{did_you_mean(name, there_are)}", returncode=WRONG_USAGE
        )
    kinds = [each.kind for each in measure([name], cap=1, using=using)[0]]
    if len(kinds) > 1:
        raise CommandError(
            f"{name!r} is several queues; name one: {', '.join(kinds)}.", returncode=WRONG_USAGE
        )
    return DelayedQueue(name_of(kinds[0]).queue, kind=kinds[0], using=using)


def check_alias(using: str) -> None:
    """Raise CommandError unless the settings have a PostgreSQL database of that alias."""
    aliases = sorted(connections)
    if using not in aliases:
        raise CommandError(
            f"There is no database alias {using!r}; there are: {', '.join(aliases)}."
            f"{did_you_mean(using, aliases)}",
            returncode=WRONG_USAGE,
        )
    vendor = connections[using].vendor
    if vendor != "postgresql":
        raise CommandError(
            f"The database {using!r} is {vendor}; delayed_queue needs PostgreSQL.",
            returncode=WRONG_CONFIGURATION,
        )


def _answered(error: Error, using: str) -> CommandError:
    said = " ".join(str(error).split())
    advice = advice_on(error, using)
    if advice:
        return CommandError(f"{advice} ({said})", returncode=WRONG_SCHEMA)
    return CommandError(f"The database {using!r} cannot be asked: {said}")
