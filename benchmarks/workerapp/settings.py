"""Django settings of a measured process: the package, one handler, one database."""

from __future__ import annotations

import json
import os

from benchmarks.shared.database import databases

SECRET_KEY = "benchmark" * 5
USE_TZ = True
INSTALLED_APPS = ["delayed_queue", "benchmarks.workerapp"]
DELAYED_QUEUE = json.loads(os.environ.get("BENCHMARK_SETTINGS", "{}"))
DATABASES = databases(os.environ["BENCHMARK_CONNINFO"])
