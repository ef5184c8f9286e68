"""Run a management command on a host whose clock is wrong by DAYS, the first argument."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import time_machine
from django.core.management import execute_from_command_line

if __name__ == "__main__":
    days, *command = sys.argv[1:]
    with time_machine.travel(datetime.now(UTC) + timedelta(days=float(days))):
        execute_from_command_line(["manage.py", *command])
