"""Django settings of the Django peers: what their documentation says, and BENCH_OPTIONS."""

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
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        **protocol.OPTIONS.get("database", {}),
    }
}
if PEER in BACKENDS:
    TASKS = {"default": {"BACKEND": BACKENDS[PEER]}}
else:
    # Retries must be later than timeouts, says its documentation.
    Q_CLUSTER = {
        "name": "benchmark",
        "orm": "default",
        "workers": protocol.PROCESSES,
        "timeout": 60,
        "retry": 120,
        "log_level": "ERROR",
        **protocol.OPTIONS.get("cluster", {}),
    }
LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"level": "ERROR"}}
