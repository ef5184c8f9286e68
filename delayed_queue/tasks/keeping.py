"""Keep up what a worker does beside its tasks: progress, priorities, days."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import Error, connections

from delayed_queue.db.days import DAYS_SECONDS
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.observe import signals
from delayed_queue.observe.logs import described, log
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.running import Run, worker
from delayed_queue.tasks.serving import declared, priorities
from delayed_queue.tasks.store import RESULTS_BY_DAY

# How often it looks whether something is to be done.
TURN_SECONDS: Final = 0.5
# Progress is written once a second; what runs for less than this is not looked for.
PROGRESS_SECONDS: Final = 1.0


class Keeper:
    """A thread with a connection of its own, beside each worker that serves tasks."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="task-keeper", daemon=True)
        self._noted_at = self._days_at = -DAYS_SECONDS

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._stopped.wait(TURN_SECONDS):
                try:
                    self.turn()
                except (Error, ResourceUnavailable) as error:
                    # Nothing is lost: the next turn does it.
                    log(logging.WARNING, "task_keeper_failed", error=described(error))
                    connections[self._using].close()
        finally:
            connections.close_all()

    def turn(self) -> None:
        runs = [each for each in list(worker.runs.values()) if self._is_ours(each)]
        now = time.monotonic()
        if now - self._noted_at >= PROGRESS_SECONDS:
            self._noted_at = now
            priorities.read(self._using)
            self.note_progress(runs)
        if now - self._days_at >= DAYS_SECONDS:
            self._days_at = now
            keep_days(self._using)

    def _is_ours(self, run: Run) -> bool:
        return run.known is not None and run.known.options.database == self._using

    def note_progress(self, runs: list[Run]) -> None:
        going = {each.id: each.going() for each in runs if each.is_dirty}
        if going:
            TaskResult.objects.record_progress(list(going.values()), using=self._using)


def keep_days(using: str, now: datetime | None = None) -> bool:
    """Keep results by the day; return False when another worker is at it, or it cannot be done."""
    kept = [
        each.settings.results or timedelta(days=1)
        for _, each in declared()
        if each.settings.database == using
    ]
    if not kept:
        return False
    try:
        # What was to run on a day is kept until the end of the last day that it is due.
        return RESULTS_BY_DAY.keep(max(kept), now=now, using=using)
    except Error as error:
        log(logging.WARNING, "task_days_failed", error=described(error))
        return False


_keepers: Final[dict[int, Keeper]] = {}


def _begin(sender: Any, **kwargs: object) -> None:
    """Begin beside a worker, before it claims: by then it knows the priorities in use."""
    if not any(True for _ in declared()):
        return
    worker.rename(str(sender))
    priorities.read(sender.options.using)
    keeper = _keepers[id(sender)] = Keeper(sender.options.using)
    keeper.start()


def _end(sender: Any, **kwargs: object) -> None:
    if (keeper := _keepers.pop(id(sender), None)) is not None:
        keeper.stop()


def watch_workers() -> None:
    signals.worker_started.connect(_begin, dispatch_uid="delayed_queue.tasks.begin")
    signals.worker_stopped.connect(_end, dispatch_uid="delayed_queue.tasks.end")
