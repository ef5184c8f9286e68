"""Background work of a worker: its row, bulk runs, pruning."""

from __future__ import annotations

import logging
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from django.db import Error, connections

import delayed_queue
from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import is_unavailable, through_conflicts
from delayed_queue.db.silence import limit_waits
from delayed_queue.db.wakeups import Listener, StopSignal
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND
from delayed_queue.observe.history import Sampler
from delayed_queue.observe.snapshots import SnapshotWatch
from delayed_queue.observe.store import SAMPLES_BY_DAY
from delayed_queue.queue.bulk import RUNS, step
from delayed_queue.queue.models import BulkRun, DeadLetter, Limit
from delayed_queue.worker.engine.refusals import state_of
from delayed_queue.worker.models import Worker
from delayed_queue.worker.store import NOT_SCANNED, SlowestScan, WorkerCounts

if TYPE_CHECKING:
    from delayed_queue.observe.history import Tally

T = TypeVar("T")

BEAT: Final = timedelta(seconds=10)
# A worker whose last heartbeat is older is reported as silent; nothing else depends on it.
ALIVE: Final = 3 * BEAT
# At most N lease ids in a worker's row, where operators find the holder of a lease.
MAX_LEASES: Final = 20
_SILENT_FOR_GOOD: Final = timedelta(days=1)
_BEATS_PER_PRUNE: Final = 360
_MAX_PRUNED: Final = 100
# A worker that stops waits at most N seconds for the removal of its row.
_RETIRE_TIMEOUT: Final = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker's identity, counts and ``lease_ids``, oldest first."""

    name: str
    process: int = 0
    holder: str = ""
    queues: Sequence[str] = ()
    in_flight: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    done_by_queue: Mapping[str, int] = field(default_factory=dict)
    lease_ids: Sequence[str] = ()
    tallies: Sequence[Tally] = ()
    scan: SlowestScan = NOT_SCANNED
    # Recently refused writes, by queue and SQLSTATE.
    refused: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def counts(self) -> WorkerCounts:
        return WorkerCounts(self.in_flight, self.done, self.failed, self.dead, self.lost)


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


class Heartbeat:
    """Updates the worker's row, in its own thread and on its own connection.

    Handling does not depend on it. If the database is unavailable, it logs one warning and retries.
    If the row was removed, it inserts a new one. The thread calls ``describe``.
    """

    def __init__(
        self, using: str, describe: Callable[[], Snapshot], *, interval: timedelta = BEAT
    ) -> None:
        self._using = using
        self._describe = describe
        self._interval = interval.total_seconds()
        self._id: int | None = None
        self._queues: Sequence[str] = ()
        self._started_at: int | None = None
        self._before: _Measure | None = None
        self._beats = 0
        self._chores = Chores(using)
        self._sampler = Sampler(using, ALIVE)
        self._watch = SnapshotWatch(using)
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
        self._listener = Listener([RUNS], self._using)
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
        """Sleep until the next beat; start announced bulk runs at once."""
        beats_at = time.monotonic() + self._interval
        while not self._stopped.is_set() and (left := beats_at - time.monotonic()) > 0:
            if self._is_failing:
                select.select([self._stopped], [], [], left)
            else:
                self._attempt(partial(self._listen, left))

    def _listen(self, seconds: float) -> None:
        if self._listener.wait(seconds, self._stopped):
            self._chores.look()

    def _attempt(self, call: Callable[[], None]) -> None:
        try:
            through_conflicts(call)
        except Error as error:
            self._note_failure(error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _note_failure(self, error: Error) -> None:
        """Log a failure unless it repeats the last one, and disconnect."""
        if self._failure != state_of(error):
            log(logging.WARNING, "heartbeat_failed", error=described(error))
        self._failure = state_of(error)
        self._listener.stop()
        connections[self._using].close()

    def _turn(self) -> None:
        snapshot = self._describe()
        try:
            self.beat(snapshot)
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
        rows = Worker.objects.using(self._using)
        own = None if self._id is None else rows.filter(pk=self._id).first()
        if own is None:
            return False
        alive = rows.filter(heartbeat_at__gte=own.heartbeat_at - ALIVE).order_by("pk")
        return alive.values_list("pk", flat=True).first() == self._id

    def beat(self, snapshot: Snapshot | None = None) -> None:
        """Update the row; insert a new one if it was removed."""
        snapshot = snapshot or self._describe()
        measure = _Measure(time.monotonic(), dict(snapshot.done_by_queue))
        if self._id is not None and self._queues != snapshot.queues:
            # The queues have changed, and a row's queues are never updated.
            self._retire()
            self._id = None
        if self._id is None or not self._tell(self._id, snapshot, measure):
            self._enlist(snapshot)
            self._tell(self._id or 0, snapshot, measure)
        self._before = measure
        self._prune_at_times()

    def _tell(self, worker_id: int, snapshot: Snapshot, measure: _Measure) -> bool:
        return Worker.objects.beat(
            worker_id,
            snapshot.counts,
            rates={} if self._before is None else measure.rates_since(self._before),
            lease_ids=snapshot.lease_ids[-MAX_LEASES:],
            scan=snapshot.scan,
            refused=snapshot.refused,
            using=self._using,
        )

    def _enlist(self, snapshot: Snapshot) -> None:
        self._queues = snapshot.queues
        self._id, self._started_at = Worker.objects.enlist(
            snapshot.name,
            socket.gethostname(),
            os.getpid(),
            process=snapshot.process,
            holder=snapshot.holder,
            queues=snapshot.queues,
            version=delayed_queue.__version__,
            started_at=self._started_at,
            using=self._using,
        )

    def _prune_at_times(self) -> None:
        if self._beats % _BEATS_PER_PRUNE == 0:
            Worker.objects.prune(_SILENT_FOR_GOOD // MILLISECOND, _MAX_PRUNED, using=self._using)
        self._beats += 1

    def _retire(self) -> None:
        if self._id is not None:
            Worker.objects.retire(self._id, using=self._using)


_LONGEST_WAIT: Final = 5.0
_STOP_TIMEOUT: Final = 5.0
# Seconds between prunings of dead letters. All workers prune; each skips rows that another deletes.
_FIRST_PRUNE: Final = 60.0
_PRUNE_INTERVAL: Final = 600.0
_PRUNE_BATCH: Final = 1000
_MAX_KINDS: Final = 10_000


class Chores:
    """Bulk runs and pruning, in a thread that exists only while there is work.

    The heartbeat calls ``look`` on its connection. Workers share the runs, batch by batch.
    """

    def __init__(self, using: str, *, first_prune: float = _FIRST_PRUNE) -> None:
        self._using = using
        self._prunes_at = time.monotonic() + first_prune
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Start the thread if a bulk run is waiting or pruning is due."""
        if self._thread is not None and self._thread.is_alive():
            self._hurried.set()
            return
        if self._is_time_to_prune() or BulkRun.objects.next_in(using=self._using) is not None:
            self._thread = threading.Thread(target=self._run, name="chores", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Finish the batch; a later thread or another worker continues."""
        self._stopped.set()
        self._hurried.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT)

    def _run(self) -> None:
        try:
            if self._is_time_to_prune():
                self._prune()
            while not self._stopped.is_set() and self._turn():
                pass
        except Error as error:
            # The batch was rolled back; the next heartbeat retries.
            log(logging.WARNING, "chores_failed", error=described(error))
        finally:
            connections[self._using].close()

    def _is_time_to_prune(self) -> bool:
        return time.monotonic() >= self._prunes_at

    def _prune(self) -> None:
        """Delete expired dead letters and samples, and unused rows of limits."""
        pause = _PRUNE_INTERVAL * random.uniform(0.8, 1.2)  # noqa: S311 - to spread a herd
        self._prunes_at = time.monotonic() + pause
        self._prune_letters(get_settings().DEAD_LETTER_RETENTION)
        kinds = Limit.objects.using(self._using).values_list("kind", flat=True)
        for kind in kinds.distinct():
            self._unless_refused(partial(Limit.objects.tidy, kind, using=self._using), kind)
        if (kept := get_settings().SAMPLE_RETENTION) is not None:
            SAMPLES_BY_DAY.keep(kept, using=self._using)

    def _prune_letters(self, kept: timedelta | None) -> None:
        if kept is None:
            return
        age = kept // MILLISECOND
        for kind in DeadLetter.objects.kinds(_MAX_KINDS, using=self._using):
            prune = partial(self._prune_batch, kind, age)
            while not self._stopped.is_set() and self._unless_refused(prune, kind):
                pass

    def _unless_refused(self, call: Callable[[], T], kind: str) -> T | None:
        """Return ``call()``; log a refusal, so that the other kinds continue."""
        try:
            return call()
        except Error as error:
            if is_unavailable(error):
                raise
            log(logging.WARNING, "chores_failed", kind=kind, error=described(error))
            return None

    def _prune_batch(self, kind: str, age: int) -> bool:
        """Delete a batch; return whether more may remain."""
        return (
            DeadLetter.objects.prune(kind, age, limit=_PRUNE_BATCH, using=self._using)
            == _PRUNE_BATCH
        )

    def _turn(self) -> bool:
        """Run a batch, or wait for the next; return whether more remain."""
        if step(self._using):
            return True
        wait = BulkRun.objects.next_in(using=self._using)
        if wait is not None:
            # At least 50 ms, even if the run is due: another worker holds its lock.
            self._hurried.wait(min(max(wait / 1000, 0.05), _LONGEST_WAIT))
            self._hurried.clear()
        return wait is not None
