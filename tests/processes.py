"""Real worker processes for tests: started, signalled, waited for, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
        # As in production: with DEBUG statements take another way, and workers reload.
        "DEBUG": "0",
        "SECRET_KEY": "for tests only",
    }


def manage(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start a management command on the test database, with these in its environment."""
    return subprocess.Popen(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def worker(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker and its processes; kill those at the end that still run."""
    process = manage("runqueueworker", "--poll-interval", "0.2", *arguments, **variables)
    try:
        yield process
    finally:
        children = children_of(process)
        process.kill()
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        output, _ = process.communicate()
        print(output)  # noqa: T201 - pytest shows it beside a failure


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the ids of the processes that this one has started and that still run."""
    try:
        found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(pid) for pid in found.split()]


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return as soon as the condition holds; fail when it does not within the time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about in time"
        pause.wait(0.01)
