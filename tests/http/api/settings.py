"""Settings of the servers that the tests of the API start."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from delayed_queue.retries import Backoff
from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, EVERY_TOPIC

# The calls must not take part in request transactions.
DATABASES["default"]["ATOMIC_REQUESTS"] = True
ALLOWED_HOSTS = ["127.0.0.1"]

# Durations in seconds, because JSON has no type for them.
_more: dict[str, Any] = json.loads(os.environ.get("TEST_API_SETTINGS", "{}"))
ROOT_URLCONF = _more.pop("ROOT_URLCONF", "tests.http.api.urls")
_more.setdefault("TOPICS", EVERY_TOPIC)
_more["POP_TIMEOUT"] = timedelta(seconds=_more.get("POP_TIMEOUT", 60))
DELAYED_QUEUE = {
    "BACKOFF": Backoff(retries=_more.pop("RETRIES", 5)),
    "NOTIFY": _more.pop("NOTIFY", True),
    "SHUTDOWN_TIMEOUT": timedelta(seconds=_more.pop("SHUTDOWN_TIMEOUT", 30)),
    "POLL_INTERVAL": timedelta(seconds=_more.pop("POLL_INTERVAL", 3)),
    "API": _more,
    "CALLBACKS": {"ENABLED": True},
}
