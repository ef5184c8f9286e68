"""The supervisor: forks worker processes, watches them, and forks others in their place."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from django.core.cache import close_caches
from django.db import connections
from django.utils.autoreload import iter_all_python_module_files

from delayed_queue.db.wakeups import StopSignal
from delayed_queue.observe import signals
from delayed_queue.observe.logs import log
from delayed_queue.worker.board import COUNTERS, Board, Standing, limit_of
from delayed_queue.worker.crashes import CrashReport, cause_of_death, give_back, listed
from delayed_queue.worker.deadlines import EXIT_STUCK, in_daemon
from delayed_queue.worker.health import SCRAPING, Place, forget_metrics, number_metrics, totals_of
from delayed_queue.worker.heartbeat import TELLING, Totals
from delayed_queue.worker.settling import Counts

# How long to wait before a process that died is started again: doubled each time, and from the
# start again for one that lived for a while.
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
# Where a message in flight may be to blame, and will soon be a dead letter, the others wait less.
LONGEST_PAUSE_WITH_WORK: Final = 2.0
LONG_LIFE: Final = 60.0
# How long a process that is to be forked waits for those who tell of the others.
QUIET_SECONDS: Final = 2.0
# What ends a process, or tells of the end of one.
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Child:
    """One worker process: forked, watched through its board, forked again."""

    def __init__(self, index: int, slots: int) -> None:
        self.index = index
        self.board = Board.new(slots)
        self.standing = Standing(self.board)
        self.pid = 0
        self.started_at = 0.0
        self.start_at = 0.0
        self.is_finished = False
        self.early_deaths = 0
        self._pause = FIRST_PAUSE
        self._past = dict.fromkeys(COUNTERS, 0)

    @property
    def is_running(self) -> bool:
        return self.pid != 0

    def start(self, work: Callable[[Child], int]) -> None:
        """Fork a process that works, and ends with the exit code returned."""
        self.started_at = time.monotonic()
        _let_go()
        # None may come before we know of the child, nor be taken for ours by it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        # Who takes longer waits for the database, and has no lock meanwhile.
        locks = (TELLING, SCRAPING, RECOVERING)
        quiet = [each for each in locks if each.acquire(timeout=QUIET_SECONDS)]
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _live(before, partial(work, self))
        finally:
            for each in quiet:
                each.release()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def reap(self) -> int | None:
        """Return the exit code if the process has ended."""
        if self.pid == 0:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def forget(self, *, crashed: bool) -> None:
        """Forget the process that ended, and set when the next may start."""
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
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _let_go() -> None:
    """Close what two processes must not share, and write what both would."""
    for each in connections.all(initialized_only=True):
        each.close()
        if (close_pool := getattr(each, "close_pool", None)) is not None:
            close_pool()
    close_caches()
    _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # Whoever read it may be gone.
        with suppress(OSError, ValueError):
            stream.flush()


def _settle_in(signals: Iterable[int]) -> None:
    """Be a process of its own: Ctrl-C is for the supervisor, and so is the terminal."""
    os.setpgid(0, 0)
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    # Where there was none from the start, its number may be that of another file.
    if sys.__stdin__ is not None:
        with suppress(OSError, ValueError), Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), sys.__stdin__.fileno())
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _live(signals: Iterable[int], work: Callable[[], int]) -> NoReturn:
    """End with what ``work`` returns, and do nothing of what our parent is to do at its end."""
    code = 1
    try:
        _settle_in(signals)
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def stop_when_orphaned(stop: Callable[[], Any], lifeline: int) -> None:
    """Call ``stop`` when our parent is gone, however it ended: its end of the pipe closes."""

    def wait() -> None:
        while os.read(lifeline, 1024):
            pass
        stop()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


TICK_SECONDS: Final = 0.5
# A claim that was on its way when its process died may commit after the look at its leases.
SECOND_LOOK_SECONDS: Final = 1.0
# A child is killed N seconds after its shutdown timeout; it should have ended itself before.
GRACE_SECONDS: Final = 4.3
# The supervisor waits at most N seconds for the recovery of what a dead process held; the
# recovery then goes on in its thread.
RECOVERY_SECONDS: Final = 1.0
# Held by a thread that recovers: the supervisor does not fork meanwhile, as with TELLING.
RECOVERING: Final = threading.Lock()
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
    """``slots``: as of the board of a child.

    ``ends``: whether a child that exits with 0 is done (burst, max_messages), not to be replaced.
    """

    processes: int
    slots: int
    using: str
    shutdown_timeout: timedelta
    ends: bool = False
    worker_id: str = ""


class Supervisor:
    """Keeps so many processes alive; ``run()`` returns the exit code.

    It has loaded the project, and its processes are forks of it, which share that memory. ``work``
    is what each does, with the end of a pipe that closes when the supervisor is gone; it returns
    the exit code.

    It has no database connection but for the moment after a death: then it gives back what the
    dead process held, and counts the delivery that may have killed it. It needs no process to
    live: when it is killed, they finish what they have in flight and end.
    """

    def __init__(self, options: SupervisorOptions, work: Callable[[Child, int], int]) -> None:
        self.options = options
        self.children = [Child(index, options.slots) for index in range(1, options.processes + 1)]
        self._work = work
        # Of its end that only we hold they hear when we are gone.
        self._lifeline, self._held = os.pipe()
        self._stop = StopSignal()
        self._second_looks: list[tuple[float, CrashReport]] = []
        self._alone_seconds = self._isolated_at = 0.0
        self._kill_at: float | None = None
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
            os.close(self._lifeline)
            os.close(self._held)
        return self._exit_code

    # Signals

    def listen_to_signals(self, arm: Callable[[], None]) -> None:
        """The first SIGTERM or SIGINT drains; the second kills the processes where they stand.

        ``arm`` limits how long the first may take.
        """

        def stop(number: int, frame: FrameType | None) -> None:
            arm()
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
        if self._is_killing:
            for child in self.children:
                child.signal(signal.SIGKILL)

    @property
    def _is_killing(self) -> bool:
        """Whether the processes took longer to stop than they may."""
        return self._kill_at is not None and time.monotonic() > self._kill_at

    def look_after(self, child: Child) -> None:
        if child.is_running:
            pid, code = child.pid, child.reap()
            if code is None:
                self.watch_over(child)
            else:
                forget_metrics(pid, child.index)
                self._note_end(child, pid, code)
        elif self._may_start(child):
            child.start(self._work_as)
            if self._stop.is_set():  # while it was being started, so that it was not told
                child.signal(signal.SIGTERM)

    def _work_as(self, child: Child) -> int:
        os.close(self._held)
        number_metrics(child.index)
        return self._work(child, self._lifeline)

    def _may_start(self, child: Child) -> bool:
        is_wanted = not self._stop.is_set() and not child.is_finished
        return is_wanted and time.monotonic() >= child.start_at

    def watch_over(self, child: Child) -> None:
        """Kill a process whose claim loop stands still; it is then replaced like any other."""
        stood = child.standing.seconds(child.started_at)
        if stood > limit_of(child.board):
            fields = {"process": child.index, "pid": child.pid, "seconds": f"{stood:.0f}"}
            log(logging.ERROR, "loop_stands", worker=self, **fields)
            child.signal(signal.SIGKILL)

    def _note_end(self, child: Child, pid: int, code: int) -> None:
        cause = cause_of_death(code, str(self), child.index, pid)
        report = CrashReport.of(child.board, cause)
        was_killed = self._is_killing and code == -signal.SIGKILL
        if was_killed or (code == EXIT_STUCK and self._stop.is_set()):
            # By us, or by itself at the end of its time: no message did it.
            report = replace(report, is_known=False)
        # A process that has turned drains when it is told to; until then the signal ends it.
        was_told = code in (-signal.SIGTERM, -signal.SIGINT) and not child.board.turned_at
        crashed = code not in (0, EXIT_RECYCLE) and not was_told
        child.forget(crashed=crashed)
        if crashed:
            self._isolate_suspects(child, report)
            self._note_crash(child, pid, code, report)
        elif code == 0 and self.options.ends:
            child.is_finished = True

    def _note_crash(self, child: Child, pid: int, code: int, report: CrashReport) -> None:
        # In another thread: the database may answer nothing, and the other processes be watched.
        _in_background(partial(self._recover, child.index, pid, code, report))
        self._second_looks.append((time.monotonic() + SECOND_LOOK_SECONDS, report))
        is_hopeless = child.early_deaths >= MOST_EARLY_DEATHS
        if (code in _FINAL or is_hopeless) and not self._stop.is_set():
            self._exit_code = code if code > 0 else 1
            self.stop()

    def _recover(self, process: int, pid: int, code: int, report: CrashReport) -> None:
        """Give back what a dead process held, and report its death."""
        names = give_back(report, self.options.using).names
        fields = {"process": process, "exit_code": code, "in_flight": len(report.in_flight)}
        named = names[0]._asdict() if len(names) == 1 else {"messages": listed(names)}
        log(logging.ERROR, "process_died", worker=self, **fields, **(named if names else {}))
        signals.announce(
            signals.process_died, self, process=process, pid=pid, exit_code=code, messages=names
        )

    def _isolate_suspects(self, child: Child, report: CrashReport) -> None:
        """Have suspects run alone, so that the next death shows which message is to blame."""
        if report.is_known or not report.in_flight:
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
            _in_background(partial(self._give_back_again, look[1], is_last=force))

    def _give_back_again(self, report: CrashReport, *, is_last: bool) -> None:
        if not give_back(report.leased(), self.options.using).is_complete and not is_last:
            self._second_looks.append((time.monotonic() + LONGEST_PAUSE, report))


def _in_background(call: Callable[[], None]) -> None:
    """Make a call that needs the database in a thread; wait for it only a moment."""

    def recover() -> None:
        with RECOVERING:
            call()

    with suppress(TimeoutError):
        in_daemon(recover).result(RECOVERY_SECONDS)


class Reloader:
    """Runs a command, and runs it anew whenever a source file has changed.

    One that fails is run anew when that may have mended it, except where no change of a file does.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._stop = StopSignal()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run until stopped, or until the command has ended for good; return its exit code."""
        watch = SourceWatch()
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._pass_on)
        signal.signal(signal.SIGCHLD, lambda number, frame: self._stop.wake())
        while True:
            code = self._run_until(watch.has_changed)
            if code in (0, *_FINAL):
                return code
            while code is not None and not self._stop.is_set() and not watch.has_changed():
                self._sleep()
            if self._stop.is_set():
                return max(code or 0, 0)  # one that was told before it listened has not failed
            log(logging.INFO, "reload")

    def _run_until(self, has_changed: Callable[[], bool]) -> int | None:
        """Return the exit code, or None if it was stopped because of a change."""
        self._process = process = subprocess.Popen(  # noqa: S603 # our own command line
            self._command,
            stdin=subprocess.PIPE,  # its end says that we are gone
            process_group=0,  # Ctrl-C is for us, who pass it on
        )
        with process:
            if self._stop.is_set():  # while it was being started, so that it was not told
                process.terminate()
            while process.poll() is None:
                if has_changed():
                    process.terminate()
                    process.wait()
                    return process.returncode if self._stop.is_set() else None
                self._sleep()
        return process.returncode

    def _sleep(self) -> None:
        select.select([self._stop], [], [], TICK_SECONDS)
        self._stop.clear()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.send_signal(number)


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
