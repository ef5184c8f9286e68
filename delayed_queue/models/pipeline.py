"""What the pipeline remembers of its own work, so that doing it again changes nothing."""

from __future__ import annotations

from django.db import models

from delayed_queue.fields import EpochMillisecondField


class OfferLedger(models.Model):
    """One chunk of rows that a Spark job has offered, in the transaction that wrote this.

    The row of partition -1 closes the batch, and holds how many rows it was given; that of
    partition -2 says when a job began whose messages are spread from then on.
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
                fields=["job", "batch", "partition", "chunk", "digest"],
                name="offer_ledger_chunk",
            ),
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
