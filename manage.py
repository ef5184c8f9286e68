#!/usr/bin/env python
"""Run a management command of the example project."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

from example_project.keys import local_key

# What needs no key of a deployment, on whatever server.
KEYLESS = ("demo", "makemigrations", "queuedb")

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    if not os.environ.get("SECRET_KEY") and sys.argv[1:2] and sys.argv[1] in KEYLESS:
        os.environ["SECRET_KEY"] = local_key()
    execute_from_command_line(sys.argv)
