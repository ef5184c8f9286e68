"""Django settings of the Django peers: those of their documentation, and BENCH_OPTIONS."""

from __future__ import annotations

import os

import protocol

PEER = os.environ["BENCH_PEER"]
BACKENDS = {
    "django_tasks_db": "django_tasks_db.DatabaseBackend",
    "django_ox": "django_ox.backend.OxBackend",
}
SECRET_KEY = "benchmark"  # noqa: S105
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [PEER]
TASKS = {"default": {"BACKEND": BACKENDS[PEER]}}
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        **protocol.OPTIONS.get("database", {}),
    }
}
LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"level": "ERROR"}}
