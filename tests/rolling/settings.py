"""Settings of workers of the release after this one."""

from __future__ import annotations

from tests.lean_settings import *  # noqa: F403

MIGRATION_MODULES = {"delayed_queue": "tests.rolling.migrations"}
