"""The demo's database: started, migrated, and one demo's alone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlsplit

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import ProgrammingError, connection

from example_project.demo.console import DemoError
from example_project.management.commands.migrate import locks

LOCK: Final = int.from_bytes(b"demo", "big")


def start() -> str:
    """Start the embedded server unless DATABASE_URL names another, and migrate; say which it is."""
    if settings.EMBEDDED_POSTGRES:
        settings.EMBEDDED_POSTGRES.start()
    connection.ensure_connection()
    call_command("migrate", verbosity=0, interactive=False)
    _check_tables()
    version = connection.connection.info.parameter_status("server_version").split()[0]
    found = connection.settings_dict
    where = "embedded" if settings.EMBEDDED_POSTGRES else f"at {found['HOST'] or 'its socket'}"
    return f"PostgreSQL {version} ({where}), database {found['NAME']}"


def _check_tables() -> None:
    """Raise where a table lacks what this version has: until a release, none are migrated."""
    try:
        for model in apps.get_models():
            model._default_manager.order_by().first()
    except ProgrammingError as error:
        way = "Drop that database"
        if settings.EMBEDDED_POSTGRES:
            home = settings.EMBEDDED_POSTGRES.home
            way = f"`python manage.py queuedb stop`, remove {home}"
        raise DemoError(
            "The database was made by another version of the project, before the first release: "
            f"{str(error).splitlines()[0]}. {way}, and run this again."
        ) from error


def url() -> str:
    """Return the URL of the database in use; in tests that is not the one the settings name."""
    embedded = settings.EMBEDDED_POSTGRES
    found = urlsplit(embedded.socket_url if embedded else os.environ["DATABASE_URL"])
    return found._replace(path=f"/{quote(connection.settings_dict['NAME'], safe='')}").geturl()


def now() -> datetime:
    """Return the time on the clock that messages fall due by."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        found: datetime = cursor.fetchone()[0]
        return found


@contextmanager
def alone() -> Iterator[None]:
    """Refuse to run while another demo uses this database: each begins by clearing it.

    A lock of a transaction on a second connection: gone with this process, however it ends.
    """
    other: Any = connection.copy()
    try:
        other.set_autocommit(False)
        if not locks(other, LOCK):
            raise DemoError("Another demo is running on this database. Stop it first.")
        yield
    finally:
        other.close()


def create_login() -> str:
    """Create the admin's superuser with a password of this run; return how to log in."""
    password = secrets.token_urlsafe(9)
    defaults = {"is_staff": True, "is_superuser": True, "is_active": True}
    user, _ = get_user_model().objects.update_or_create(username="demo", defaults=defaults)
    user.set_password(password)
    user.save(update_fields=["password"])
    return f"(user demo, password {password})"
