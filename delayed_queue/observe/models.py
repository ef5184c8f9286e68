"""The table of samples of queues."""

from __future__ import annotations

from django.db import models
from django.db.models import Value

from delayed_queue.fields import CountsField


class Sample(models.Model):
    """A minute of a queue: how full it was at the end, and what workers did with its messages.

    The kind is empty in the row that says that the minute was sampled, and by which versions. The
    counts of what was full are NULL where nobody measured, in ``late`` the seconds of the most
    overdue. The table is partitioned by the day of the minute, and dropped by the day.
    """

    pk = models.CompositePrimaryKey("kind", "minute")
    # Of the epoch. Narrow columns first: there are a hundred thousand rows a day.
    minute = models.IntegerField()
    due = models.IntegerField(null=True)
    scheduled = models.IntegerField(null=True)
    leased = models.IntegerField(null=True)
    dead = models.IntegerField(null=True)
    late = models.IntegerField(null=True)
    done = models.IntegerField(db_default=0)
    failed = models.IntegerField(db_default=0)
    died = models.IntegerField(db_default=0)
    kind = models.CharField(max_length=100, db_column="pKind", db_collation="C")
    # Two histograms: observe/history.py
    times = CountsField(db_default=Value("{}"))
    versions = models.TextField(null=True)

    class Meta:
        db_table = "delayed_queue_sample"
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.kind} {self.minute}"
