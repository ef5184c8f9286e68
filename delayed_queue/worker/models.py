"""The table of worker processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db import DEFAULT_DB_ALIAS, models, transaction
from django.db.models import Value
from django.utils.translation import gettext_lazy as _

from delayed_queue.db.clock import database_now
from delayed_queue.fields import EpochMillisecondField

# At most N live workers are summed up.
MAX_SUMMED: Final = 10_000


@dataclass(slots=True)
class Throughput:
    """The number of live workers that serve a queue, and their messages per second."""

    workers: int = 0
    rate: float = 0.0


class WorkerManager(models.Manager["Worker"]):
    """The rows of workers, sums over the live ones, and the removal of silent ones."""

    def throughput(self, age: timedelta, *, using: str = DEFAULT_DB_ALIAS) -> dict[str, Throughput]:
        """Return the throughput of each queue, by workers with a heartbeat within ``age``."""
        found: dict[str, Throughput] = defaultdict(Throughput)
        for worker in self._alive(age, using):
            for queue in worker.queues:
                found[queue].workers += 1
                found[queue].rate += worker.rates.get(queue, 0.0)
        return found

    def refused(
        self, age: timedelta, *, using: str = DEFAULT_DB_ALIAS
    ) -> dict[tuple[str, str], int]:
        """Return the number of recently refused writes, by queue and SQLSTATE."""
        found: Counter[tuple[str, str]] = Counter()
        for worker in self._alive(age, using):
            for queue, numbers in worker.refused.items():
                found.update({(queue, state): number for state, number in numbers.items()})
        return dict(sorted(found.items()))

    def _alive(self, age: timedelta, using: str) -> models.QuerySet[Worker]:
        rows = self.using(using).filter(heartbeat_at__gt=database_now(using) - age)
        latest = rows.order_by("-heartbeat_at", "-pk")
        return latest.only("queues", "rates", "refused")[:MAX_SUMMED]

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
    lease_ids = models.JSONField(db_column="leaseIds", db_default=Value([], models.JSONField()))
    # The start of its lease ids.
    holder = models.CharField(max_length=8, blank=True, db_default="")
    # The queue with the slowest full scan.
    scanned = models.TextField(blank=True, db_default="")
    scan_seconds = models.FloatField(db_column="scanSeconds", db_default=0.0)
    # The number of recently refused writes, by queue and SQLSTATE.
    refused = models.JSONField(db_default=Value({}, models.JSONField()))

    objects = WorkerManager()

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        db_table = "delayed_queue_worker"
        indexes = [
            models.Index(fields=["heartbeat_at", "id"], name="worker_heartbeat"),
            models.Index(fields=["holder", "id"], name="worker_holder"),
        ]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.name} on {self.host}"
