"""Settings of dispatchers that tests start: the service itself, without pages and the admin."""

from __future__ import annotations

from tests.lean_settings import *  # noqa: F403
from tests.lean_settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "delayed_queue.notifications"]
