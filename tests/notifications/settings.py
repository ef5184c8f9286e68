"""Settings of dispatchers that tests start: the service without pages and the admin."""

from __future__ import annotations

from tests.lean_settings import *  # noqa: F403
from tests.lean_settings import INSTALLED_APPS
from tests.settings import DELAYED_QUEUE as DELAYED_QUEUE

INSTALLED_APPS = [*INSTALLED_APPS, "delayed_queue.notifications"]
