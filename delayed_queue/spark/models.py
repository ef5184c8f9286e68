"""The tables of the pipeline: what jobs offered, what is staged, archives and reports."""

from __future__ import annotations

from django.db import models
from django.db.models import Q, Value
from django.utils.translation import gettext_lazy as _

from delayed_queue.fields import EpochMillisecondField


class OfferLedger(models.Model):
    """One chunk of rows that a Spark job has offered, in the transaction that wrote this.

    The row of partition -1 closes the batch, and has the number of the batch's rows. The row of
    partition -2 has the start of a job. Rows of a drain with a handler have the number of messages
    for each outcome, by batch and task.
    """

    job = models.CharField(max_length=200, db_collation="C")
    batch = models.BigIntegerField()
    partition = models.IntegerField()
    chunk = models.IntegerField()
    digest = models.CharField(max_length=64, db_collation="C")
    rows = models.BigIntegerField()
    created = models.BigIntegerField(db_default=0)
    updated = models.BigIntegerField(db_default=0)
    recorded_at = EpochMillisecondField(db_column="recordedAt")

    class Meta:
        db_table = "delayed_queue_offer_ledger"
        constraints = [
            models.UniqueConstraint(
                fields=["job", "batch", "partition", "chunk", "digest"], name="offer_ledger_chunk"
            )
        ]
        indexes = [models.Index(fields=["recorded_at", "id"], name="offer_ledger_recorded")]
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.job}/{self.batch}/{self.partition}/{self.chunk}"


class OfferStage(models.Model):
    """A row that waits for the rest of its job, to be offered with it in one transaction.

    Unlogged: after a crash of the server it is empty, and the job that finds it so fails.
    """

    job = models.CharField(max_length=200, db_collation="C")
    attempt = models.CharField(max_length=36, db_collation="C")
    partition = models.IntegerField()
    position = models.BigIntegerField()
    key = models.TextField(db_collation="C")
    payload = models.BinaryField()
    due_at = EpochMillisecondField(db_column="dueAt")
    headers = models.JSONField(null=True, blank=True)
    # Null where the job has one for all its rows.
    kind = models.TextField(null=True, blank=True, db_collation="C")
    grouped = models.TextField(null=True, blank=True, db_collation="C")
    expires_at = EpochMillisecondField(db_column="expiresAt", null=True, blank=True)  # type: ignore[misc]
    recorded_at = EpochMillisecondField(db_column="recordedAt")

    class Meta:
        db_table = "delayed_queue_offer_stage"
        indexes = [
            models.Index(fields=["job", "attempt"], name="offer_stage_attempt"),
            models.Index(fields=["recorded_at", "id"], name="offer_stage_recorded"),
        ]
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.job}/{self.partition}/{self.position}"


class ArchiveManifest(models.Model):
    """Rows of a table on their way to Parquet: their files, and the state of the archive.

    Written by the pipeline after each step, so that the next run continues after a crash.
    """

    class State(models.TextChoices):
        PLANNED = "planned"
        WRITTEN = "written"
        PRUNED = "pruned"

    source = models.TextField()
    path = models.TextField()
    state = models.TextField(choices=State, db_default=State.PLANNED)
    # Name, size, rows and checksum of each file, as read back.
    files = models.JSONField(db_default=Value([], models.JSONField()))
    rows = models.BigIntegerField(null=True)
    deleted = models.BigIntegerField(db_default=0)
    changed = models.BigIntegerField(db_default=0)
    created_at = EpochMillisecondField(db_column="createdAt")
    finished_at = EpochMillisecondField(null=True, db_column="finishedAt")  # type: ignore[misc]

    class Meta:
        db_table = "delayed_queue_archive"
        constraints = [
            models.UniqueConstraint(
                fields=["source"], condition=~Q(state="pruned"), name="archive_unfinished"
            )
        ]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return self.path


class PipelineReport(models.Model):
    """A report of the pipeline: its figures, and its plots as PNG by name, in base 64."""

    created_at = EpochMillisecondField(db_column="createdAt")
    figures = models.JSONField()
    plots = models.JSONField(db_default=Value({}, models.JSONField()))

    class Meta:
        verbose_name = _("pipeline report")
        verbose_name_plural = _("pipeline reports")
        db_table = "delayed_queue_report"
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"report of {self.created_at:%Y-%m-%d %H:%M}"
