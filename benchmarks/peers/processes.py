"""The scripts of the peers as processes: run to their end, or kept as workers and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.peers.contenders.base import Contender, Peer

SCRIPTS: Final = Path(__file__).parent / "scripts"
SECONDS: Final = 300
# What would make the peers' drivers do something else than what they are told.
FOREIGN: Final = ("PYTHONPATH", "DJANGO_SETTINGS_MODULE", "DATABASE_URL", "PGOPTIONS")


class ScriptFailed(Exception):
    """A script of a peer ended with an error; the message is the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where scripts run: the variables of a database, and a directory for what they write."""

    variables: dict[str, str]
    directory: Path

    def run(self, peer: Peer, *arguments: object, options: Any = None) -> dict[str, Any]:
        """Run the script to its end; return the JSON of the last line that it printed."""
        done = subprocess.run(  # noqa: S603 # our own scripts
            [*peer.environment.command(SCRIPTS / peer.script), *map(str, arguments)],
            env=self._environ(peer, options or {}, 1),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            raise ScriptFailed(f"{peer.script} {arguments}: {(done.stderr or done.stdout)[-2000:]}")
        said = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return dict(json.loads(said[-1])) if said else {}

    @contextmanager
    def working(self, contender: Contender, processes: int) -> Iterator[Workers]:
        """Have the contender's workers running; at the end none of their processes is left."""
        commands = 1 if contender.supervises else processes
        log = self.directory / "workers.log"
        started: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(commands):
                # Not at once: those started must be known if the next one cannot be.
                started.append(  # noqa: PERF401
                    self._started(contender, processes // commands, log)
                )
            yield Workers(started, log)
        finally:
            for each in started:
                _kill(each)

    def _started(self, contender: Contender, processes: int, log: Path) -> subprocess.Popen[bytes]:
        peer = contender.peer
        with log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 # our own scripts
                [*peer.environment.command(SCRIPTS / peer.script), "work"],
                env=self._environ(peer, contender.options, processes),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _environ(self, peer: Peer, options: Any, processes: int) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        return {
            **kept,
            **self.variables,
            **peer.environment.variables(),
            **peer.variables,
            "BENCH_OPTIONS": json.dumps(dict(options)),
            "BENCH_PROCESSES": str(processes),
            "BENCH_STAMPS": str(self.stamps),
        }

    @property
    def stamps(self) -> Path:
        """The file where handlers note when they were started."""
        return self.directory / "stamps"


@dataclass(frozen=True, slots=True)
class Workers:
    """Running workers of one contender."""

    started: list[subprocess.Popen[bytes]]
    log: Path

    def cpu_seconds(self) -> float:
        """Return the CPU time of all their processes, of ended children too."""
        return sum(_tree_seconds(each.pid) for each in self.started)

    def check(self) -> None:
        """Raise if one of them has ended."""
        for each in self.started:
            if each.poll() is not None:
                raise ScriptFailed(f"A worker ended with {each.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


def _tree_seconds(pid: int) -> float:
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(_own_seconds(each) for each in tree)


def _own_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker and all that it started; the database goes away with what they held."""
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        time.sleep(0)
    worker.wait()
