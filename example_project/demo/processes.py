"""The demo's own processes: workers and the web server, none of which outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.db import connection

from example_project.demo.exceptions import DemoError, Stalled

STOP_SECONDS: Final = 10.0
MANAGE: Final = (sys.executable, "-m", "example_project.demo.child")


@dataclass(eq=False)
class Child:
    """One process, its log in a file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    is_expected_to_end: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def suspend(self) -> None:
        """Stop it from running any further, where the system can do that."""
        if hasattr(signal, "SIGSTOP"):
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if hasattr(signal, "SIGCONT"):
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL, and wait until it is gone."""
        self.is_expected_to_end = True
        self.process.kill()
        self.process.wait()
        self._close()

    def tell(self, line: str) -> None:
        """Write a line to its input."""
        if self.process.stdin is None:
            raise DemoError(f"The {self.name} does not listen.")
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise DemoError(f"The {self.name} has ended:\n{self.tail()}") from None

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def terminate(self) -> None:
        self.is_expected_to_end = True
        if self.is_running:
            self.process.terminate()

    def wait(self, deadline: float) -> int:
        """Return the exit code, after SIGKILL if the (monotonic) deadline passes."""
        try:
            self.process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()
        return self.process.returncode

    def _close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()


class Children:
    """Starts processes and, at the end of the block, stops all that still run."""

    def __init__(self, directory: Path, manage: Sequence[str] = MANAGE) -> None:
        self._directory = directory
        self._manage = manage
        self.environment = child_environment()
        self.all: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.stop(self.all)
        finally:  # a second Ctrl-C cut the stopping short
            for child in self.all:
                if child.is_running:
                    child.kill()

    def start(
        self, name: str, *arguments: str, inherits: Sequence[int] = (), **environment: str
    ) -> Child:
        """Start a management command as a process of its own; it inherits those descriptors."""
        path = self._directory / f"{name.replace(' ', '-')}-{len(self.all) + 1}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 # our own interpreter and module
                [*self._manage, *arguments],
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **environment},
                pass_fds=inherits,
                start_new_session=True,  # Ctrl-C is for us; we stop them in order
            )
        child = Child(name, process, path)
        self.all.append(child)
        return child

    def output(self, *arguments: str) -> str:
        """Run a management command to its end and return what it wrote; DemoError if it fails."""
        # Not by way of ``child``: nothing of it outlives the call.
        done = subprocess.run(  # noqa: S603 # our own interpreter and module
            [sys.executable, "-m", "django", *arguments],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise DemoError(f"`manage.py {' '.join(arguments)}` failed:\n{done.stderr}")
        return done.stdout

    def check(self) -> None:
        """Raise Stalled if a process has ended that should be running."""
        for child in self.all:
            if not child.is_expected_to_end and not child.is_running:
                raise Stalled(
                    f"The {child.name} (process {child.pid}) ended by itself with exit code "
                    f"{child.process.returncode}. The end of its log:\n{child.tail()}"
                )

    def stop(self, children: Sequence[Child], seconds: float = STOP_SECONDS) -> list[int]:
        """Stop with SIGTERM, after so many seconds with SIGKILL; return the exit codes."""
        for child in children:
            child.terminate()
        deadline = time.monotonic() + seconds
        return [child.wait(deadline) for child in children]


def child_environment() -> dict[str, str]:
    """Return our environment, with the settings and the database in use here.

    Without DEBUG, under which Django keeps and times every query of a worker.
    """
    here = str(settings.BASE_DIR)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": str(os.environ["DJANGO_SETTINGS_MODULE"]),
        "DATABASE_URL": database_url(),
        "PYTHONPATH": os.pathsep.join(paths),
        "DEBUG": "0",
        "SECRET_KEY": settings.SECRET_KEY,
        "PYTHONUNBUFFERED": "1",
    }


def database_url() -> str:
    """Return the URL of the database in use; in tests that is not the one the settings name."""
    embedded = settings.EMBEDDED_POSTGRES
    url = embedded.socket_url if embedded else os.environ["DATABASE_URL"]
    name = quote(str(connection.settings_dict["NAME"]), safe="")
    return urlsplit(url)._replace(path=f"/{name}").geturl()
