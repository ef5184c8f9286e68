"""DEBUG: Django keeps a log of all queries."""

from __future__ import annotations

from tests.projects.settings.plain import *  # noqa: F403

DEBUG = True
