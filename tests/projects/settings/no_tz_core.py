"""USE_TZ = False, without the notifications."""

from __future__ import annotations

from tests.projects.settings.plain import *  # noqa: F403
from tests.projects.settings.plain import DELAYED_QUEUE, INSTALLED_APPS

USE_TZ = False
INSTALLED_APPS = [each for each in INSTALLED_APPS if each != "delayed_queue.notifications"]
DELAYED_QUEUE = {key: value for key, value in DELAYED_QUEUE.items() if key != "NOTIFICATIONS"}
