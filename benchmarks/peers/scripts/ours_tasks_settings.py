"""Django settings of the worker under test where it serves tasks, whose results may be kept."""

from __future__ import annotations

import protocol
from ours_settings import *  # noqa: F403 # as Django settings are extended

INSTALLED_APPS = ["delayed_queue", "delayed_queue.tasks", "ours_app"]
TASKS = {
    "default": {
        "BACKEND": "delayed_queue.tasks.DelayedQueueBackend",
        "QUEUES": ["tasks", "tasks-stamped"],
        "OPTIONS": {"RESULTS": protocol.OPTIONS.get("results")},
    }
}
