"""Real worker processes for tests: started, signalled, waited for, never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

from example_project import postgres

ROOT = Path(__file__).resolve().parent.parent


def database_url() -> str:
    """Return the URL of the test database, for processes of their own."""
    found = connection.settings_dict
    return postgres.database_url(
        user=found["USER"],
        password=found["PASSWORD"],
        host=found["HOST"],
        port=found["PORT"] or 5432,
        name=found["NAME"],
    )


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONUNBUFFERED": "1",
    }


def manage(*arguments: str) -> subprocess.Popen[str]:
    """Start a management command on the test database."""
    return subprocess.Popen(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def worker(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker process; kill it at the end if it still runs."""
    process = manage("runqueueworker", "--poll-interval", "0.2", *arguments)
    try:
        yield process
    finally:
        process.kill()
        output, _ = process.communicate()
        print(output)  # noqa: T201 - pytest shows it beside a failure


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return as soon as the condition holds; fail when it does not within the time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about in time"
        pause.wait(0.01)
