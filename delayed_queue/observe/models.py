"""The table of samples of queues."""

from __future__ import annotations

from django.db import models
from django.db.models import Value

from delayed_queue.fields import CountsField


class Sample(models.Model):
    """A minute of a queue: its depth at the end, and the counts of its workers.

    The row with an empty kind marks a sampled minute, with the workers' versions. Depths are NULL
    if they were not measured; ``late`` is in seconds. The table is partitioned by day.
    """

    pk = models.CompositePrimaryKey("kind", "minute")
    # Minutes since the epoch. Narrow columns first: a day has a hundred thousand rows.
    minute = models.IntegerField()
    due = models.IntegerField(null=True)
    scheduled = models.IntegerField(null=True)
    leased = models.IntegerField(null=True)
    dead = models.IntegerField(null=True)
    late = models.IntegerField(null=True)
    done = models.IntegerField(db_default=0)
    failed = models.IntegerField(db_default=0)
    died = models.IntegerField(db_default=0)
    # NULL takes no room in the row: few queues have messages that expire.
    expired = models.IntegerField(null=True)
    kind = models.CharField(max_length=100, db_column="pKind", db_collation="C")
    # Two histograms: observe/history.py
    times = CountsField(db_default=Value("{}"))
    versions = models.TextField(null=True)

    class Meta:
        db_table = "delayed_queue_sample"
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.kind} {self.minute}"
