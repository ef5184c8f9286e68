"""Checks of a worker's database: its availability, schema and rights."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from typing import Final, NamedTuple, NoReturn

from django.apps import apps
from django.db import connections, router
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from psycopg import pq
from psycopg.conninfo import make_conninfo

from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import is_unavailable
from delayed_queue.db.sql import MISSING_RIGHTS, rows_of
from delayed_queue.db.statements import fetch
from delayed_queue.exceptions import DatabaseRefused, ResourceUnavailable, SchemaMismatch
from delayed_queue.logs import described, first_line, log

# Errors that waiting does not cure: wrong user or password, no such database, no permission.
_REFUSALS: Final = ("28", "3D000", "42501")


# The queue and the apps built on it.
_PACKAGE: Final = "delayed_queue"
# As in 0002_expiry_compat1.
_COMPATIBILITY: Final = re.compile(r"_compat([0-9]+)$")


class Outage:
    """The duration of an outage of the database, for a worker.

    A worker that has never reached the database ends when it is refused, at once if there is an
    SQLSTATE. Refused connections have no SQLSTATE, so then the server must respond, and the refusal
    must last as long as calls are repeated. With ``is_finite`` (burst), an outage ends the worker
    after this time, too.
    """

    def __init__(self, using: str, *, is_finite: bool) -> None:
        self._using = using
        self._is_finite = is_finite
        self._began_at: float | None = None
        self.is_at_start = True

    def end(self) -> None:
        """Record that the database is available."""
        self._began_at = None
        self.is_at_start = False

    def note(self, error: Exception) -> None:
        """Log the error that starts an outage; raise if a retry is useless."""
        now = time.monotonic()
        if self._began_at is None:
            self._began_at = now
            if is_unavailable(error):
                log(logging.ERROR, "database_unavailable", error=described(error))
            else:
                log(logging.ERROR, "database_refuses", error=described(error))
        is_long = now - self._began_at >= get_settings().BACKOFF.deadline.total_seconds()
        if self.is_at_start and self._is_refusal(error, is_long=is_long):
            self._refuse(error)
        if self._is_finite and is_long:
            raise ResourceUnavailable(
                f"The database {self._using!r} was away for {now - self._began_at:.0f} s: "
                f"{first_line(error)}"
            ) from error

    def check_refusal(self, error: Exception) -> None:
        """Raise if a refused claim must end the worker: in a burst, or a right at the start."""
        if self._is_finite or (self.is_at_start and self._is_refusal(error, is_long=False)):
            self._refuse(error)

    def _refuse(self, error: Exception) -> NoReturn:
        raise DatabaseRefused(
            f"The database {self._using!r} refuses this worker: {first_line(error)}"
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


def check_schema(using: str) -> dict[str, str]:
    """Raise SchemaMismatch unless this version can work on the tables; return other differences.

    Tables may be newer by additions, and older by what this version can do without. A worker that
    runs during a migration continues in any case.
    """
    labels = our_labels()
    ours = {key: each for key, each in MigrationLoader(None).disk_migrations.items()
            if key[0] in labels}  # fmt: skip
    if not ours:  # MIGRATION_MODULES turned them off
        return {}
    applied = {
        key
        for key in MigrationRecorder(connections[using]).applied_migrations()
        if key[0] in labels
    }
    newer, lacking = applied - ours.keys(), ours.keys() - applied
    if foreign := _named(each for each in newer if not _is_met(each, ours)):
        raise SchemaMismatch(
            f"The database has migrations of delayed_queue that this version does not know: "
            f"{foreign}. Upgrade the package on this host."
        )
    if missing := _named(each for each in lacking if is_needed(ours[each])):
        raise SchemaMismatch(
            f"The database lacks migrations of delayed_queue: {missing}. Run manage.py migrate."
        )
    differences = {"newer": _named(newer), "missing": _named(lacking)}
    return {name: names for name, names in differences.items() if names}


def is_needed(migration: Migration) -> bool:
    """Return whether workers of this version need it; an index, for example, is not needed."""
    return getattr(migration, "workers_need_it", True)


def _is_met(unknown: tuple[str, str], ours: Iterable[tuple[str, str]]) -> bool:
    """Return whether code with these migrations works on tables with the unknown one."""
    number = compatibility(unknown[1])
    own = (compatibility(name) or 1 for app, name in ours if app == unknown[0])
    return number is not None and number <= max(own, default=0)


def compatibility(name: str) -> int | None:
    """Return the number at the end of a migration's name: code with this number can work on it.

    It is in the name, because older versions find only the name.
    """
    found = _COMPATIBILITY.search(name)
    return int(found[1]) if found else None


def our_labels() -> set[str]:
    """Return the labels of the package's apps that are installed."""
    return {
        each.label
        for each in apps.get_app_configs()
        if each.name == _PACKAGE or each.name.startswith(f"{_PACKAGE}.")
    }


class MissingRight(NamedTuple):
    """A right that a worker needs and its role lacks; OWNER: making partitions of days."""

    role: str
    table: str
    privilege: str

    def __str__(self) -> str:
        return f"{self.privilege} {'of' if self.privilege == 'OWNER' else 'on'} {self.table}"


def missing_rights(using: str) -> list[MissingRight]:
    """Return the rights of a worker that the role lacks on the tables that exist."""
    tables = [
        model._meta.db_table
        for label in sorted(our_labels())
        for model in apps.get_app_config(label).get_models()
        if not model._meta.proxy and router.allow_migrate_model(using, model)
    ]
    return rows_of(MissingRight, fetch(using, MISSING_RIGHTS, {"tables": tables}))


def name_of_migration(app: str, name: str) -> str:
    """Return it as ``migrate`` takes it: of the core by name, of others with the app."""
    return name if app == _PACKAGE else f"{app} {name}"


def _named(migrations: Iterable[tuple[str, str]]) -> str:
    return ", ".join(sorted(name_of_migration(app, name) for app, name in migrations))
