"""Programs under faults: found by their command lines, restarted, never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import psutil

from tests.support.aiming import Aim
from tests.support.processes import LEAN, ROOT, Output, environment, wait_until

# A short form by default; `make chaos` repeats each test of a worker many times.
ROUNDS: Final = range(int(os.environ.get("CHAOS_ROUNDS", "1")))
# Without DEBUG, which logs queries, and so sends them by another protocol.
PRODUCTION: Final = {"DEBUG": "off", "SECRET_KEY": "of the tests"}


class Program:
    """A Python program and its children; the program decides on their work."""

    def __init__(self, *command: str, url: str | None = None, **variables: str) -> None:
        self._command = command
        self._environment = environment() | PRODUCTION | variables
        if url:
            self._environment["DATABASE_URL"] = url
        self._log = Output()
        # The last known children: those of a killed parent have another parent.
        self._family: set[psutil.Process] = set()
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.process = subprocess.Popen(
            [sys.executable, *self._command],
            cwd=ROOT,
            env=self._environment,
            stdout=self._log.file,
            stderr=subprocess.STDOUT,
        )

    def tend(self) -> None:
        """Restart it if it has ended, as a process manager would."""
        if self.process.poll() is not None:
            self.start()

    def tree(self) -> list[psutil.Process]:
        """Return the running processes: the started one and its descendants."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            self._family |= {root, *root.children(recursive=True)}
        self._family = {each for each in self._family if each.is_running()}
        return sorted((each for each in self._family if _lives(each)), key=lambda each: each.pid)

    def owner_of(self, port: int) -> psutil.Process:
        """Return the program whose connection comes from that port."""
        return next(each for each in self.tree() if _has_port(each, port))

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """Kill the whole tree at once."""
        for each in self.tree():
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(timeout=60)
        wait_until(lambda: not self.tree())

    def log(self) -> str:
        return self._log.text()

    def has_said(self, text: str) -> bool:
        return text in self.log()

    def close(self) -> None:
        self.kill()
        print(self.log())  # noqa: T201 - pytest shows it beside a failure


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _has_port(process: psutil.Process, port: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any(each.laddr and each.laddr.port == port for each in process.net_connections())
    return False


@contextmanager
def running(*command: str, url: str | None = None, **variables: str) -> Iterator[Program]:
    program = Program(*command, url=url, **variables)
    try:
        yield program
    finally:
        program.close()


@contextmanager
def working(*arguments: str, url: str | None = None, **variables: str) -> Iterator[Program]:
    """Run a worker on the queues of the test app."""
    command = ("manage.py", "runqueueworker", "--no-cron", "--poll-interval", "0.2", *arguments)
    with running(*command, url=url, **LEAN | variables) as program:
        yield program


def suspended(program: Program, aim: Aim) -> psutil.Process:
    """Return the process whose statement the aim has hit, after a SIGSTOP."""
    aim.wait()
    process = program.owner_of(aim.port)
    stop(process)
    return process


def stop(process: psutil.Process) -> None:
    """Send SIGSTOP, and return once the process has stopped."""
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)


def kill(process: psutil.Process) -> None:
    """Send SIGKILL, and return once the process has ended."""
    process.kill()
    wait_until(lambda: not _lives(process))


def wait_while_tending(program: Program, condition: Callable[[], object]) -> None:
    """Wait for the condition, and restart the program if it ends."""
    wait_until(partial(_tended, program, condition))


def _tended(program: Program, condition: Callable[[], object]) -> object:
    program.tend()
    return condition()
