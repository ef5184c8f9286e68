"""Settings of worker processes that send callbacks to a test's receivers."""

from __future__ import annotations

import os
from datetime import timedelta

from tests.lean_settings import *  # noqa: F403

DELAYED_QUEUE = {
    "CALLBACKS": {
        "ENABLED": True,
        "ALLOWED_NETWORKS": ["127.0.0.0/8"],
        "ALLOWED_PORTS": [int(port) for port in os.environ.get("RECEIVERS", "").split()],
        "BREAKER_FAILURES": int(os.environ.get("BREAKER_FAILURES", "1000")),
        "TOTAL_TIMEOUT": timedelta(seconds=10),
    }
}
# One line per failure would fill the pipe, which a test reads only at its end.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"delayed_queue": {"level": "CRITICAL"}},
}
