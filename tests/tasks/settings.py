"""Settings of worker processes that run the tasks of the tests."""

from __future__ import annotations

from tests.lean_settings import *  # noqa: F403

INSTALLED_APPS = ["delayed_queue", "delayed_queue.tasks", "tests.workerapp"]
# Without the sections of other apps.
DELAYED_QUEUE = {}
TASKS = {
    "default": {
        "BACKEND": "delayed_queue.tasks.DelayedQueueBackend",
        "QUEUES": ["default", "second"],
    }
}
