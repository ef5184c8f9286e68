"""Settings of the tests: the example project's, on a server without crash safety."""

from __future__ import annotations

import os
import string
from datetime import timedelta

# The example project needs a key on an external server.
os.environ.setdefault("SECRET_KEY", "for tests only")

from delayed_queue.retries import Backoff
from example_project.postgres import EmbeddedPostgres, default_directory
from example_project.settings import *  # noqa: F403
from example_project.settings import (
    DATABASE_URL_IS_SET,
    DELAYED_QUEUE,
    INSTALLED_APPS,
    database,
    env,
)

INSTALLED_APPS = [*INSTALLED_APPS, "tests.workerapp"]
# Tests create any topic; no handler's queue is among these.
EVERY_TOPIC = [f"{each}*" for each in string.ascii_letters + string.digits + "_"]
# Without the example project's schedules and callbacks: tests declare their own.
DELAYED_QUEUE = {
    "API": {"TOPICS": EVERY_TOPIC},
    "NOTIFICATIONS": DELAYED_QUEUE["NOTIFICATIONS"] | {"PUBLIC_URL": "https://notify.example/v1"},
    "CALLBACKS": (
        DELAYED_QUEUE["CALLBACKS"] if env.bool("CALLBACKS", default=False) else {"ENABLED": False}
    ),
}
if _deadline := env.float("BACKOFF_SECONDS", default=0.0):
    DELAYED_QUEUE["BACKOFF"] = Backoff(deadline=timedelta(seconds=_deadline))
if _shutdown := env.float("SHUTDOWN_SECONDS", default=0.0):
    DELAYED_QUEUE["SHUTDOWN_TIMEOUT"] = timedelta(seconds=_shutdown)
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

if not DATABASE_URL_IS_SET:
    _base = default_directory()
    # Beside the server of the example project, never on it: this one loses data in a crash.
    EMBEDDED_POSTGRES = EmbeddedPostgres(_base.with_name(f"{_base.name}-test"), durable=False)
    DATABASES = {"default": database(EMBEDDED_POSTGRES.socket_url)}
if _engine := env.str("DATABASE_ENGINE", default=""):
    DATABASES["default"]["ENGINE"] = _engine
