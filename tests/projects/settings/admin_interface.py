"""The admin under django-admin-interface."""

from __future__ import annotations

from tests.projects.settings.plain import *  # noqa: F403
from tests.projects.settings.plain import DISTRIBUTIONS, INSTALLED_APPS

DISTRIBUTIONS = [*DISTRIBUTIONS, "django-admin-interface"]
INSTALLED_APPS = ["admin_interface", "colorfield", *INSTALLED_APPS]
X_FRAME_OPTIONS = "SAMEORIGIN"
