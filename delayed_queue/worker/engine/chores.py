"""Chores of a worker: bulk runs and pruning."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from django.db import Error, connections

from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import is_unavailable
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND
from delayed_queue.observe.store import SAMPLES_BY_DAY
from delayed_queue.queue.bulk import step
from delayed_queue.queue.models import BulkRun, DeadLetter, Limit, StoredBatch

_LONGEST_WAIT: Final = 5.0
_STOP_TIMEOUT: Final = 5.0
# Seconds between prunings of dead letters. All workers prune; each skips rows that another deletes.
_FIRST_PRUNE: Final = 60.0
_PRUNE_INTERVAL: Final = 600.0
# Seconds between searches for batches whose last members were removed by others.
_SWEEP_INTERVAL: Final = 45.0
_PRUNE_BATCH: Final = 1000
_MAX_KINDS: Final = 10_000


class Chores:
    """Bulk runs and pruning, in a thread that exists only while there is work; batches.

    The heartbeat calls ``look`` on its connection. Workers share the runs, batch by batch.
    """

    def __init__(self, using: str, *, first_prune: float = _FIRST_PRUNE) -> None:
        self._using = using
        self._prunes_at = time.monotonic() + first_prune
        self._sweeps_at = 0.0
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Start the thread if a bulk run is waiting or pruning is due; sweep batches."""
        self._sweep()
        if self._thread is not None and self._thread.is_alive():
            self._hurried.set()
            return
        if self._is_time_to_prune() or BulkRun.objects.next_in(using=self._using) is not None:
            self._thread = threading.Thread(target=self._run, name="chores", daemon=True)
            self._thread.start()

    def _sweep(self) -> None:
        """Finish batches whose last members were removed by others."""
        if time.monotonic() >= self._sweeps_at:
            self._sweeps_at = time.monotonic() + _SWEEP_INTERVAL
            sweep = partial(StoredBatch.objects.sweep, using=self._using)
            self._unless_refused(sweep, "batches")

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
        if (age := get_settings().DEAD_LETTER_RETENTION) is not None:
            for kind in DeadLetter.objects.kinds(_MAX_KINDS, using=self._using):
                self._unless_refused(partial(self._prune_letters, kind, age // MILLISECOND), kind)
        kinds = Limit.objects.using(self._using).values_list("kind", flat=True)
        for kind in kinds.distinct():
            self._unless_refused(partial(Limit.objects.tidy, kind, using=self._using), kind)
        if (age := get_settings().SAMPLE_RETENTION) is not None:
            SAMPLES_BY_DAY.keep(age, using=self._using)

    def _prune_letters(self, kind: str, age: int) -> None:
        prune = partial(DeadLetter.objects.prune, kind, age, limit=_PRUNE_BATCH, using=self._using)
        while not self._stopped.is_set() and prune() == _PRUNE_BATCH:
            pass

    def _unless_refused(self, call: Callable[[], object], kind: str) -> None:
        """Run ``call``; log a refusal, so that the other kinds continue."""
        try:
            call()
        except Error as error:
            if is_unavailable(error):
                raise
            log(logging.WARNING, "chores_failed", kind=kind, error=described(error))

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
