"""The database before and around the demo: started, migrated, cleaned, and nobody else's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, transaction

from example_project.demo.exceptions import DemoError

LOCK: Final = int.from_bytes(b"demo", "big")
USER: Final = "demo"


def start_server() -> str:
    """Start the embedded server unless DATABASE_URL names another; say what is in use."""
    embedded = settings.EMBEDDED_POSTGRES
    if embedded:
        embedded.start()
    connection.ensure_connection()
    version = connection.connection.info.parameter_status("server_version")
    found = connection.settings_dict
    where = "embedded" if embedded else f"at {found['HOST'] or 'the local socket'}"
    return f"PostgreSQL {version.split()[0]} ({where}), database {found['NAME']}"


def migrate() -> None:
    call_command("migrate", verbosity=0, interactive=False)


@contextmanager
def alone() -> Iterator[None]:
    """Refuse to run while another demo uses this database: each begins by clearing it.

    A lock of a transaction on a second connection: gone with this process, however it ends.
    """
    other: Any = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
            if not cursor.fetchone()[0]:
                raise DemoError("Another demo is running on this database. Stop it first.")
        yield
    finally:
        other.close()


@contextmanager
def at_rest() -> Iterator[None]:
    """Enter when nobody is changing messages: a killed process's session ends what it is at.

    Raises OperationalError when that takes more than five seconds.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '5s'")
            cursor.execute("LOCK TABLE delayed_queue IN SHARE MODE")
        yield


def create_login() -> tuple[str, str]:
    """Create the admin's superuser with a password of this run; return both."""
    password = secrets.token_urlsafe(9)
    defaults = {"is_staff": True, "is_superuser": True, "is_active": True}
    user, _ = get_user_model().objects.update_or_create(username=USER, defaults=defaults)
    user.set_password(password)
    user.save(update_fields=["password"])
    return USER, password


def database_now() -> datetime:
    """Return the time on the clock that messages fall due by."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now: datetime = cursor.fetchone()[0]
        return now
