"""Django settings of the worker under test."""

from __future__ import annotations

import os

SECRET_KEY = "benchmark"  # noqa: S105
USE_TZ = True
INSTALLED_APPS = ["delayed_queue", "ours_app"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        "CONN_MAX_AGE": None,
    }
}
