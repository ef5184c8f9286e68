"""USE_TZ = False: the notifications are refused."""

from __future__ import annotations

from tests.projects.settings.plain import *  # noqa: F403

USE_TZ = False
