"""Settings of the tests: the example project's, on a server that gives up safety for speed."""

from __future__ import annotations

from example_project.postgres import EmbeddedPostgres, default_directory
from example_project.settings import *  # noqa: F403
from example_project.settings import DATABASE_URL_IS_SET, DELAYED_QUEUE, INSTALLED_APPS, database

INSTALLED_APPS = [*INSTALLED_APPS, "tests.workerapp"]
# Without the schedules of the example project: tests declare their own.
DELAYED_QUEUE = {name: value for name, value in DELAYED_QUEUE.items() if name != "CRON"}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

if not DATABASE_URL_IS_SET:
    _base = default_directory()
    # Beside the server of the example project, never on it: this one loses data in a crash.
    EMBEDDED_POSTGRES = EmbeddedPostgres(_base.with_name(f"{_base.name}-test"), durable=False)
    DATABASES = {"default": database(EMBEDDED_POSTGRES.socket_url)}
