"""The heartbeat of a worker: its row, and what is done every few seconds."""

from __future__ import annotations

import logging
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from django.db import Error, connections

import delayed_queue
from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import is_unavailable, through_conflicts
from delayed_queue.db.silence import limit_waits
from delayed_queue.db.wakeups import Listener, StopSignal
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.fields import DatabaseNow
from delayed_queue.logs import described, log
from delayed_queue.observe.history import Sampler
from delayed_queue.observe.snapshots import SnapshotWatch
from delayed_queue.observe.workers import ALIVE, BEAT, COMMANDS, Worker
from delayed_queue.queue.bulk import RUNS
from delayed_queue.worker.engine.chores import Chores
from delayed_queue.worker.engine.consumers import SlowestScan
from delayed_queue.worker.engine.refusals import state_of
from delayed_queue.worker.engine.running import Load, SlowLog

if TYPE_CHECKING:
    from delayed_queue.observe.history import Tally

_SILENT_FOR_GOOD: Final = timedelta(days=1)
_BEATS_PER_PRUNE: Final = 360
_MAX_PRUNED: Final = 100
# A worker that stops waits at most N seconds for the removal of its row.
_RETIRE_TIMEOUT: Final = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker's identity and counts."""

    name: str
    process: int = 0
    holder: str = ""
    queues: Sequence[str] = ()
    in_flight: int = 0
    load: Load = field(default_factory=Load)
    # The command that it follows, for a new row.
    command: str = ""
    done: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    done_by_queue: Mapping[str, int] = field(default_factory=dict)
    tallies: Sequence[Tally] = ()
    scan: SlowestScan = field(default_factory=SlowestScan)
    # Recently refused writes, by queue and SQLSTATE.
    refused: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """Return what the worker's row contains of it."""
        names = (
            "name", "process", "holder", "queues",
            "in_flight", "done", "failed", "dead", "lost", "refused",
        )  # fmt: skip
        same = {name: getattr(self, name) for name in names}
        return {**same, **self.scan._asdict(), **self.load.columns()}


@dataclass(frozen=True, slots=True)
class _Measure:
    """Messages done by queue, at an instant of the monotonic clock."""

    at: float
    done: Mapping[str, int]

    def rates_since(self, before: _Measure) -> dict[str, float]:
        """Return messages per second for each queue that handled any."""
        seconds = max(self.at - before.at, 0.001)
        gained = {name: done - before.done.get(name, 0) for name, done in self.done.items()}
        return {name: round(more / seconds, 3) for name, more in gained.items() if more > 0}


def resident_memory() -> int:
    """Return the resident set of this process, in bytes; its maximum where /proc is missing."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


class Heartbeat:
    """Updates the worker's row, in its own thread and on its own connection.

    Handling does not depend on it. If the database is unavailable, it logs one warning and retries.
    If the row was removed, it inserts a new one. The thread calls ``describe``.
    """

    def __init__(
        self,
        using: str,
        describe: Callable[[], Snapshot],
        obey: Callable[[str], None] = lambda command: None,
        *,
        interval: timedelta = BEAT,
    ) -> None:
        self._using = using
        self._describe = describe
        self._obey = obey
        self._interval = interval.total_seconds()
        self._id: int | None = None
        self._started_at: datetime | None = None
        self._before: _Measure | None = None
        self._beats = 0
        # The resident set at the last beat, in bytes.
        self.memory = 0
        self._chores = Chores(using)
        self._sampler = Sampler(using, ALIVE)
        self._watch = SnapshotWatch(using)
        self._slow_log = SlowLog()
        self._is_failing = False
        # The SQLSTATE of the failure that was logged last.
        self._failure = ""
        self._stopped = StopSignal()
        self.thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Remove the row, within a timeout so that the worker can stop."""
        self._stopped.set()
        if self.thread.ident is not None:
            self.thread.join(_RETIRE_TIMEOUT)
        self._chores.stop()

    def _run(self) -> None:
        limit_waits(self._using)
        self._listener = Listener([RUNS, COMMANDS], self._using)
        try:
            while not self._stopped.is_set():
                self._attempt(self._turn)
                self._sleep()
            self._attempt(self._retire)
            self._sampler.look(self._describe().tallies, is_last=True)
        finally:
            self._listener.stop()
            connections.close_all()

    def _sleep(self) -> None:
        """Sleep until the next beat; start announced bulk runs and commands at once."""
        beats_at = time.monotonic() + self._interval
        while not self._stopped.is_set() and (left := beats_at - time.monotonic()) > 0:
            if self._is_failing:
                select.select([self._stopped], [], [], left)
            else:
                self._attempt(partial(self._listen, left))

    def _listen(self, seconds: float) -> None:
        if self._listener.wait(seconds, self._stopped):
            self._read_command()
            self._chores.look()

    def _read_command(self) -> None:
        if self._id is not None:
            commands = Worker.objects.using(self._using).filter(pk=self._id)
            for command in commands.values_list("command", flat=True):
                self._obey(command)

    def _attempt(self, call: Callable[[], None]) -> None:
        try:
            through_conflicts(call)
        except (Error, ResourceUnavailable) as error:
            self._note_failure(error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _note_failure(self, error: Error | ResourceUnavailable) -> None:
        """Log a failure unless it repeats the last one, and disconnect."""
        if self._failure != state_of(error):
            log(logging.WARNING, "heartbeat_failed", error=described(error))
        self._failure = state_of(error)
        self._listener.stop()
        connections[self._using].close()

    def _turn(self) -> None:
        snapshot = self._describe()
        self._slow_log.look(snapshot.load.every)
        try:
            self.beat(snapshot)
            self._read_command()
            self._failure = ""
        except Error as error:
            if is_unavailable(error):
                raise
            # Samples and bulk runs do not need the row.
            self._note_failure(error)
        self._sampler.look(snapshot.tallies)
        self._chores.look()
        self._watch.look(self.is_first)

    def is_first(self) -> bool:
        """Return whether this worker is the oldest one alive."""
        since = database_now(self._using) - ALIVE
        alive = Worker.objects.using(self._using).filter(heartbeat_at__gte=since)
        first = alive.order_by("pk").values_list("pk", flat=True).first()
        return first is not None and first == self._id

    def beat(self, snapshot: Snapshot | None = None) -> None:
        """Update the row; insert a new one if it was removed."""
        snapshot = snapshot or self._describe()
        measure = _Measure(time.monotonic(), dict(snapshot.done_by_queue))
        rates = {} if self._before is None else measure.rates_since(self._before)
        now = DatabaseNow()
        self.memory = resident_memory()
        columns = {**snapshot.columns(), "rates": rates, "memory": self.memory, "heartbeat_at": now}
        rows = Worker.objects.using(self._using)
        if self._id is None or not rows.filter(pk=self._id).update(**columns):
            host, version = socket.gethostname(), delayed_queue.__version__
            columns |= {"started_at": self._started_at or now, "command": snapshot.command}
            self._id = rows.create(host=host, pid=os.getpid(), version=version, **columns).pk
            # None if another session has removed the row already.
            self._started_at = rows.filter(pk=self._id).values_list("started_at", flat=True).first()
        self._before = measure
        self._prune_at_times()

    def _prune_at_times(self) -> None:
        if self._beats % _BEATS_PER_PRUNE == 0:
            Worker.objects.prune(_SILENT_FOR_GOOD, _MAX_PRUNED, using=self._using)
        self._beats += 1

    def _retire(self) -> None:
        if self._id is not None:
            Worker.objects.using(self._using).filter(pk=self._id).delete()
