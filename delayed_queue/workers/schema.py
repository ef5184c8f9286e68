"""The check that this version and the database's tables belong together."""

from __future__ import annotations

from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from delayed_queue.exceptions import SchemaMismatch

_APP = "delayed_queue"


def check_schema(using: str) -> None:
    """Raise SchemaMismatch unless exactly this version's migrations are applied.

    A worker of an older version might write rows that the newer tables do not mean, so it
    refuses to start. One that runs goes on: migrations leave room for it.
    """
    known = {name for app, name in MigrationLoader(None).disk_migrations if app == _APP}
    applied = {
        name for app, name in MigrationRecorder(connections[using]).applied_migrations()
        if app == _APP
    }  # fmt: skip
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
