"""Django's own connection pool."""

from __future__ import annotations

from tests.projects.settings.plain import *  # noqa: F403
from tests.projects.settings.plain import DATABASES, DISTRIBUTIONS

DISTRIBUTIONS = [*DISTRIBUTIONS, "psycopg-pool"]
DATABASES = {
    "default": {
        **DATABASES["default"],
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            **DATABASES["default"].get("OPTIONS", {}),
            "pool": {"min_size": 1, "max_size": 20},
        },
    }
}
