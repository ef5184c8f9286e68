"""The commands' common ground: a slip is answered in one sentence, with an exit code."""

from __future__ import annotations

from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, Error, connections

from delayed_queue.db.resilience import advice_on
from delayed_queue.exceptions import DelayedQueueError, SchemaMismatch
from delayed_queue.suggestions import did_you_mean

WRONG_CONFIGURATION: Final = 1
WRONG_USAGE: Final = 2
# As of a worker: the tables are of another version, so that starting again is in vain.
WRONG_SCHEMA: Final = 78


class QueueCommand(BaseCommand):
    """A command that keeps tracebacks to itself; Django's ``--traceback`` shows them."""

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
