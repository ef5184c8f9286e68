"""Check a worker's database: whether its tables fit, and whether it is there."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

from django.apps import apps
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from psycopg import pq
from psycopg.conninfo import make_conninfo

from delayed_queue.conf import get_settings
from delayed_queue.exceptions import DatabaseRefused, ResourceUnavailable, SchemaMismatch
from delayed_queue.observe.logs import described, first_line, log

# What no waiting mends: wrong user or password, no such database, no permission.
_REFUSALS: Final = ("28", "3D000", "42501")


# The queue and the apps built on it.
_PACKAGE: Final = "delayed_queue"


class Outage:
    """The time since the database was last there, for one worker.

    A worker that has never reached it ends when it is refused: at once where the SQLSTATE says
    so. Connections are refused without one, so then it must last as long as calls are repeated
    elsewhere; and the server must be there, or it is an outage. ``is_finite``: one that is to
    end when nothing is left waits no longer than that for an outage, too.
    """

    def __init__(self, using: str, *, is_finite: bool) -> None:
        self._using = using
        self._is_finite = is_finite
        self._began_at: float | None = None
        self.is_at_start = True

    def end(self) -> None:
        """The database is there."""
        self._began_at = None
        self.is_at_start = False

    def note(self, error: Exception) -> None:
        """Log the error that begins an outage; raise if there is no point in trying again."""
        now = time.monotonic()
        if self._began_at is None:
            self._began_at = now
            log(logging.ERROR, "database_unavailable", error=described(error))
        is_long = now - self._began_at >= get_settings().BACKOFF.deadline.total_seconds()
        if self.is_at_start and self._is_refusal(error, is_long=is_long):
            raise DatabaseRefused(
                f"The database {self._using!r} refuses this worker: {first_line(error)}"
            ) from error
        if self._is_finite and is_long:
            raise ResourceUnavailable(
                f"The database {self._using!r} was away for {now - self._began_at:.0f} s: "
                f"{first_line(error)}"
            ) from error

    def _is_refusal(self, error: Exception, *, is_long: bool) -> bool:
        sqlstate = getattr(error.__cause__, "sqlstate", None)
        if sqlstate is not None:
            return str(sqlstate).startswith(_REFUSALS)
        return is_long and self._is_server_there()

    def _is_server_there(self) -> bool:
        params = connections[self._using].get_connection_params()
        known = {one.keyword.decode() for one in pq.Conninfo.get_defaults()}
        conninfo = make_conninfo(**{key: each for key, each in params.items() if key in known})
        return pq.PGconn.ping(conninfo.encode()) == pq.Ping.OK


def check_schema(using: str) -> None:
    """Raise SchemaMismatch unless exactly this version's migrations are applied.

    A worker of an older version might write rows that the newer tables do not mean, so it
    refuses to start. One that runs goes on: migrations leave room for it.
    """
    labels = our_labels()
    known = _named(MigrationLoader(None).disk_migrations, labels)
    applied = _named(MigrationRecorder(connections[using]).applied_migrations(), labels)
    if not known:  # MIGRATION_MODULES turned them off
        return
    if newer := sorted(applied - known):
        raise SchemaMismatch(
            f"The database has migrations of delayed_queue that this version does not know: "
            f"{', '.join(newer)}. Upgrade the package on this host."
        )
    if missing := sorted(known - applied):
        raise SchemaMismatch(
            f"The database lacks migrations of delayed_queue: {', '.join(missing)}. "
            "Run manage.py migrate."
        )


def our_labels() -> set[str]:
    """Return the labels of the package's apps that are installed."""
    return {
        each.label
        for each in apps.get_app_configs()
        if each.name == _PACKAGE or each.name.startswith(f"{_PACKAGE}.")
    }


def name_of_migration(app: str, name: str) -> str:
    """Return it as ``migrate`` takes it: of the core by name, of others with the app."""
    return name if app == _PACKAGE else f"{app} {name}"


def _named(migrations: Iterable[tuple[str, str]], labels: set[str]) -> set[str]:
    return {name_of_migration(app, name) for app, name in migrations if app in labels}
