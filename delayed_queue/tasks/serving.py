"""Serve the queues of tasks: a handler for each, and a thread that keeps up progress and days."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.db import Error, connections, transaction
from django.utils.module_loading import import_string
from django.utils.translation import gettext

from delayed_queue.codecs import channel_of, codec_named
from delayed_queue.db.days import DAYS_SECONDS
from delayed_queue.db.resilience import never, repeat
from delayed_queue.db.sql import Step
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.facade import DelayedQueue
from delayed_queue.handlers import (
    Failure,
    Handler,
    HandlerSignal,
    Manner,
    Verdict,
    judge,
    registry,
)
from delayed_queue.logs import described, log
from delayed_queue.messages import Envelope
from delayed_queue.observe import signals
from delayed_queue.retries import Groups, RetryPolicy
from delayed_queue.tasks import running
from delayed_queue.tasks._api import have_listeners
from delayed_queue.tasks.models import TaskPriority, TaskResult
from delayed_queue.tasks.options import kind_of_priority
from delayed_queue.tasks.policies import MAX_ATTEMPTS
from delayed_queue.tasks.results import (
    TaskGone,
    as_enqueued,
    check_call,
    id_in,
    task_at,
    unpack,
)
from delayed_queue.tasks.running import Known, Run, names_of, worker
from delayed_queue.tasks.store import RESULTS_BY_DAY, acknowledging, recording

BACKEND: Final = "delayed_queue.tasks.DelayedQueueBackend"
# A task says itself how often it is tried; the handler is not to know better.
_UNLIMITED: Final = RetryPolicy((timedelta(seconds=5),), MAX_ATTEMPTS)
_LONGEST_KNOWN: Final = 10_000
# How often the keeper looks whether something is to be done.
TURN_SECONDS: Final = 0.5
# Progress is written once a second; what runs for less than this is not looked for.
PROGRESS_SECONDS: Final = 1.0

# What this process knows: backends by alias, what serves each queue, what is the same of all runs
# of a task, and the keeper beside each worker.
_backends: Final[dict[str, Any]] = {}
servings: Final[dict[str, Serving]] = {}
_known: Final[dict[tuple[str, str, int, str], Known]] = {}
_keepers: Final[dict[int, Keeper]] = {}


# The queues that TASKS declares


def is_ours(configured: Any) -> bool:
    """Return whether an entry of TASKS names this backend, or one that is made of it."""
    path: Any = configured.get("BACKEND") if isinstance(configured, dict) else None
    if path == BACKEND:
        return True
    from delayed_queue.tasks.backend import DelayedQueueBackend

    try:
        found = import_string(path)
    except (ImportError, TypeError, AttributeError):
        return False
    return isinstance(found, type) and issubclass(found, DelayedQueueBackend)


def declared() -> Iterator[tuple[str, Any]]:
    """Yield alias and backend of each entry of TASKS that is ours."""
    if not _backends:
        for alias, configured in (getattr(settings, "TASKS", None) or {}).items():
            if is_ours(configured):
                # Of our own: Django makes one for each thread, and makes them anew when it hears,
                # after us, that the settings have changed.
                made = import_string(configured["BACKEND"])
                _backends[alias] = made(alias=alias, params=configured)
    yield from list(_backends.items())


def serve_declared() -> None:
    """Register a handler for each declared queue that has none."""
    for _, backend in declared():
        for queue in sorted(backend.queues):
            serving = servings.setdefault(queue, Serving(queue))
            if queue not in registry:
                registry.add(_handler(serving, backend.settings.groups.get(queue)))


def forget_declared() -> None:
    for queue in servings:
        if queue in registry and is_served(queue):
            registry.remove(queue)
    servings.clear()
    _backends.clear()
    _known.clear()
    priorities.forget()


def is_served(queue: str) -> bool:
    """Return whether tasks of the queue are run, and not something else by a handler's."""
    return isinstance(registry.get(queue).treatment, Serving)


def _handler(serving: Serving, groups: Groups | None) -> Handler:
    codec = codec_named("json")
    return Handler(
        serving.queue, serving.call, codec, kind_of_priority(serving.queue, 0), _UNLIMITED,
        groups=groups, treatment=serving,
    )  # fmt: skip


# The messages of a queue


class Serving:
    """The treatment of one queue's messages, each of which is a task."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._kind = kind_of_priority(queue, 0)
        self.use(())

    def __str__(self) -> str:
        return gettext("tasks")

    def _open(self, envelope: Envelope) -> Run:
        """Return the run of a message, made when it is first asked for.

        Until then a message may keep what is known of its task, and behind it what to record.
        """
        run = envelope.state
        if type(run) is not Run:
            run = envelope.state = self._run(envelope)
        return run

    def _run(self, envelope: Envelope) -> Run:
        payload = envelope.payload
        known = envelope.state if type(envelope.state) is Known else None
        try:
            task_id, path, alias = unpack(
                payload, self._kind, envelope.key, envelope.scheduled_at_ms
            )
            if known is None:
                known = known_task(path, self.queue, payload.get("priority", 0), alias)
        except TaskGone as error:
            return Run(envelope, *self._names(envelope), problem=error)
        return Run(envelope, task_id, known.names, known)

    def _names(self, envelope: Envelope) -> tuple[str, tuple[str, str]]:
        """Return the id of what may be no task at all, and the names of task and backend."""
        said = envelope.payload if isinstance(envelope.payload, dict) else {}
        path, alias = str(said.get("task", "")), str(said.get("backend", "default"))
        known = {"task": path, "id": said.get("id", envelope.key)}
        task_id, *_ = unpack(known, self._kind, envelope.key, envelope.scheduled_at_ms)
        return task_id, names_of(path, alias)

    # As handlers.Treatment

    def manner(self, envelope: Envelope) -> Manner:
        payload = envelope.payload
        try:
            alias, priority = payload.get("backend", "default"), payload.get("priority", 0)
            known = envelope.state = _known[payload["task"], self.queue, priority, alias]
        except (AttributeError, KeyError, TypeError):  # the first of a task, or what is none
            found = self._open(envelope).known
            if found is None:
                return Manner(is_async=False)
            known = found
        envelope.handler = known.names[0]
        return known.manner

    def call(self, envelope: Envelope) -> None:
        known, began_at = envelope.state, time.monotonic()
        if _is_watched(known, envelope, began_at):
            run = self._open(envelope)
            running.call(run)
            envelope.state = run.outcome
            return
        try:
            envelope.state = running.call_plainly(known, envelope.payload, began_at)
        except BaseException as error:
            run = self._open(envelope)
            run.began_at = began_at
            running.end_with(run, error)
            envelope.state = run.outcome

    async def acall(self, envelope: Envelope) -> None:
        run = self._open(envelope)
        await running.acall(run)
        envelope.state = run.outcome

    def judge(self, error: BaseException, envelope: Envelope) -> Verdict | None:
        run = envelope.state
        if type(run) is not Run or (isinstance(error, HandlerSignal) and run.verdict is None):
            return None
        if run.verdict is None:  # it was given up: nothing has been noted of it
            run.failed(error)
            run.envelope.lease_lost = False
            run.finished()
            run.envelope.lease_lost = True
        return run.verdict

    def verdict(self, error: BaseException, envelope: Envelope) -> Verdict:
        """Return what becomes of a failed message, by the policy of the handler if by no other."""
        return self.judge(error, envelope) or judge(error, envelope.attempt, _UNLIMITED)

    def unwanted(self, envelopes: Sequence[Envelope], using: str) -> Iterator[Envelope]:
        asked = {self._names(each)[0]: each for each in envelopes}
        if asked:
            for found in TaskResult.objects.cancelled_among(list(asked), using=using):
                yield asked[found]

    def acknowledging(self, done: Sequence[Envelope]) -> Step | None:
        attempts = [self._attempt(each) for each in done if each.state is not None]
        if not attempts:
            return None
        ids = sorted([each.message_id for each in done])
        return acknowledging(ids, {each.lease_id for each in done}, attempts, worker.as_json)

    def _attempt(self, envelope: Envelope) -> Any:
        """Return what is to be recorded of what was handled; in full where it was called plainly.

        A tuple that an Attempt is made of: to make one takes three times as long.
        """
        if type(envelope.state) is not tuple:
            return envelope.state
        known, began_at, ended_at, value = envelope.state
        task_id = id_in(envelope.payload, self._kind, envelope.key, envelope.scheduled_at_ms)
        return (
            envelope.message_id, envelope.lease_id, task_id, known.names, began_at, ended_at, value,
            None, None,
        )  # fmt: skip

    def recording(self, failed: Sequence[Failure]) -> list[Step]:
        attempts = [
            self._open(envelope).failed_row(error, verdict)
            for envelope, error, verdict in failed
            if (verdict.counts or verdict.is_dead) and self._open(envelope).is_kept
        ]
        return [recording(attempts, worker.as_json)] if attempts else []

    def refusal(self, payload: Any) -> str:
        try:
            _, path, alias = unpack(payload, self._kind, "", 0)
            _backend(alias)
            check_call(task_at(path), payload.get("args", ()), payload.get("kwargs", {}))
        except TaskGone as error:
            return str(error)
        return ""

    def kinds(self) -> Sequence[str]:
        return self._kinds

    def use(self, priorities: Sequence[int]) -> None:
        """Serve these priorities beside 0; the highest first."""
        self.priorities = tuple(sorted({0, *priorities}, reverse=True))
        self._kinds = tuple(kind_of_priority(self.queue, each) for each in self.priorities)


def _is_watched(known: Any, envelope: Envelope, now: float) -> bool:
    """Return whether more is to be seen of a run than what the task returns."""
    return (
        type(known) is not Known or not known.is_plain or envelope.attempt > 1
        or envelope.lease_lost or envelope.is_unwanted or have_listeners(now)
    )  # fmt: skip


def known_task(path: str, queue: str, priority: int, alias: str) -> Known:
    """Return what is the same of all runs of a task; raises TaskGone."""
    key = (path, queue, priority, alias)
    found = _known.get(key)
    if found is None:
        found = Known(
            as_enqueued(
                task_at(path), backend=alias, queue=queue, priority=priority, run_after=None
            ),
            path,
            _backend(alias),
        )
        if len(_known) < _LONGEST_KNOWN:
            _known[key] = found
    return found


def _backend(alias: str) -> Any:
    backend = next((each for name, each in declared() if name == alias), None)
    if backend is None:
        raise TaskGone(f"TASKS has no backend {alias!r} of delayed_queue: declare it.")
    return backend


# Its priorities


class TaskQueue(DelayedQueue):
    """Messages of a priority other than 0 have a kind of their own."""

    def __init__(self, name: str, priority: int, using: str) -> None:
        super().__init__(name, kind=kind_of_priority(name, priority), using=using)

    @property
    def _channel(self) -> str:
        return channel_of(kind_of_priority(self.name, 0))


class Priorities:
    """The priorities that queues have used, as known to this process."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str, int]] = set()

    def tell(self, using: str, queue: str, priority: int) -> None:
        """Have all workers know that the queue has this priority, before a message of it."""
        known = (using, queue, priority)
        if priority != 0 and known not in self._told:
            use = partial(TaskPriority.objects.use, queue, priority, using=using)
            repeat(using, use, doubt=never)
            transaction.on_commit(lambda: self._told.add(known), using=using)

    def forget(self) -> None:
        self._told.clear()

    def read(self, using: str) -> None:
        """Serve the priorities that are in use by now; as before while the database is away."""
        try:
            found = TaskPriority.objects.by_queue(using=using)
        except Error:
            return
        self._told = {(using, queue, each) for queue, some in found.items() for each in some}
        for queue, serving in servings.items():
            serving.use(found.get(queue, ()))


priorities: Final = Priorities()


# What goes on beside a worker


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
