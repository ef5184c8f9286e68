"""Restarting a worker when its source code changes (``--reload``)."""

from __future__ import annotations

import logging
import select
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

from django.utils.autoreload import StatReloader

from delayed_queue.db.wakeups import StopSignal
from delayed_queue.logs import log
from delayed_queue.worker.process.supervisor import FINAL_EXITS

# Seconds between two checks of the modification times.
CHECK_SECONDS: Final = 1.0


class Reloader:
    """Runs a command, and restarts it after each change of a source file.

    A command that fails is restarted after the next change, unless its exit code is final.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._stop = StopSignal()
        self._process: subprocess.Popen[bytes] | None = None
        self._times = _modification_times()

    def run(self) -> int:
        """Run until stopped or until a final exit code; return the code."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._forward)
        signal.signal(signal.SIGCHLD, lambda number, frame: self._stop.wake())
        while True:
            code = self._run_until_change()
            if code in (0, *FINAL_EXITS):
                return code
            while code is not None and not self._stop.is_set() and not self._has_changed():
                self._sleep()
            if self._stop.is_set():
                return max(code or 0, 0)  # a negative code: stopped before it handled signals
            log(logging.INFO, "reload")

    def _run_until_change(self) -> int | None:
        """Return the exit code, or None if a change stopped the command."""
        self._process = process = subprocess.Popen(  # noqa: S603 # our own command line
            self._command,
            stdin=subprocess.PIPE,  # closes when this process ends
            process_group=0,  # this process forwards Ctrl-C
        )
        with process:
            if self._stop.is_set():  # the signal came during the start
                process.terminate()
            while process.poll() is None:
                if self._has_changed():
                    process.terminate()
                    process.wait()
                    return process.returncode if self._stop.is_set() else None
                self._sleep()
        return process.returncode

    def _has_changed(self) -> bool:
        """Return whether a file has changed since the last call."""
        before, self._times = self._times, _modification_times()
        return any(self._times.get(path) != at for path, at in before.items())

    def _sleep(self) -> None:
        select.select([self._stop], [], [], CHECK_SECONDS)
        self._stop.clear()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.send_signal(number)


def _modification_times() -> dict[Any, float]:
    return dict(StatReloader().snapshot_files())
