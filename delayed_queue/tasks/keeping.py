"""The keeper beside each worker: a thread that stores progress and keeps the days of results."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import Error, connections

from delayed_queue.db.days import DAYS_SECONDS
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.logs import described, log
from delayed_queue.observe import signals
from delayed_queue.tasks.backend import declared
from delayed_queue.tasks.priorities import priorities
from delayed_queue.tasks.run import worker
from delayed_queue.tasks.store import RESULTS_BY_DAY, record_progress

# Interval of storing progress, and of reading priorities.
PROGRESS_SECONDS: Final = 1.0
# Longest wait for the thread when its worker stops.
_STOP_SECONDS: Final = 5.0
_keepers: Final[dict[int, tuple[threading.Event, threading.Thread]]] = {}


def _keep_until(stopped: threading.Event, using: str) -> None:
    """Keep what the worker's tasks need, on a connection of this thread."""
    days_at = -DAYS_SECONDS
    try:
        while not stopped.wait(PROGRESS_SECONDS):
            try:
                priorities.read(using)
                _store_progress(using)
                if time.monotonic() - days_at >= DAYS_SECONDS:
                    days_at = time.monotonic()
                    keep_days(using)
            except (Error, ResourceUnavailable) as error:
                # Nothing is lost: the next iteration repeats it.
                log(logging.WARNING, "task_keeper_failed", error=described(error))
                connections[using].close()
    finally:
        connections.close_all()


def _store_progress(using: str) -> None:
    unreported = list(worker.unreported.values())
    runs = [run for run in unreported if run.runnable.options.database == using]
    for run in runs:
        worker.unreported.pop(run.id, None)
    if runs:
        record_progress([run.so_far() for run in runs], using=using)


def keep_days(using: str, now: datetime | None = None) -> bool:
    """Keep results by the day; return False if another worker does, or if it cannot be done."""
    kept = [
        each.settings.results or timedelta(days=1)
        for _, each in declared()
        if each.settings.database == using
    ]
    if not kept:
        return False
    try:
        return RESULTS_BY_DAY.keep(max(kept), now=now, using=using)
    except Error as error:
        log(logging.WARNING, "task_days_failed", error=described(error))
        return False


def watch_workers() -> None:
    """Start and stop a keeper with each worker."""
    signals.worker_started.connect(_start, dispatch_uid="delayed_queue.tasks.start")
    signals.worker_stopped.connect(_stop, dispatch_uid="delayed_queue.tasks.stop")


def _start(sender: Any, **kwargs: object) -> None:
    """Read the priorities before the worker's first claim, and start its keeper."""
    if not any(True for _ in declared()):
        return
    worker.rename(str(sender))
    priorities.read(sender.options.using)
    stopped = threading.Event()
    args = (stopped, sender.options.using)
    thread = threading.Thread(target=_keep_until, args=args, name="task-keeper", daemon=True)
    _keepers[id(sender)] = stopped, thread
    thread.start()


def _stop(sender: Any, **kwargs: object) -> None:
    stopped, thread = _keepers.pop(id(sender), (None, None))
    if stopped is not None and thread is not None:
        stopped.set()
        thread.join(timeout=_STOP_SECONDS)
