"""The table of worker processes."""

from __future__ import annotations

from django.db import models
from django.db.models import Value
from django.utils.translation import gettext_lazy as _

from delayed_queue.fields import EpochMillisecondField
from delayed_queue.worker.store import WorkerManager


class Worker(models.Model):
    """A worker process, as its heartbeat writes it every few seconds.

    For operators to look at. Nothing is decided by it: a worker that falls silent loses its
    messages when their leases run out, whether it has a row or not.
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
    # What its lease ids begin with.
    holder = models.CharField(max_length=8, blank=True, db_default="")
    # The queue of which a full scan takes the longest.
    scanned = models.TextField(blank=True, db_default="")
    scan_seconds = models.FloatField(db_column="scanSeconds", db_default=0.0)
    # Writes that the database refused lately: by queue and SQLSTATE, the number.
    refused = models.JSONField(db_default=Value({}, models.JSONField()))

    objects = WorkerManager["Worker"]()

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
