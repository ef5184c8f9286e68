"""The database server of the tests, started when the first test needs it.

It is left running: the next run saves its start, and runs at the same time share it, so that none
may stop it. `DJANGO_SETTINGS_MODULE=tests.settings python manage.py queuedb stop` does.
"""

from __future__ import annotations

import pytest
from django.conf import settings


@pytest.fixture(scope="session")
def database_server() -> None:
    """Have the database server running; with xdist every worker asks, and one starts it."""
    if settings.EMBEDDED_POSTGRES is not None:
        settings.EMBEDDED_POSTGRES.start()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, database_server: None
) -> None:
    """Start the server before pytest-django creates its test database there."""
