"""The admin under Jazzmin."""

from __future__ import annotations

from tests.projects.settings.plain import *  # noqa: F403
from tests.projects.settings.plain import DISTRIBUTIONS, INSTALLED_APPS

DISTRIBUTIONS = [*DISTRIBUTIONS, "django-jazzmin"]
INSTALLED_APPS = ["jazzmin", *INSTALLED_APPS]
