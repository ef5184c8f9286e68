"""The admin under Unfold."""

from __future__ import annotations

from tests.projects.settings.plain import *  # noqa: F403
from tests.projects.settings.plain import DISTRIBUTIONS, INSTALLED_APPS

DISTRIBUTIONS = [*DISTRIBUTIONS, "django-unfold"]
INSTALLED_APPS = ["unfold", *INSTALLED_APPS]
BREADCRUMBS = "<h1.*?</h1>"
