"""The supervisor: starts worker processes, watches them, and starts them again."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final

from django.conf import ENVIRONMENT_VARIABLE
from django.utils.autoreload import iter_all_python_module_files

from delayed_queue.db.wakeups import StopSignal
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.observe.logs import log
from delayed_queue.worker.board import COUNTERS, Board, limit_of
from delayed_queue.worker.crashes import CrashReport, give_back
from delayed_queue.worker.health import Place, forget_metrics, totals_of
from delayed_queue.worker.heartbeat import Totals
from delayed_queue.worker.settling import Counts

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


TICK_SECONDS: Final = 0.5
# A claim that was on its way when its process died may commit after the look at its leases.
SECOND_LOOK_SECONDS: Final = 1.0
# What a child is given to say good-bye beyond its shutdown timeout.
GRACE_SECONDS: Final = 5.0
# For how long suspects are alone once a process has died with several messages in flight; twice as
# long each time that this did not tell which of them it was.
ALONE_SECONDS: Final = 10.0
# After so many deaths before the first turn of its loop there is no point in going on.
MOST_EARLY_DEATHS: Final = 3

# Exit codes: the configuration or the schema does not fit, so that starting again is in vain;
# and "start me again", of a worker whose threads are used up by handlers that never return.
EXIT_CONFIGURATION: Final = 78
EXIT_RECYCLE: Final = 75
# The database refuses the worker; and, of one that was to end by itself, it stayed away.
EXIT_REFUSED: Final = 77
EXIT_UNAVAILABLE: Final = 69
_FINAL: Final = frozenset({EXIT_CONFIGURATION, EXIT_REFUSED, EXIT_UNAVAILABLE})


LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """``arguments``: the command line of a child. ``slots``: as of its board.

    ``ends``: whether a child that exits with 0 is done (burst, max_messages), not to be
    replaced. ``reload``: replace the children when a source file has changed.
    """

    processes: int
    arguments: Sequence[str]
    slots: int
    using: str
    shutdown_timeout: timedelta
    ends: bool = False
    reload: bool = False
    worker_id: str = ""


class Supervisor:
    """Keeps so many processes alive; ``run()`` returns the exit code.

    It has no database connection but for the moment after a death: then it gives back what the
    dead process held, and counts the delivery that may have killed it. It needs no process to
    live: when it is killed, they finish what they have in flight and end.
    """

    def __init__(self, options: SupervisorOptions) -> None:
        self.options = options
        self.children = [
            Child(index, options.slots, options.arguments)
            for index in range(1, options.processes + 1)
        ]
        self._stop = StopSignal()
        self._watch = SourceWatch() if options.reload else None
        self._second_looks: list[tuple[float, CrashReport]] = []
        self._alone_seconds = self._isolated_at = 0.0
        self._kill_at: float | None = None
        self._is_reloading = False
        self._exit_code = 0

    def __str__(self) -> str:
        return self.options.worker_id

    @property
    def counts(self) -> Counts:
        sums = [child.counters() for child in self.children]
        return Counts(**{name: sum(each[name] for each in sums) for name in COUNTERS[:-1]})

    def places(self) -> list[Place]:
        """Return the processes, for a judge of their health; may be asked from another thread."""
        return [
            Place(each.index, each.pid, each.board, each.started_at, each.is_finished)
            for each in self.children
        ]

    def totals(self) -> Totals:
        return totals_of([child.counters() for child in self.children])

    def run(self) -> int:
        """Run until stopped, or until every process is done."""
        try:
            while not self._is_over():
                self._tick()
                select.select([self._stop], [], [], TICK_SECONDS)
                self._stop.clear()
            self._look_again(force=True)
        finally:
            for child in self.children:
                child.signal(signal.SIGKILL)
                child.close()
        return self._exit_code

    # Signals

    def listen_to_signals(self) -> None:
        """The first SIGTERM or SIGINT drains; the second kills the processes where they stand."""

        def stop(number: int, frame: FrameType | None) -> None:
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, self._exit_now)
            self.stop()

        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, stop)
        signal.signal(signal.SIGCHLD, lambda number, frame: self._stop.wake())

    def _exit_now(self, number: int, frame: FrameType | None) -> None:
        for child in self.children:
            child.signal(signal.SIGKILL)
        os._exit(128 + number)  # the leases are safe with the database

    def stop(self) -> None:
        """Have the processes finish what they have in flight; kill those that take too long."""
        self._stop.set()
        timeout = self.options.shutdown_timeout.total_seconds() + GRACE_SECONDS
        self._kill_at = time.monotonic() + timeout
        for child in self.children:
            child.signal(signal.SIGTERM)

    # One tick

    def _is_over(self) -> bool:
        if any(child.is_running for child in self.children):
            return False
        return self._stop.is_set() or all(child.is_finished for child in self.children)

    def _tick(self) -> None:
        for child in self.children:
            self.look_after(child)
        self._look_again()
        if self._watch is not None and self._watch.has_changed():
            self._reload()
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            for child in self.children:
                child.signal(signal.SIGKILL)

    def look_after(self, child: Child) -> None:
        if child.is_running:
            pid, code = child.pid, child.reap()
            if code is None:
                self.watch_over(child)
            else:
                forget_metrics(pid)
                self._note_end(child, code)
        elif self._may_start(child):
            child.start()
            if self._stop.is_set():  # while it was being started, so that it was not told
                child.signal(signal.SIGTERM)

    def _may_start(self, child: Child) -> bool:
        is_wanted = not self._stop.is_set() and not child.is_finished
        return is_wanted and time.monotonic() >= child.start_at

    def watch_over(self, child: Child) -> None:
        """Kill a process whose claim loop stands still; it is then replaced like any other."""
        limit = limit_of(child.board)
        stood = time.monotonic() - max(child.board.turned_at, child.started_at)
        if stood > limit:
            fields = {"process": child.index, "pid": child.pid, "seconds": f"{stood:.0f}"}
            log(logging.ERROR, "loop_stands", worker=self, **fields)
            child.signal(signal.SIGKILL)

    def _note_end(self, child: Child, code: int) -> None:
        report = CrashReport.of(child.board)
        # A process that has turned drains when it is told to; until then the signal ends it.
        was_told = code == -signal.SIGTERM and not child.board.turned_at
        crashed = code not in (0, EXIT_RECYCLE) and not was_told
        child.dead_letter(crashed=crashed)
        if crashed:
            self._isolate_suspects(child, report)
            self._note_crash(child, code, report)
        elif code == 0 and self.options.ends and not self._is_reloading:
            child.is_finished = True
        if all(each.is_running is False for each in self.children):
            self._is_reloading = False

    def _note_crash(self, child: Child, code: int, report: CrashReport) -> None:
        fields = {"process": child.index, "exit_code": code, "in_flight": len(report.in_flight)}
        log(logging.ERROR, "process_died", worker=self, **fields)
        give_back(report, self.options.using)
        if report.lease_ids:
            self._second_looks.append((time.monotonic() + SECOND_LOOK_SECONDS, report))
        is_hopeless = child.early_deaths >= MOST_EARLY_DEATHS and self._watch is None
        if (code in _FINAL or is_hopeless) and not self._stop.is_set():
            self._exit_code = code if code > 0 else 1
            self.stop()

    def _isolate_suspects(self, child: Child, report: CrashReport) -> None:
        """Have messages that a process died with be alone, so that the next death tells of whom."""
        if len(report.in_flight) < 2:
            return
        was_alone = child.started_at > self._isolated_at > 0
        if was_alone and any(each.is_suspect for each in report.in_flight):
            self._alone_seconds *= 2  # the others came when it had been alone for so long
        else:
            self._alone_seconds = max(self._alone_seconds, ALONE_SECONDS)
        self._isolated_at = time.monotonic()
        for each in self.children:
            each.board.isolate(self._alone_seconds)

    def _look_again(self, *, force: bool = False) -> None:
        now = time.monotonic()
        for look in [each for each in self._second_looks if force or each[0] <= now]:
            self._second_looks.remove(look)
            give_back(look[1].leased(), self.options.using)

    def _reload(self) -> None:
        log(logging.INFO, "reload", worker=self)
        self._is_reloading = True
        for child in self.children:
            child.early_deaths = 0
            child.start_at = 0.0
            child.signal(signal.SIGTERM)


class SourceWatch:
    """Compares modification times, as Django's development server does."""

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._times = _modification_times()

    def has_changed(self) -> bool:
        """Return whether a file has changed since the last time this was true."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now
        before, self._times = self._times, _modification_times()
        return any(self._times.get(path) != at for path, at in before.items())


def _modification_times() -> dict[Path, float]:
    found = {}
    for path in iter_all_python_module_files():
        try:
            found[path] = path.stat().st_mtime
        except OSError:  # removed: then it is missing here, which is a change
            continue
    return found
