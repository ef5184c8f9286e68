"""Base of the commands: their arguments, output and errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.utils.translation import gettext

from delayed_queue.db.resilience import advice_on
from delayed_queue.exceptions import (
    DelayedQueueError,
    InvalidMessage,
    SchemaMismatch,
    did_you_mean,
)
from delayed_queue.facade import DelayedQueue
from delayed_queue.management.arguments import Argument, add_all, add_database
from delayed_queue.management.tables import lines
from delayed_queue.messages import check_text, from_milliseconds
from delayed_queue.observe.overview import find_kinds, is_known, measure, name_of

WRONG_CONFIGURATION: Final = 1
WRONG_USAGE: Final = 2
# As of a worker: the tables have another version, so a restart does not help.
WRONG_SCHEMA: Final = 78

Row = dict[str, Any]


class Outcome(NamedTuple):
    """The result of a command: a sentence for people, its facts for programs."""

    text: str
    facts: Row


# A sentence, rows of a table, or lines of a file.
Result = Outcome | list[Row] | Iterator[str]


def optional_time(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else from_milliseconds(milliseconds)


def wrong_usage(text: str) -> CommandError:
    return CommandError(text, returncode=WRONG_USAGE)


class QueueCommand(BaseCommand):
    """A command whose errors are one sentence; Django's ``--traceback`` shows the traceback."""

    arguments: tuple[Argument | tuple[Argument, ...], ...] = ()

    def create_parser(self, *args: Any, **kwargs: Any) -> CommandParser:
        self.help = gettext(self.help)
        return super().create_parser(*args, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        add_all(parser, *self.arguments)
        add_database(parser)

    def execute(self, *args: Any, **options: Any) -> str | None:
        using = options.get("database", DEFAULT_DB_ALIAS)
        check_alias(using)
        with self.answering(using):
            return super().execute(*args, **options)

    def write(self, result: Result, style: str, *, none: Any = "", columns: str = "") -> None:
        """Write the result as text, or as JSON with all facts and columns."""
        match result:
            case Outcome(_, facts) | (list() as facts) if style == "json":
                self.stdout.write(json.dumps(facts, default=str))
            case Outcome(text, _):
                self.stdout.write(text)
            case list(rows):
                table = lines(rows, columns.split(), is_fitted=self.stdout.isatty())
                self.stdout.write("\n".join(table) if rows else str(none) or "Nothing.")
            case texts:
                for each in texts:
                    self.stdout.write(each)

    @contextmanager
    def answering(self, using: str) -> Iterator[None]:
        """Turn errors of the package and of the database into CommandError."""
        try:
            yield
        except DelayedQueueError as error:
            raise CommandError(str(error), returncode=self.exit_code(error)) from error
        except Error as error:
            raise _database_error(error, using) from error
        except UnicodeEncodeError as error:
            _refuse_bytes(error)
            raise

    def exit_code(self, error: DelayedQueueError) -> int:
        return WRONG_SCHEMA if isinstance(error, SchemaMismatch) else WRONG_CONFIGURATION


class Verb(NamedTuple):
    """A subcommand: its help, its function, its arguments, and how rows are shown."""

    help: Any
    run: Callable[[dict[str, Any]], Result]
    arguments: tuple[Argument, ...]
    # The sentence for an empty list, and the columns of the table; JSON has all.
    none: Any = ""
    columns: str = ""


class VerbCommand(QueueCommand):
    """A command with subcommands."""

    verbs: Mapping[str, Verb]

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        for name, verb in self.verbs.items():
            add_all(commands.add_parser(name, help=verb.help), *verb.arguments)
        add_database(parser, commands)

    def handle(self, **options: Any) -> None:
        verb = self.verbs[options["command"]]
        result = verb.run(options)
        self.write(result, options.get("format", ""), none=verb.none, columns=verb.columns)


def queue_of(options: Mapping[str, Any]) -> DelayedQueue:
    """Return the queue that the options name, by its name or kind."""
    name, using = options["queue"], options["database"]
    check_queues([name], using)
    kinds = [each.kind for each in measure([name], cap=1, using=using)[0]]
    if len(kinds) > 1:
        text = f"{name!r} matches several queues. Name one of: {', '.join(kinds)}."
        raise wrong_usage(text)
    return DelayedQueue(name_of(kinds[0]).queue, kind=kinds[0], using=using)


def check_queues(names: Iterable[str], using: str) -> None:
    """Raise CommandError for the first unknown name of a queue."""
    for name in names:
        if not is_known(name, using):
            raise wrong_usage(f"There is no queue {name!r}.{similar_queue(name, using)}")


def similar_queue(name: str, using: str) -> str:
    """Return "did you mean" with the most similar queue; empty without one."""
    return did_you_mean(name, {name_of(kind).queue for kind in find_kinds(using)[0]})


def check_alias(using: str) -> None:
    """Raise CommandError unless the alias is a PostgreSQL database of the settings."""
    aliases = sorted(connections)
    if using not in aliases:
        text = f"There is no database alias {using!r}. Known aliases: {', '.join(aliases)}."
        raise wrong_usage(text + did_you_mean(using, aliases))
    vendor = connections[using].vendor
    if vendor != "postgresql":
        text = f"The database {using!r} is {vendor}; delayed_queue needs PostgreSQL."
        raise CommandError(text)


def _refuse_bytes(error: UnicodeEncodeError) -> None:
    """Raise CommandError for a command line that is not UTF-8, but not for other encodings.

    Python decodes such bytes as lone surrogates.
    """
    try:
        check_text("text", error.object)
    except InvalidMessage as refusal:
        raise wrong_usage(str(refusal)) from error


def _database_error(error: Error, using: str) -> CommandError:
    words = " ".join(str(error).split())
    if advice := advice_on(error, using):
        return CommandError(f"{advice} ({words})", returncode=WRONG_SCHEMA)
    return CommandError(f"The database {using!r} cannot be queried: {words}")
