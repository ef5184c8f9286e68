"""Django settings of a measured worker process: the package, one handler, one database."""

from __future__ import annotations

import json
import os

from psycopg.conninfo import conninfo_to_dict

SECRET_KEY = "benchmark"  # noqa: S105
USE_TZ = True
INSTALLED_APPS = ["delayed_queue", "benchmarks.workerapp"]
DELAYED_QUEUE = json.loads(os.environ.get("BENCHMARK_SETTINGS", "{}"))

_parts = conninfo_to_dict(os.environ["BENCHMARK_CONNINFO"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _parts.pop("dbname"),
        "USER": _parts.pop("user", ""),
        "PASSWORD": _parts.pop("password", ""),
        "HOST": _parts.pop("host", ""),
        "PORT": _parts.pop("port", ""),
        "OPTIONS": _parts,
        "CONN_MAX_AGE": None,
        "DISABLE_SERVER_SIDE_CURSORS": "BENCHMARK_POOLED" in os.environ,
    }
}
