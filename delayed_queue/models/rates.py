"""The buckets from which all processes take permits."""

from __future__ import annotations

from django.db import models

from delayed_queue.managers import RateManager


class Rate(models.Model):
    """A bucket of permits: until when, in microseconds since 1970, time is booked for them.

    Its rate and its burst are not stored: whoever takes says them. A bucket whose time has come is
    full, and its row may be deleted at any time.
    """

    name = models.CharField(max_length=200, db_collation="C")
    booked_until = models.BigIntegerField(db_column="bookedUntil")
    granted = models.IntegerField(db_default=0)

    objects = RateManager["Rate"]()

    class Meta:
        db_table = "delayed_queue_rate"
        # Not the primary key: Django would give that another index, for LIKE.
        constraints = [models.UniqueConstraint(fields=["name"], name="rate_name")]
        default_permissions = []

    def __str__(self) -> str:
        return self.name
