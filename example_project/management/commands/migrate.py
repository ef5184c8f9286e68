"""Django's `migrate`, safe to start in several containers at once."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.conf import settings
from django.core.management import CommandError
from django.core.management.commands import migrate
from django.db import ProgrammingError, connections

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK: Final = int.from_bytes(b"migrate", "big")


class Command(migrate.Command):
    """Wait until no other `migrate` runs on this database, then run, then check the tables.

    Django first reads which migrations are missing, then applies them. If several processes start
    on an empty database, the slower ones fail on tables that exist by then.
    """

    def handle(self, *args: Any, **options: Any) -> str | None:
        """Run Django's command while no other process does."""
        with alone(options["database"]):
            answer = super().handle(*args, **options)
        if not (options["app_label"] or options["plan"] or options["check_unapplied"]):
            check_tables(options["database"])
        return answer


def check_tables(alias: str) -> None:
    """Raise if a table lacks a column of this version: before a release there is no upgrade."""
    try:
        for model in apps.get_models():
            model._default_manager.using(alias).order_by().first()
    except ProgrammingError as error:
        embedded = settings.EMBEDDED_POSTGRES
        way = f"`python manage.py queuedb stop`, remove {embedded.home}" if embedded else "Drop it"
        raise CommandError(
            "The database was made by another version of the project, before the first release: "
            f"{str(error).splitlines()[0]}. {way}, and run this again."
        ) from error


@contextmanager
def alone(alias: str) -> Iterator[None]:
    """Hold the lock in a transaction of a second connection; `migrate` commits on its own.

    A lock of a transaction, because PgBouncer loses those of a session. It polls instead of
    waiting: a waiting statement has a snapshot, for which CREATE INDEX CONCURRENTLY in the
    migrations of the holder would wait for ever.
    """
    connection = connections[alias].copy()
    try:
        connection.set_autocommit(False)
        while not locks(connection, LOCK):
            connection.rollback()
            time.sleep(0.1)
        yield
    finally:
        connection.close()


def locks(connection: Any, lock: int) -> bool:
    """Try to take the lock until the transaction ends; return True if it succeeded."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [lock])
        locked = bool(cursor.fetchone()[0])
        # The transaction idles while the lock is held. This second statement also closes the
        # portal of the first, whose snapshot the migrations would wait for.
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        return locked
