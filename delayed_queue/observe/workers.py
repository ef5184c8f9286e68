"""The table of worker processes, which their heartbeats write."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS, models, transaction
from django.db.models import Value
from django.utils.translation import gettext_lazy as _

from delayed_queue import db
from delayed_queue.codecs import channel_of
from delayed_queue.conf import get_settings
from delayed_queue.db.clock import database_now
from delayed_queue.fields import EpochMillisecondField

BEAT: Final = timedelta(seconds=10)
# A worker whose last heartbeat is older is reported as silent; nothing else depends on it.
ALIVE: Final = 3 * BEAT
# Commands of operators to a worker, and the channel that announces them.
DRAIN: Final = "drain"
RESTART: Final = "restart"
COMMANDS: Final = "commands of workers"
# At most N live workers are summed up.
MAX_SUMMED: Final = 10_000


@dataclass(slots=True)
class Throughput:
    """The number of live workers that serve a queue, and their messages per second."""

    workers: int = 0
    rate: float = 0.0


class Running(NamedTuple):
    """The longest-running handler of a worker, as of now."""

    queue: str
    key: str
    thread: str
    age: timedelta
    is_slow: bool
    worker: Worker

    @property
    def seconds(self) -> timedelta:
        """The age in whole seconds."""
        return timedelta(seconds=int(self.age.total_seconds()))


class LiveWorkers(NamedTuple):
    """The live workers, the latest heartbeat first, as of one instant."""

    now: datetime
    workers: list[Worker]

    @property
    def throughput(self) -> dict[str, Throughput]:
        """The throughput of each queue."""
        found: dict[str, Throughput] = defaultdict(Throughput)
        for worker in self.workers:
            for queue in worker.queues:
                found[queue].workers += 1
                found[queue].rate += worker.rates.get(queue, 0.0)
        return found

    @property
    def refused(self) -> dict[tuple[str, str], int]:
        """The number of recently refused writes, by queue and SQLSTATE."""
        found: Counter[tuple[str, str]] = Counter()
        for worker in self.workers:
            for queue, numbers in worker.refused.items():
                found.update({(queue, state): number for state, number in numbers.items()})
        return dict(sorted(found.items()))

    @property
    def running(self) -> list[Running]:
        """The longest-running handler of each worker, slow and old ones first."""
        found = [each.running_at(self.now) for each in self.workers]
        known = [each for each in found if each is not None]
        return sorted(known, key=lambda each: (each.is_slow, each.age), reverse=True)

    @property
    def slow(self) -> int:
        """The number of slow handlers."""
        return sum(each.slow for each in self.workers)


class WorkerManager(models.Manager["Worker"]):
    """The rows of workers, and the removal of silent ones."""

    def live(self, *, using: str = DEFAULT_DB_ALIAS) -> LiveWorkers:
        """Read the live workers."""
        now = database_now(using)
        rows = self.using(using).filter(heartbeat_at__gt=now - ALIVE)
        return LiveWorkers(now, list(rows.order_by("-heartbeat_at", "-pk")[:MAX_SUMMED]))

    def announce_commands(self, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Have workers read their commands now, at the commit; without NOTIFY at the next beat."""
        if get_settings().NOTIFY:
            db.notify(using, channel_of(COMMANDS))

    def prune(self, age: timedelta, limit: int, *, using: str = DEFAULT_DB_ALIAS) -> int:
        """Delete up to ``limit`` rows that are silent for longer than ``age``; return how many."""
        rows, since = self.using(using), database_now(using) - age
        with transaction.atomic(using=using):
            silent = rows.filter(heartbeat_at__lt=since).order_by("heartbeat_at", "pk")
            free = silent.select_for_update(skip_locked=True).values_list("pk", flat=True)
            return rows.filter(pk__in=list(free[:limit])).delete()[0]


class Worker(models.Model):
    """A worker process, updated by its heartbeat every few seconds.

    For operators only. A silent worker loses its messages when their leases expire, whether it has
    a row or not.
    """

    name = models.TextField()
    host = models.TextField(
        _("host"),
    )
    pid = models.IntegerField()
    process = models.IntegerField(db_default=0)
    queues = models.JSONField()
    version = models.TextField(
        _("version"),
    )
    started_at = EpochMillisecondField(db_column="startedAt")
    heartbeat_at = EpochMillisecondField(db_column="heartbeatAt")
    in_flight = models.BigIntegerField(db_column="inFlight", db_default=0)
    done = models.BigIntegerField(db_default=0)
    failed = models.BigIntegerField(db_default=0)
    dead = models.BigIntegerField(db_default=0)
    lost = models.BigIntegerField(db_default=0)
    rates = models.JSONField(db_default=Value({}, models.JSONField()))
    # The start of its lease ids.
    holder = models.CharField(max_length=8, blank=True, db_default="")
    # The queue with the slowest full scan.
    scanned = models.TextField(blank=True, db_default="")
    scan_seconds = models.FloatField(db_column="scanSeconds", db_default=0.0)
    # The number of recently refused writes, by queue and SQLSTATE.
    refused = models.JSONField(db_default=Value({}, models.JSONField()))
    # The longest-running handler: queue, key, thread, seconds, is_slow. Slow ones come first.
    running = models.JSONField(db_default=Value({}, models.JSONField()))
    slow = models.IntegerField(db_default=0)
    # Busy handler threads by queue, and all threads.
    busy = models.JSONField(db_default=Value({}, models.JSONField()))
    threads = models.IntegerField(db_default=0)
    # The resident set, in bytes.
    memory = models.BigIntegerField(db_default=0)
    # The command of an operator: DRAIN, RESTART or nothing.
    command = models.CharField(max_length=10, blank=True, db_default="")

    objects = WorkerManager()

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        db_table = "delayed_queue_worker"
        indexes = [
            models.Index(fields=["heartbeat_at", "id"], name="worker_heartbeat"),
            models.Index(fields=["holder", "id"], name="worker_holder"),
        ]
        permissions = [("operate_worker", "Can drain, resume and restart workers")]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.name} on {self.host}"

    @property
    def busy_threads(self) -> int:
        return sum(self.busy.values())

    def running_at(self, now: datetime) -> Running | None:
        """Return its longest-running handler; its age includes the time since the heartbeat."""
        found = self.running
        if not found:
            return None
        age = timedelta(seconds=found["seconds"]) + (now - self.heartbeat_at)
        return Running(found["queue"], found["key"], found["thread"], age, found["is_slow"], self)
