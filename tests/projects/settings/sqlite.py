"""SQLite for the project, PostgreSQL for the package."""

from __future__ import annotations

from tests.projects.settings.second import *  # noqa: F403
from tests.projects.settings.second import DATABASES, env

DATABASES = {
    **DATABASES,
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": env.str("SQLITE_PATH")},
}
