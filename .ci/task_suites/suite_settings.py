"""Settings under which the suites of others run."""

from __future__ import annotations

import os

from example_project.settings import database

INSTALLED_APPS = ["delayed_queue", "delayed_queue.tasks"]
DATABASES = {"default": database(os.environ["DATABASE_URL"])}
TESTED = "test_task_suites"
DATABASES["default"]["TEST"] = {"NAME": TESTED}

SECRET_KEY = os.environ["SECRET_KEY"]
TASKS = {
    "default": {
        "BACKEND": "delayed_queue.tasks.DelayedQueueBackend",
        "QUEUES": ["default", "queue-1"],
    }
}
TEST_RUNNER = "stand_in.Runner"
USE_TZ = True
