"""Keep up what a worker does beside its tasks: progress, cancellations, priorities, days."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import Error, connections

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.messages import MILLISECOND, to_milliseconds
from delayed_queue.observe import signals
from delayed_queue.observe.logs import described
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.options import DAY_MS, first_id
from delayed_queue.tasks.running import Run, worker
from delayed_queue.tasks.serving import declared, priorities

logger = logging.getLogger("delayed_queue")

# How often it looks: a cancelled task is to hear of it within a second.
TURN_SECONDS: Final = 0.5
# Progress is written once a second; what runs for less than this is not looked for.
PROGRESS_SECONDS: Final = 1.0
DAYS_SECONDS: Final = 3600.0
# For how many days ahead partitions are made: workers that stand still for so long need not be.
DAYS_AHEAD: Final = 7


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
                    logger.warning("event=task_keeper_failed error=%s", described(error))
                    connections[self._using].close()
        finally:
            connections.close_all()

    def turn(self) -> None:
        runs = [each for each in list(worker.runs.values()) if self._is_ours(each)]
        self._tell_cancelled(runs)
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

    def _tell_cancelled(self, runs: list[Run]) -> None:
        now = time.monotonic()
        asked = {
            each.id: each
            for each in runs
            if not each.is_cancelled and now - each.began_at > TURN_SECONDS / 2
        }
        if asked:
            for found in TaskResult.objects.cancelled_among(list(asked), using=self._using):
                cancel(asked[found])

    def note_progress(self, runs: list[Run]) -> None:
        going = {each.id: each.going() for each in runs if each.is_dirty}
        if going:
            TaskResult.objects.record_progress(list(going.values()), using=self._using)


def cancel(run: Run) -> None:
    """Tell a running task that it is to end; a coroutine is cancelled."""
    run.is_cancelled = True
    if (loop := run.loop) is not None:
        loop[0].call_soon_threadsafe(loop[1].cancel)


def keep_days(using: str, now: datetime | None = None) -> bool:
    """Make the partitions of the coming days, drop those of days that are kept no longer.

    Return False when another worker is at it. A role that may not create tables makes none: then
    results are in one table for the rest, and deleted a thousand at a time.
    """
    kept = [
        each.settings.results or timedelta(days=1)
        for _, each in declared()
        if each.settings.database == using
    ]
    if not kept:
        return False
    longest = max(kept)
    today = to_milliseconds(now or datetime.now(UTC)) // DAY_MS
    wanted = [
        (_name_of(day), first_id(day), first_id(day + 1))
        for day in range(today - 1, today + DAYS_AHEAD)
    ]
    # What was to run on a day is kept until the end of the last day that it is due.
    oldest = _name_of(today - -(-longest // timedelta(days=1)))
    try:
        return TaskResult.objects.keep_days(
            wanted, oldest, longest // MILLISECOND, using=using
        )  # fmt: skip
    except Error as error:
        logger.warning("event=task_days_failed error=%s", described(error))
        return False


def _name_of(day: int) -> int:
    """Return a day since 1970 as 20260131."""
    return int((datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).strftime("%Y%m%d"))


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
