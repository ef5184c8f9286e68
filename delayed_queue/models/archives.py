"""What the pipeline keeps in the database: manifests of archives, and its reports."""

from __future__ import annotations

from django.db import models
from django.db.models import Q, Value

from delayed_queue.fields import EpochMillisecondField


class ArchiveManifest(models.Model):
    """A stretch of a table on its way to Parquet: what was decided, written, checked, deleted.

    Written by the pipeline, step by step, so that a crash at any of them is taken up from here.
    """

    class State(models.TextChoices):
        PLANNED = "planned"
        STAGED = "staged"
        PUBLISHED = "published"
        PRUNED = "pruned"

    source = models.TextField()
    key_column = models.TextField(db_column="keyColumn")
    age_column = models.TextField(db_column="ageColumn")
    lower = models.TextField()
    upper = models.TextField()
    only = models.JSONField(db_default=Value({}, models.JSONField()))
    cutoff = EpochMillisecondField()
    expected = models.BigIntegerField()
    destination = models.TextField()
    state = models.TextField(choices=State, db_default=State.PLANNED)
    staging = models.TextField(db_default="")
    rows = models.BigIntegerField(null=True)
    digest = models.TextField(db_default="")
    files = models.JSONField(db_default=Value([], models.JSONField()))
    deleted = models.BigIntegerField(db_default=0)
    changed = models.BigIntegerField(db_default=0)
    holder = models.TextField(db_default="")
    held_until = EpochMillisecondField(db_column="heldUntil")
    created_at = EpochMillisecondField(db_column="createdAt")
    finished_at = EpochMillisecondField(null=True, db_column="finishedAt")  # type: ignore[misc]

    class Meta:
        db_table = "delayed_queue_archive"
        constraints = [
            models.UniqueConstraint(
                fields=["source"], condition=~Q(state="pruned"), name="archive_unfinished"
            ),
        ]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.source} {self.lower} to {self.upper}"


class PipelineReport(models.Model):
    """A report of the pipeline: its figures, and its plots as PNG by name, in base 64."""

    created_at = EpochMillisecondField(db_column="createdAt")
    figures = models.JSONField()
    plots = models.JSONField(db_default=Value({}, models.JSONField()))

    class Meta:
        db_table = "delayed_queue_report"
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"report of {self.created_at:%Y-%m-%d %H:%M}"
