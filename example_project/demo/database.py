"""The database before and around the demo: started, migrated, cleaned, and nobody else's."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection

from example_project.demo.exceptions import DemoError

LOCK: Final = int.from_bytes(b"demo", "big")
USER: Final = "demo"
_BUSY: Final = """
SELECT EXISTS (
    SELECT 1
    FROM pg_stat_activity
    WHERE datname = current_database()
        AND backend_type = 'client backend'
        AND pid <> pg_backend_pid()
        AND (state = 'active' OR backend_xid IS NOT NULL)
)
"""


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


def wait_for_rest(seconds: float = 5.0) -> None:
    """Return when no other session is changing anything; raise DemoError if that takes too long.

    The session of a process that was killed ends what it is at, and what it has been sent, before
    it notices. A lock would not do: what waits for it goes on when it is given back.
    """
    end = time.monotonic() + seconds
    quiet = 0
    # Between two statements that were sent at once a session looks idle for a moment.
    while quiet < 3:
        if time.monotonic() > end:
            raise DemoError("Other sessions are still changing the database.")
        time.sleep(0.05)
        quiet = 0 if _is_anyone_busy() else quiet + 1


def _is_anyone_busy() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(_BUSY)
        return bool(cursor.fetchone()[0])


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
