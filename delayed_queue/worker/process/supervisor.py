"""The supervisor: forks worker processes, watches and replaces them."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from django.core.cache import close_caches
from django.db import connections

from delayed_queue.db.wakeups import StopSignal
from delayed_queue.logs import log
from delayed_queue.observe import signals
from delayed_queue.worker.board import COUNTERS, Board, Watchdog
from delayed_queue.worker.deadlines import EXIT_STUCK, exit_now, in_daemon, stop_on_signals
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.options import WorkerOptions
from delayed_queue.worker.process.crashes import CrashReport, cause_of_death, give_back, listed
from delayed_queue.worker.process.health import (
    SCRAPING,
    TELLING,
    Place,
    forget_metrics,
    number_metrics,
)

# Restart delay in seconds after a crash: doubled each time, reset after a run of LONG_LIFE seconds.
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
# Maximum restart delay, in seconds, if a message in flight may have caused the crash: it soon
# becomes a dead letter, and the other messages should not wait longer.
LONGEST_PAUSE_WITH_WORK: Final = 2.0
LONG_LIFE: Final = 60.0
# Maximum wait, in seconds, for each lock of the reporting threads before a fork.
QUIET_SECONDS: Final = 2.0
# Signals that end a process, or report the end of a child.
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Child(Place):
    """A worker process and those started after its end, watched through its board.

    ``successor``: the one that takes over from it while it still runs, and stays.
    """

    def __init__(self, index: int, slots: int) -> None:
        super().__init__(index, Board.new(slots))
        self.watchdog = Watchdog(self.board)
        self.start_at = 0.0
        self.early_deaths = 0
        self.successor: Child | None = None
        self._pause = FIRST_PAUSE
        self._past = dict.fromkeys(COUNTERS, 0)

    @property
    def is_running(self) -> bool:
        return self.pid != 0

    def start(self, work: Callable[[Child], int]) -> None:
        """Fork a process that runs ``work`` and exits with its result."""
        self.started_at = time.monotonic()
        _let_go()
        # Block signals until the pid is known here and the child has reset its handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        # A thread that holds its lock for longer is waiting for the database: fork anyway.
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
        """Reset for the next process, and set its earliest start."""
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
        """Return the summed counters of all processes in this slot."""
        present = self.board.counters()
        sums = {name: present[name] + self._past[name] for name in COUNTERS}
        return {**sums, "in_flight": present["in_flight"]}

    def signal(self, number: int) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _let_go() -> None:
    """Close shared connections and flush the streams before a fork."""
    for each in connections.all(initialized_only=True):
        each.close()
        if (close_pool := getattr(each, "close_pool", None)) is not None:
            close_pool()
    close_caches()
    _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The reader may have closed the stream.
        with suppress(OSError, ValueError):
            stream.flush()


def _settle_in(signals: Iterable[int]) -> None:
    """Detach from the supervisor's process group, signals and terminal."""
    os.setpgid(0, 0)
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    # Without a standard input, its descriptor may belong to another file.
    if sys.__stdin__ is not None:
        with suppress(OSError, ValueError), Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), sys.__stdin__.fileno())
    signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _live(signals: Iterable[int], work: Callable[[], int]) -> NoReturn:
    """Exit with the result of ``work``, without the parent's exit handlers."""
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
    """Call ``stop`` when the parent ends, which closes its end of the pipe."""

    def wait() -> None:
        while os.read(lifeline, 1024):
            pass
        stop()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


TICK_SECONDS: Final = 0.5
# Delay of the second recovery, in seconds: a claim in progress at the crash may commit after the
# first one.
SECOND_LOOK_SECONDS: Final = 1.0
# A child is killed N seconds after its shutdown timeout; it should have ended itself before.
GRACE_SECONDS: Final = 4.3
# The supervisor waits at most N seconds for the recovery of what a dead process held; the
# recovery then continues in its thread.
RECOVERY_SECONDS: Final = 1.0
# Held during a recovery, so that the supervisor does not fork meanwhile, as with TELLING.
RECOVERING: Final = threading.Lock()
# Suspects run alone for N seconds after a crash with several messages in flight. The time doubles
# whenever the next crash does not identify the message.
ALONE_SECONDS: Final = 10.0
# The supervisor stops after N consecutive crashes before the first iteration of the claim loop.
MOST_EARLY_DEATHS: Final = 3

# Exit codes. Configuration or schema are wrong, so a restart cannot help. And: restart the worker,
# because handlers that never return occupy all its threads.
EXIT_CONFIGURATION: Final = 78
EXIT_RECYCLE: Final = 75
# The database refuses the worker. And: it stayed unavailable to a worker that ends by itself.
EXIT_REFUSED: Final = 77
EXIT_UNAVAILABLE: Final = 69
FINAL_EXITS: Final = frozenset({EXIT_CONFIGURATION, EXIT_REFUSED, EXIT_UNAVAILABLE})


class Supervisor:
    """Keeps N processes alive; ``run()`` returns the exit code.

    The supervisor loads the project, and forks its processes, which share that memory. Each process
    calls ``work`` with the end of a pipe that closes when the supervisor ends. ``work`` returns the
    exit code.

    The supervisor connects to the database only after a crash. It then releases the messages of the
    dead process, and counts the delivery that may have killed it. If the supervisor is killed, its
    processes finish the messages in flight and exit.
    """

    def __init__(self, options: WorkerOptions, work: Callable[[Child, int], int]) -> None:
        self.options = options
        self.children = [Child(index, options.slots) for index in range(1, options.processes + 1)]
        self._work = work
        # Only the supervisor holds the write end, so it closes when the supervisor ends.
        self._lifeline, self._held = os.pipe()
        self._stop = StopSignal()
        # The counters of children that have a successor.
        self._past: Counter[str] = Counter()
        self._second_looks: list[tuple[float, CrashReport]] = []
        self._alone_seconds = self._isolated_at = 0.0
        self._kill_at: float | None = None
        self._exit_code = 0

    def __str__(self) -> str:
        return self.options.worker_id

    @property
    def counts(self) -> Counts:
        sums = [self._past, *(child.counters() for child in self.children)]
        return Counts(**{name: sum(each[name] for each in sums) for name in COUNTERS[:-1]})

    def run(self) -> int:
        """Run until stopped, or until every process is done."""
        try:
            while not self._is_over():
                self._tick()
                select.select([self._stop], [], [], TICK_SECONDS)
                self._stop.clear()
            self._look_again(force=True)
        finally:
            self._signal(signal.SIGKILL)
            os.close(self._lifeline)
            os.close(self._held)
        return self._exit_code

    # Signals

    def listen_to_signals(self, arm: Callable[[], None]) -> None:
        """Drain on the first SIGTERM or SIGINT; kill the processes on the second.

        ``arm`` limits the duration of the drain.
        """
        stop_on_signals(arm, self.stop, again=self._exit_now)
        signal.signal(signal.SIGCHLD, lambda number, frame: self._stop.wake())

    def _exit_now(self, number: int, frame: FrameType | None) -> None:
        self._signal(signal.SIGKILL)
        exit_now(number, frame)

    def _signal(self, number: int) -> None:
        for child in self.children:
            child.signal(number)

    def stop(self) -> None:
        """Drain the processes; kill those that exceed the shutdown timeout."""
        self._stop.set()
        timeout = self.options.shutdown_timeout.total_seconds() + GRACE_SECONDS
        self._kill_at = time.monotonic() + timeout
        self._signal(signal.SIGTERM)

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
            self._signal(signal.SIGKILL)

    @property
    def _is_killing(self) -> bool:
        """True if the processes exceeded their shutdown timeout."""
        return self._kill_at is not None and time.monotonic() > self._kill_at

    def look_after(self, child: Child) -> None:
        if child.is_running:
            pid, code = child.pid, child.reap()
            if code is None:
                self.watch_over(child)
                self._replace_when_used_up(child)
            else:
                forget_metrics(pid, child.index)
                self._note_end(child, pid, code)
        elif self._may_start(child):
            child.start(self._work_as)
            if self._stop.is_set():  # stop() ran during the start, without this child
                child.signal(signal.SIGTERM)

    def _work_as(self, child: Child) -> int:
        os.close(self._held)
        number_metrics(child.index)
        return self._work(child, self._lifeline)

    def _may_start(self, child: Child) -> bool:
        is_wanted = not self._stop.is_set() and not child.is_finished
        return is_wanted and time.monotonic() >= child.start_at

    def watch_over(self, child: Child) -> None:
        """Kill a process whose claim loop is stuck, so that it is replaced."""
        if (seconds := child.watchdog.stuck_seconds(child.started_at)) is not None:
            fields = {"process": child.index, "pid": child.pid, "seconds": f"{seconds:.0f}"}
            log(logging.ERROR, "loop_stands", worker=self, **fields)
            child.signal(signal.SIGKILL)

    def _replace_when_used_up(self, child: Child) -> None:
        """Start another process beside one that is used up; stop that once the other claims."""
        if not child.board.is_used_up or self._stop.is_set():
            return
        if child.successor is None:
            taken = {each.index for each in self.children}
            index = next(each for each in count(1) if each not in taken)
            child.successor = successor = Child(index, self.options.slots)
            successor.board.isolate(child.board.alone_seconds)
            successor.board.drain(is_drained=child.board.is_drained)
            self.children = [*self.children, successor]
            self.look_after(successor)  # now: health checks count a process that has not started
        elif child.successor.board.turned_at:
            child.signal(signal.SIGTERM)

    def _note_end(self, child: Child, pid: int, code: int) -> None:
        cause = cause_of_death(code, str(self), child.index, pid)
        report = CrashReport.of(child.board, cause)
        was_killed = self._is_killing and code == -signal.SIGKILL
        if was_killed or (code == EXIT_STUCK and self._stop.is_set()):
            # The shutdown timeout ended it, not a message.
            report = replace(report, is_known=False)
        # Before the first iteration of its claim loop, a process does not catch the signal.
        was_told = code in (-signal.SIGTERM, -signal.SIGINT) and not child.board.turned_at
        crashed = code not in (0, EXIT_RECYCLE) and not was_told
        child.forget(crashed=crashed)
        if crashed:
            self._isolate_suspects(child, report)
            self._note_crash(child, pid, code, report)
        elif code == 0 and self.options.is_finite:
            child.is_finished = True
        if child.successor is not None:
            self._past.update(child.counters())
            self.children = [each for each in self.children if each is not child]

    def _note_crash(self, child: Child, pid: int, code: int, report: CrashReport) -> None:
        # In a thread: the database may not reply, and the other processes need watching.
        _in_background(partial(self._recover, child.index, pid, code, report))
        self._second_looks.append((time.monotonic() + SECOND_LOOK_SECONDS, report))
        is_hopeless = child.early_deaths >= MOST_EARLY_DEATHS
        if (code in FINAL_EXITS or is_hopeless) and not self._stop.is_set():
            self._exit_code = code if code > 0 else 1
            self.stop()

    def _recover(self, process: int, pid: int, code: int, report: CrashReport) -> None:
        """Release the messages of a dead process, and report the crash."""
        names = give_back(report, self.options.using).names
        fields: dict[str, Any] = {
            "process": process, "exit_code": code, "in_flight": len(report.in_flight)
        }  # fmt: skip
        if names:
            fields |= names[0]._asdict() if len(names) == 1 else {"messages": listed(names)}
        if batches := sum(each.is_batch for each in report.in_flight):
            fields["batches"] = batches
        log(logging.ERROR, "process_died", worker=self, **fields)
        signals.announce(
            signals.process_died, self, process=process, pid=pid, exit_code=code, messages=names
        )

    def _isolate_suspects(self, child: Child, report: CrashReport) -> None:
        """Run suspects alone, so that the next crash identifies the message."""
        if report.is_known or not report.in_flight:
            return
        was_alone = child.started_at > self._isolated_at > 0
        if was_alone and any(each.is_suspect for each in report.in_flight):
            self._alone_seconds *= 2  # the isolation had ended too early
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
    """Run ``call`` in a thread; wait at most RECOVERY_SECONDS."""

    def recover() -> None:
        with RECOVERING:
            call()

    with suppress(TimeoutError):
        in_daemon(recover).result(RECOVERY_SECONDS)
