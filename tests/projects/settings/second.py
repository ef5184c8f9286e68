"""The package on a second PostgreSQL database, through a router."""

from __future__ import annotations

from tests.projects.settings.plain import *  # noqa: F403
from tests.projects.settings.plain import DATABASES, DELAYED_QUEUE, TASKS, env

ALIAS = "queue"
DATABASES = {**DATABASES, "queue": env.db_url("SECOND_DATABASE_URL")}
DATABASE_ROUTERS = ["tests.projects.routers.QueueElsewhere"]
DELAYED_QUEUE = {**DELAYED_QUEUE, "API": {"TOPICS": ["jobs"], "DATABASE": ALIAS}}
TASKS = {"default": {**TASKS["default"], "OPTIONS": {"DATABASE": ALIAS}}}
