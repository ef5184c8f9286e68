"""Measured worker processes: started on a database, watched through /proc, stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.workerapp.stamps import Reader

ROOT: Final = Path(__file__).resolve().parent.parent
SECONDS: Final = 120.0


@dataclass(slots=True)
class Program:
    """A command on the benchmark's database, with the switches of benchmarks/workerapp."""

    conninfo: str
    settings: dict[str, Any] = field(default_factory=dict)
    switches: tuple[str, ...] = ()

    def start(self, stamps: Path, *arguments: str, log: Any = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 # our own modules
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=self._environ(stamps),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def _environ(self, stamps: Path) -> dict[str, str]:
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "benchmarks.workerapp.settings",
            "BENCHMARK_CONNINFO": self.conninfo,
            "BENCHMARK_SETTINGS": json.dumps(self.settings),
            "BENCHMARK_STAMPS": str(stamps),
            **dict.fromkeys(self.switches, "1"),
        }


@dataclass(slots=True)
class RunningWorker:
    """A supervisor with its worker processes, and what these have noted."""

    process: subprocess.Popen[bytes]
    stamps: Path
    log: Path
    reader: Reader

    def tree(self) -> list[psutil.Process]:
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def cpu_seconds(self) -> float:
        return sum(sum(each.cpu_times()[:2]) for each in self.tree())

    def rss(self) -> int:
        """Return the resident bytes of the largest process: the one that handles."""
        return max(int(each.memory_info().rss) for each in self.tree())

    def wait_for(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > until:
                said = self.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"The worker did not come to it: {said}")
            time.sleep(0.02)


@contextmanager
def working(program: Program, *arguments: str) -> Iterator[RunningWorker]:
    """Have ``runqueueworker`` running with its defaults and these arguments."""
    with tempfile.TemporaryDirectory() as directory:
        stamps, log = Path(directory) / "stamps", Path(directory) / "log"
        with log.open("wb") as output:
            command = ("django", "runqueueworker", *arguments)
            process = program.start(stamps, *command, log=output)
        try:
            yield RunningWorker(process, stamps, log, Reader(stamps))
        finally:
            process.terminate()
            try:
                process.wait(45)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
