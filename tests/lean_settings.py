"""Settings of processes that tests start: enough for workers, in half the time.

They leave out the admin, the URLs and the example project, whose imports are most of a start.
Processes that serve or send by these name ``tests.settings``.
"""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import DELAYED_QUEUE

INSTALLED_APPS = ["delayed_queue", "delayed_queue.http", "tests.workerapp"]
MIDDLEWARE = []
ROOT_URLCONF = None  # type: ignore[assignment] # there are no URLs
TASKS = {}  # their app is not installed
# Without the section of an app that is not installed.
DELAYED_QUEUE = {key: value for key, value in DELAYED_QUEUE.items() if key != "NOTIFICATIONS"}
