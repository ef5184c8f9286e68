"""The check that this version and the database's tables belong together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.apps import apps
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from delayed_queue.exceptions import SchemaMismatch

# The queue and the apps built on it.
_PACKAGE: Final = "delayed_queue"


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
