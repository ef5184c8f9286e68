"""Modules that a process has loaded when Django is ready."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.processes import ROOT

PROGRAM = """
import sys
import django
django.setup()
print(*sorted({"aiohttp", "msgspec", "pyspark", "pandas", "kombu"} & sys.modules.keys()))
"""


def test_who_serves_and_sends_nothing_loads_nothing_for_it() -> None:
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings", "DEBUG": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT, env=env, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == []
