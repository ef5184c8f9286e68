"""The processes of a supervisor, and what ties each to it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.conf import ENVIRONMENT_VARIABLE

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.worker.board import COUNTERS, Board

# How long to wait before a process that died is started again: doubled each time, and from the
# start again for one that lived for a while.
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
# Where a message in flight may be to blame, and will soon be a dead letter, the others wait less.
LONGEST_PAUSE_WITH_WORK: Final = 2.0
LONG_LIFE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Link:
    """The link of a child to its supervisor, as one argument of its command line."""

    index: int
    descriptor: int
    slots: int

    def __str__(self) -> str:
        return f"{self.index}:{self.descriptor}:{self.slots}"

    @classmethod
    def parse(cls, text: str) -> Link:
        return cls(*map(int, text.split(":")))

    def board(self) -> Board:
        return Board.of_file(self.descriptor, self.slots)


class Child:
    """One worker process: started, watched through its board, started again."""

    def __init__(self, index: int, slots: int, arguments: Sequence[str]) -> None:
        self.index = index
        self._slots = slots
        self._arguments = arguments
        self._file = tempfile.TemporaryFile(prefix="delayed_queue_")  # noqa: SIM115 # lives as long as we
        self.board = Board.of_file(self._file.fileno(), slots)
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_at = 0.0
        self.is_finished = False
        self.early_deaths = 0
        self._pause = FIRST_PAUSE
        self._past = dict.fromkeys(COUNTERS, 0)

    @property
    def pid(self) -> int:
        return 0 if self.process is None else self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        descriptor = self._file.fileno()
        link = Link(self.index, descriptor, self._slots)
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(  # noqa: S603 # our own interpreter
            [*_interpreter(), "-m", "django", *self._arguments, "--child", str(link)],
            stdin=subprocess.PIPE,  # its end tells the child that we are gone
            pass_fds=[descriptor],
            env=_environment(),
            process_group=0,  # Ctrl-C is for us; we stop the children in order
        )

    def reap(self) -> int | None:
        """Return the exit code if the process has ended."""
        if self.process is None or self.process.poll() is None:
            return None
        code = self.process.returncode
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None
        return code

    def dead_letter(self, *, crashed: bool) -> None:
        """Forget the process that ended, and say when the next may start."""
        counters = self.board.counters()
        for name in COUNTERS:
            self._past[name] += counters[name]
        longest = LONGEST_PAUSE_WITH_WORK if self.board.in_flight() else LONGEST_PAUSE
        self.early_deaths = 0 if self.board.turned_at else self.early_deaths + 1
        self.board.count([0] * len(COUNTERS))
        self.board.wipe()
        if not crashed or time.monotonic() - self.started_at > LONG_LIFE:
            self._pause = FIRST_PAUSE
        self.start_at = time.monotonic() + (min(self._pause, longest) if crashed else 0)
        self._pause = min(2 * self._pause, longest) if crashed else FIRST_PAUSE

    def counters(self) -> dict[str, int]:
        """Return what all processes in this place have done."""
        present = self.board.counters()
        sums = {name: present[name] + self._past[name] for name in COUNTERS}
        return {**sums, "in_flight": present["in_flight"]}

    def signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def close(self) -> None:
        self._file.close()


def _interpreter() -> list[str]:
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined] # noqa: SLF001
    return [sys.executable, *flags]


def _environment() -> dict[str, str]:
    """Return our environment, in which ``python -m django`` finds the same modules as we did."""
    if not os.environ.get(ENVIRONMENT_VARIABLE):
        raise InvalidConfiguration(
            f"Worker processes find the settings by {ENVIRONMENT_VARIABLE}, which is not set. "
            "Set it, or handle in this process: --processes 0."
        )
    paths = [path or str(Path.cwd()) for path in sys.path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
    }


def stop_when_orphaned(stop: Callable[[], Any]) -> None:
    """Call ``stop`` when the supervisor is gone, however it ended: its end of the pipe closes."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        stop()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
