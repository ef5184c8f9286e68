"""What the commands share: a slip is answered in one sentence, lists are tables or JSON."""

from __future__ import annotations

import json
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from shutil import get_terminal_size
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.utils.translation import gettext as _

from delayed_queue.db.resilience import advice_on
from delayed_queue.exceptions import (
    DelayedQueueError,
    InvalidMessage,
    SchemaMismatch,
    did_you_mean,
)
from delayed_queue.messages import check_text
from delayed_queue.observe.overview import find_kinds, is_known, measure, name_of
from delayed_queue.queue.queue import DelayedQueue

_GAP: Final = "  "
_LEAST: Final = 12
_FIGURE: Final = re.compile(r"[\d,.:+-]+").fullmatch
# What is no use when it is cut: figures, times, and what the commands take, as fingerprints.
_WHOLE: Final = re.compile(r"[\d,.:+-]*|[\d-]{10} [\d:]{8}|[0-9a-f]{16}").fullmatch
_IDS: Final = ("id", "run")


def add_format(parser: ArgumentParser, *more: str) -> None:
    parser.add_argument(
        "--format", choices=["table", "json", *more], default="table",
        help=_("json: everything, for programs (default: table)"),
    )  # fmt: skip


def show(out: OutputWrapper, rows: Sequence[dict[str, Any]], style: str, *, none: str = "") -> None:
    """Write the rows, whose keys are the heads of the columns.

    As a table as wide as the terminal, or 80 characters: the widest texts are cut, in JSON nothing.
    """
    if style == "json":
        out.write(json.dumps(rows, default=str))
    else:
        out.write("\n".join(lines(rows)) if rows else none or _("Nothing."))


def tell(out: OutputWrapper, said: str, style: str, **facts: Any) -> None:
    """Write what was done: a sentence for people, its facts for programs."""
    out.write(json.dumps(facts, default=str) if style == "json" else said)


def described(facts: Mapping[str, Any]) -> str:
    """Return a line for each fact about one thing."""
    width = max(map(len, facts))
    return printable("\n".join(f"{name:{width}} {_word(facts[name])}" for name in facts))


def printable(text: str) -> str:
    """Return text of several lines without what a terminal would obey."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in text)


def _word(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value or "-")


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a head and a line for each row, figures to the right."""
    heads = list(rows[0])
    cells = [[each.replace("_", " ") for each in heads]]
    cells += [[_text(row[head], is_id=head in _IDS) for head in heads] for row in rows]
    columns = list(zip(*cells, strict=True))
    can_cut = [not all(map(_WHOLE, column[1:])) for column in columns]
    widths = _fitted([max(map(len, column)) for column in columns], can_cut)
    right = [all(map(_FIGURE, column[1:])) for column in columns]
    return [_line(line, widths, right) for line in cells]


def _text(value: Any, *, is_id: bool = False) -> str:
    if value is None:
        return "-"
    if is_id:
        return str(value)  # as it is typed
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int):
        return f"{value:,}"
    # One line each, and nothing that a terminal would obey.
    return "".join(each if each.isprintable() else " " for each in str(value))


def _fitted(widths: list[int], can_cut: list[bool]) -> list[int]:
    """Return the widths, the widest cut until all fit or none is left to cut."""
    fitted, most = list(widths), get_terminal_size().columns
    while sum(fitted) + len(_GAP) * (len(fitted) - 1) > most:
        left = [each for each, can in enumerate(can_cut) if can and fitted[each] > _LEAST]
        if not left:
            break
        fitted[max(left, key=fitted.__getitem__)] -= 1
    return fitted


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    parts = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        cut = cell if len(cell) <= width else cell[: width - 1] + "…"
        parts.append(cut.rjust(width) if is_right else cut.ljust(width))
    return _GAP.join(parts).rstrip()


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
        self.help = _(self.help)
        return super().create_parser(*args, **kwargs)

    def execute(self, *args: Any, **options: Any) -> str | None:
        using = options.get("database", DEFAULT_DB_ALIAS)
        check_alias(using)
        with self.answering(using):
            return super().execute(*args, **options)

    @contextmanager
    def answering(self, using: str) -> Iterator[None]:
        """Raise CommandError, in a sentence, for an error of the package or of the database."""
        try:
            yield
        except DelayedQueueError as error:
            raise CommandError(str(error), returncode=self.exit_code(error)) from error
        except Error as error:
            raise _answered(error, using) from error
        except UnicodeEncodeError as error:
            _refuse_bytes(error)
            raise

    def exit_code(self, error: DelayedQueueError) -> int:
        """Return the exit code of an error of the package."""
        return WRONG_SCHEMA if isinstance(error, SchemaMismatch) else WRONG_CONFIGURATION


def add_switch(parser: CommandParser) -> None:
    """Add what pausing and resuming a queue have in common."""
    parser.add_argument("queue", help=_("a queue, or a kind as name|codec"))
    parser.add_argument("--dry-run", action="store_true", help=_("only show what would change"))
    add_format(parser)
    add_database(parser)


def add_database(parser: ArgumentParser, commands: Any = None) -> None:
    """Add the alias, which may stand before the name of a command below or behind it."""
    parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help=_("database alias"))
    for each in () if commands is None else commands.choices.values():
        each.add_argument("--database", default=SUPPRESS, help=_("database alias"))


def queue_named(name: str, using: str) -> DelayedQueue:
    """Return the queue of that name, or of a kind ``name|codec``; refuse one that is not there."""
    if not is_known(name, using):
        there_are = {name_of(kind).queue for kind in find_kinds(using)[0]}
        raise CommandError(
            _("There is no queue %r.") % name + did_you_mean(name, there_are),
            returncode=WRONG_USAGE,
        )
    kinds = [each.kind for each in measure([name], cap=1, using=using)[0]]
    if len(kinds) > 1:
        raise CommandError(
            _("%(name)r matches several queues. Name one of: %(kinds)s.")
            % {"name": name, "kinds": ", ".join(kinds)},
            returncode=WRONG_USAGE,
        )
    return DelayedQueue(name_of(kinds[0]).queue, kind=kinds[0], using=using)


def check_alias(using: str) -> None:
    """Raise CommandError unless the settings have a PostgreSQL database of that alias."""
    aliases = sorted(connections)
    if using not in aliases:
        raise CommandError(
            _("There is no database alias %(alias)r. Known aliases: %(aliases)s.")
            % {"alias": using, "aliases": ", ".join(aliases)}
            + did_you_mean(using, aliases),
            returncode=WRONG_USAGE,
        )
    vendor = connections[using].vendor
    if vendor != "postgresql":
        raise CommandError(
            _("The database %(alias)r is %(vendor)s; delayed_queue needs PostgreSQL.")
            % {"alias": using, "vendor": vendor},
            returncode=WRONG_CONFIGURATION,
        )


def _refuse_bytes(error: UnicodeEncodeError) -> None:
    """Raise CommandError for bytes on the command line that are no UTF-8.

    Python has them as lone surrogates. What only the output cannot show is no slip of the caller's.
    """
    try:
        check_text("text", error.object)
    except InvalidMessage as refusal:
        raise CommandError(str(refusal), returncode=WRONG_USAGE) from error


def _answered(error: Error, using: str) -> CommandError:
    said = " ".join(str(error).split())
    advice = advice_on(error, using)
    if advice:
        return CommandError(f"{advice} ({said})", returncode=WRONG_SCHEMA)
    facts = {"alias": using, "error": said}
    return CommandError(_("The database %(alias)r cannot be queried: %(error)s") % facts)
