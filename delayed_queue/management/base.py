"""Base of the commands: every error is one sentence, with "did you mean" for names."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.utils.translation import gettext as _

from delayed_queue.db.resilience import advice_on
from delayed_queue.exceptions import (
    DelayedQueueError,
    InvalidMessage,
    SchemaMismatch,
    did_you_mean,
)
from delayed_queue.facade import DelayedQueue
from delayed_queue.management.arguments import Argument, add_all, add_database
from delayed_queue.management.tables import show, tell
from delayed_queue.messages import check_text
from delayed_queue.observe.overview import find_kinds, is_known, measure, name_of

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


class Told(NamedTuple):
    """The outcome of a subcommand: a sentence for people, its facts for programs."""

    said: str
    facts: dict[str, Any]


class Verb(NamedTuple):
    """A subcommand: its help, what runs it with the options, and its arguments."""

    help: Any
    run: Callable[[dict[str, Any]], Told | list[dict[str, Any]] | Iterator[str]]
    arguments: tuple[Argument, ...]
    # The sentence for an empty list.
    none: Any = ""


class VerbCommand(QueueCommand):
    """A command of several subcommands, which return a sentence, rows or lines."""

    verbs: Mapping[str, Verb]

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        for name, verb in self.verbs.items():
            add_all(commands.add_parser(name, help=verb.help), *verb.arguments)
        add_database(parser, commands)

    def handle(self, **options: Any) -> None:
        verb = self.verbs[options["command"]]
        match verb.run({**options, "stderr": self.stderr}):
            case Told(said, facts):
                tell(self.stdout, said, options["format"], **facts)
            case list(rows):
                show(self.stdout, rows, options["format"], none=str(verb.none))
            case lines:
                for each in lines:
                    self.stdout.write(each)


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
