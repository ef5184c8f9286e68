"""The tables of tasks: their results, and the priorities that queues have used."""

from __future__ import annotations

from django.db import models
from django.db.models import Q, Value
from django.utils.translation import gettext_lazy as _

from delayed_queue.fields import EpochMillisecondField


class TaskResult(models.Model):
    """The recorded attempts of a task and its result; a task that has never run has no row.

    While a task has a message, that determines whether it waits or runs. The table is partitioned
    by the day in the ids.
    """

    class Status(models.TextChoices):
        UNFINISHED = "", "unfinished"
        FAILED = "FAILED", "failed"
        SUCCESSFUL = "SUCCESSFUL", "successful"

    id = models.UUIDField(primary_key=True, editable=False)
    task = models.TextField()
    backend = models.TextField()
    kind = models.TextField(db_column="pKind")
    # The key of the message, if that is not the id.
    key = models.TextField(null=True, db_column="pKey")
    payload = models.BinaryField()
    status = models.TextField(choices=Status, blank=True, db_default="")
    enqueued_at = EpochMillisecondField(db_column="enqueuedAt")
    scheduled_at = EpochMillisecondField(db_column="scheduledAt")
    started_at = EpochMillisecondField(null=True, db_column="startedAt")  # type: ignore[misc]
    last_attempted_at = EpochMillisecondField(null=True, db_column="lastAttemptedAt")  # type: ignore[misc]
    finished_at = EpochMillisecondField(null=True, db_column="finishedAt")  # type: ignore[misc]
    cancelled_at = EpochMillisecondField(null=True, db_column="cancelledAt")  # type: ignore[misc]
    return_value = models.JSONField(null=True, db_column="returnValue")
    errors = models.JSONField(db_default=Value([], models.JSONField()))
    worker_ids = models.JSONField(db_column="workerIds", db_default=Value([], models.JSONField()))
    metadata = models.JSONField(db_default=Value({}, models.JSONField()))

    class Meta:
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        db_table = "delayed_queue_task_result"
        indexes = [
            models.Index(fields=["task", "id"], name="task_result_task"),
            models.Index(fields=["id"], name="task_result_failed", condition=Q(status="FAILED")),
            # Without it, a search for failures of a task that has none would read all failures.
            models.Index(
                fields=["task", "id"], name="task_result_task_failed", condition=Q(status="FAILED")
            ),
        ]
        permissions = [
            ("cancel_task", "Can cancel tasks"),
            ("rerun_task", "Can retry tasks, and run them again"),
        ]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.task} {self.id}"


class TaskPriority(models.Model):
    """A priority other than 0 that a queue has used."""

    queue = models.CharField(max_length=100)
    priority = models.SmallIntegerField()

    class Meta:
        db_table = "delayed_queue_task_priority"
        constraints = [
            models.UniqueConstraint(fields=["queue", "priority"], name="task_priority_queue"),
        ]
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.queue} {self.priority}"
