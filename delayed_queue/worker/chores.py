"""What workers do beside their messages: bulk runs, and pruning what was kept long enough."""

from __future__ import annotations

import logging
import random
import threading
import time
from datetime import timedelta
from typing import Final

from django.db import Error, connections

from delayed_queue.conf import get_settings
from delayed_queue.messages import MILLISECOND
from delayed_queue.models import BulkRun, DeadLetter, Limit
from delayed_queue.observe.logs import described, log
from delayed_queue.observe.store import SAMPLES_BY_DAY
from delayed_queue.queue.bulk import step

_LONGEST_WAIT: Final = 5.0
_STOP_TIMEOUT: Final = 5.0
# Dead letters are pruned so often, by whichever worker it is: what one deletes another passes over.
_FIRST_PRUNE: Final = 60.0
_PRUNE_INTERVAL: Final = 600.0
_PRUNE_BATCH: Final = 1000
_MAX_KINDS: Final = 10_000


class Chores:
    """A thread while there is something to do; asked to look by the heartbeat, on its connection.

    Several workers share the runs batch by batch; which one carries out a batch is no matter.
    """

    def __init__(self, using: str, *, first_prune: float = _FIRST_PRUNE) -> None:
        self._using = using
        self._prunes_at = time.monotonic() + first_prune
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Begin where a run waits to be carried out, or it is time to prune."""
        if self._thread is not None and self._thread.is_alive():
            self._hurried.set()
            return
        if self._is_time_to_prune() or BulkRun.objects.next_in(using=self._using) is not None:
            self._thread = threading.Thread(target=self._run, name="chores", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Finish the batch; another worker goes on, or this one when it is back."""
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
            # The next heartbeat begins anew; the batch was undone.
            log(logging.WARNING, "chores_failed", error=described(error))
        finally:
            connections[self._using].close()

    def _is_time_to_prune(self) -> bool:
        return time.monotonic() >= self._prunes_at

    def _prune(self) -> None:
        """Delete what was kept long enough: dead letters a batch at a time, samples a day.

        And rows of limits that hold nothing back any more.
        """
        pause = _PRUNE_INTERVAL * random.uniform(0.8, 1.2)  # noqa: S311 - to spread a herd
        self._prunes_at = time.monotonic() + pause
        self._prune_letters(get_settings().DEAD_LETTER_RETENTION)
        kinds = Limit.objects.using(self._using).values_list("kind", flat=True)
        for kind in kinds.distinct():
            Limit.objects.tidy(kind, using=self._using)
        if (kept := get_settings().SAMPLE_RETENTION) is not None:
            SAMPLES_BY_DAY.keep(kept, using=self._using)

    def _prune_letters(self, kept: timedelta | None) -> None:
        if kept is None:
            return
        for kind in DeadLetter.objects.kinds(_MAX_KINDS, using=self._using):
            while not self._stopped.is_set() and self._prune_batch(kind, kept // MILLISECOND):
                pass

    def _prune_batch(self, kind: str, age: int) -> bool:
        """Return whether there may be more."""
        return (
            DeadLetter.objects.prune(kind, age, limit=_PRUNE_BATCH, using=self._using)
            == _PRUNE_BATCH
        )

    def _turn(self) -> bool:
        """Carry out a batch, or wait for the next; return whether there is more."""
        if step(self._using):
            return True
        wait = BulkRun.objects.next_in(using=self._using)
        if wait is not None:
            # Not at once, though its time has come: another worker has it under lock.
            self._hurried.wait(min(max(wait / 1000, 0.05), _LONGEST_WAIT))
            self._hurried.clear()
        return wait is not None
