"""Real worker processes for tests: started, signalled, awaited, never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
from django.conf import settings
from django.db import connection

from example_project import postgres

ROOT = Path(__file__).resolve().parents[2]
# For processes that need no app of the example: they start in two thirds of the time.
LEAN: Final = {"DJANGO_SETTINGS_MODULE": "tests.lean_settings"}


def database_url() -> str:
    """Return the URL of the test database, for separate processes."""
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
        # As in production: with DEBUG statements take another path, and workers reload.
        "DEBUG": "0",
        "SECRET_KEY": "for tests only",
        # Without DEBUG all statements go through Django's cursors by a backend of another class.
        "DATABASE_ENGINE": "tests.support.tenants" if settings.DEBUG else "",
    }


class Output:
    """The output of processes, in a file: a full pipe would block them."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this
        weakref.finalize(self, self.file.close)

    def text(self) -> str:
        # By position: the processes, which still write, share the offset.
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), size, 0).decode(errors="replace")


class Process(subprocess.Popen[bytes]):
    """A command and its output; without its own environment, on the test database."""

    def __init__(self, *command: str, env: Mapping[str, str] | None = None) -> None:
        self._output = Output()
        super().__init__(
            command,
            cwd=ROOT,
            env=environment() if env is None else env,
            stdout=self._output.file,
            stderr=subprocess.STDOUT,
        )

    def said(self) -> str:
        """Return the output so far."""
        return self._output.text()

    def lines(self) -> list[str]:
        """Return the complete lines of the output."""
        return self.said().rpartition("\n")[0].splitlines()

    def has_said(self, text: str) -> bool:
        return text in self.said()

    def ended(self, timeout: float = 60.0) -> tuple[int, str]:
        """Wait for its end; return its exit code and its output."""
        code = self.wait(timeout)
        return code, self.said()


def manage(*arguments: str, **variables: str) -> Process:
    """Start a management command on the test database, with these variables."""
    command = (sys.executable, "manage.py", *arguments)
    return Process(*command, env={**environment(), **variables})


@contextmanager
def killed_at_last(process: Process) -> Iterator[Process]:
    """Kill the process and its children, if it still runs at the end."""
    try:
        yield process
    finally:
        kill_family(process)
        print(process.ended()[1])  # noqa: T201 - pytest shows it beside a failure


@contextmanager
def managed(*arguments: str, **variables: str) -> Iterator[Process]:
    """Run a management command; kill it at the end if it still runs."""
    with killed_at_last(manage(*arguments, **variables)) as process:
        yield process


@contextmanager
def worker(*arguments: str, **variables: str) -> Iterator[Process]:
    """Run a worker and its processes; kill the remaining ones at the end."""
    given = LEAN | variables
    with managed("runqueueworker", "--poll-interval", "0.2", *arguments, **given) as process:
        yield process


def kill_family(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its descendants at once; return when none of them runs."""
    if process.poll() is None:
        root = psutil.Process(process.pid)
        root.suspend()  # it starts no more of them
        children = root.children(recursive=True)
        process.kill()
        for each in children:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        _, left = psutil.wait_procs(children, 20)
        assert not left, f"they outlived SIGKILL: {left}"
    process.wait(20)


def children_of(process: subprocess.Popen[Any]) -> list[int]:
    """Return the ids of this process's running children."""
    try:
        found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(pid) for pid in found.split()]


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return as soon as the condition is true; fail after the timeout."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        pause.wait(0.01)
