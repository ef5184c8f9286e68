"""The table of schedules."""

from __future__ import annotations

from typing import Any, Final

from django.db import models
from django.db.models import Q, Value
from django.utils.translation import gettext_lazy as _

from delayed_queue.cron.store import ScheduleManager
from delayed_queue.fields import EpochMillisecondField

# At most N runs of a schedule are kept and shown.
MAX_RUNS: Final = 10


class Schedule(models.Model):
    """A prefix of ticks: how they are defined, and how far they were written ahead.

    ``type`` is empty for the ticks a program installs by itself; the rest are kept by workers:
    those of operators have no ``declared_in``, the others name the module that declares them.
    """

    kind = models.CharField(max_length=100, db_column="pKind")
    key_prefix = models.CharField(
        _("key prefix"), max_length=200, db_column="keyPrefix", db_collation="C"
    )
    queue = models.CharField(max_length=100)
    codec = models.CharField(_("codec"), max_length=100, db_default="json")
    type = models.CharField(max_length=20, blank=True, db_default="")
    expression = models.TextField(blank=True, db_default="")
    timezone = models.CharField(max_length=100, blank=True, db_default="")
    gap = models.CharField(max_length=10, blank=True, db_default="shift")
    fold = models.CharField(max_length=10, blank=True, db_default="")
    missed = models.CharField(max_length=10, db_default="latest")
    missed_cap = models.IntegerField(db_column="missedCap", db_default=100)
    payload = models.JSONField(null=True, blank=True)
    declared_in = models.TextField(blank=True, db_column="declaredIn", db_default="")
    is_enabled = models.BooleanField(db_column="isEnabled", db_default=True)

    config_hash = models.CharField(
        max_length=200, blank=True, db_column="configHash", db_default=""
    )
    retired_hashes = models.JSONField(
        db_column="retiredHashes", db_default=Value([], models.JSONField())
    )
    last_tick = EpochMillisecondField(null=True, db_column="lastTick")  # type: ignore[misc]
    installed_at = EpochMillisecondField(null=True, db_column="installedAt")  # type: ignore[misc]
    interval = models.BigIntegerField(null=True, db_column="scheduleInterval")

    objects = ScheduleManager["Schedule"]()

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        db_table = "delayed_queue_schedule"
        constraints = [
            models.UniqueConstraint(fields=["kind", "key_prefix"], name="schedule_kind_prefix"),
        ]
        indexes = [
            # A program may install ticks under a prefix for each of its users.
            models.Index(
                fields=["id"],
                name="schedule_described",
                condition=Q(type__in=["cron", "daily", "periodic", "other"]),
            ),
        ]
        permissions = [
            ("pause_schedule", "Can pause and enable schedules"),
            ("run_schedule", "Can run schedules now"),
        ]

    def __str__(self) -> str:
        return f"{self.kind}/{self.key_prefix}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the definition, and request a new installation.

        The rest of the state stays as installers have saved it since this row was read.
        """
        if kwargs.get("update_fields") is None and not self._state.adding and not args:
            self.retired_hashes, self.installed_at = [], None
            kept = {"id", "config_hash", "last_tick", "interval"}
            names = [each.name for each in self._meta.concrete_fields if each.name not in kept]
            kwargs["update_fields"] = names
        super().save(*args, **kwargs)


class ScheduleRun(models.Model):
    """A run of a schedule's tick, written in the transaction that settles the tick.

    ``started_at`` is unknown if the handler's process died. ``outcome``: done, failed or dead.
    """

    # Not enforced by the database: a settlement must not fail for a schedule that was deleted.
    schedule = models.ForeignKey(
        Schedule, models.CASCADE, db_column="scheduleId", db_constraint=False, db_index=False,
        related_name="runs",
    )  # fmt: skip
    key = models.CharField(max_length=200, db_collation="C")
    planned_at = EpochMillisecondField(db_column="plannedAt")
    started_at = EpochMillisecondField(null=True, db_column="startedAt")  # type: ignore[misc]
    finished_at = EpochMillisecondField(db_column="finishedAt")
    outcome = models.CharField(max_length=10)
    attempts = models.IntegerField()
    worker = models.TextField()

    class Meta:
        db_table = "delayed_queue_schedule_run"
        constraints = [
            models.UniqueConstraint(fields=["schedule", "key"], name="schedule_run_key"),
        ]
        indexes = [
            models.Index(fields=["schedule", "planned_at", "id"], name="schedule_run_planned"),
        ]
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.key} ({self.outcome})"
