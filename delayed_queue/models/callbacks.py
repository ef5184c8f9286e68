"""Where callbacks go, how their hosts fare, and what became of each."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models

from delayed_queue.fields import EpochMillisecondField
from delayed_queue.managers import AttemptManager, EndpointManager, HostManager


class Endpoint(models.Model):
    """The urls below a prefix: one secret, one limit, one switch.

    ``prefix`` ends at a boundary of the path and begins with ``origin``; the longest that matches
    a url counts. Secrets are sealed (``delayed_queue.callbacks.secrets``).
    """

    origin = models.TextField(db_collation="C")
    prefix = models.TextField(db_collation="C")
    secret = models.TextField()
    previous_secret = models.TextField(blank=True, db_column="previousSecret", db_default="")
    rotated_at = EpochMillisecondField(null=True, blank=True, db_column="rotatedAt")  # type: ignore[misc]
    disabled_at = EpochMillisecondField(null=True, blank=True, db_column="disabledAt")  # type: ignore[misc]
    disabled_reason = models.TextField(blank=True, db_column="disabledReason", db_default="")
    per_second = models.FloatField(null=True, blank=True, db_column="perSecond")
    burst = models.IntegerField(db_default=1, default=1, validators=[MinValueValidator(1)])
    concurrency = models.IntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    created_at = EpochMillisecondField(db_column="createdAt")

    objects = EndpointManager["Endpoint"]()

    class Meta:
        db_table = "delayed_queue_endpoint"
        constraints = [
            models.UniqueConstraint(fields=["origin", "prefix"], name="endpoint_origin_prefix")
        ]
        permissions = [
            ("rotate_endpoint", "Can rotate the secrets of endpoints"),
            ("disable_endpoint", "Can disable and enable endpoints"),
        ]

    def __str__(self) -> str:
        return self.prefix


class Host(models.Model):
    """A host and port whose callbacks failed: open until then, half open after, or closed again."""

    name = models.TextField(db_collation="C")
    opened_at = EpochMillisecondField(null=True, db_column="openedAt")  # type: ignore[misc]
    open_until = EpochMillisecondField(null=True, db_column="openUntil")  # type: ignore[misc]
    openings = models.IntegerField(db_default=0)
    reason = models.TextField(blank=True, db_default="")
    probe_by = models.CharField(max_length=36, null=True, db_column="probeBy")
    probe_until = EpochMillisecondField(null=True, db_column="probeUntil")  # type: ignore[misc]

    objects = HostManager["Host"]()

    class Meta:
        db_table = "delayed_queue_host"
        constraints = [models.UniqueConstraint(fields=["name"], name="host_name")]
        default_permissions = ["view"]
        permissions = [("close_host", "Can close and open the breakers of hosts")]

    def __str__(self) -> str:
        return self.name


class Slot(models.Model):
    """How many callbacks to an endpoint a worker process may have on the wire, and until when."""

    endpoint = models.ForeignKey(Endpoint, models.CASCADE, db_index=False)
    holder = models.CharField(max_length=36, db_collation="C")
    held = models.IntegerField()
    held_until = EpochMillisecondField(db_column="heldUntil")

    class Meta:
        db_table = "delayed_queue_slot"
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "holder"], name="slot_endpoint_holder")
        ]
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.held} of {self.endpoint_id}"


class CallbackAttempt(models.Model):
    """One callback that was sent or refused, for whoever asks what became of a job."""

    key = models.CharField(max_length=200, db_collation="C")
    topic = models.CharField(max_length=100, db_collation="C")
    kind = models.CharField(max_length=100)
    webhook_id = models.TextField(db_column="webhookId")
    attempt = models.IntegerField()
    started_at = EpochMillisecondField(db_column="startedAt")
    duration = models.IntegerField()
    status = models.IntegerField(null=True, blank=True)
    failure = models.TextField(blank=True, db_default="")
    detail = models.TextField(blank=True, db_default="")
    address = models.TextField(blank=True, db_default="")
    excerpt = models.TextField(blank=True, db_default="")
    is_ambiguous = models.BooleanField(db_column="isAmbiguous", db_default=False)
    # No foreign key: the log outlives the endpoint, and is written without asking for it.
    endpoint_id = models.BigIntegerField(null=True, blank=True)

    objects = AttemptManager["CallbackAttempt"]()

    class Meta:
        db_table = "delayed_queue_callback_attempt"
        indexes = [
            models.Index(fields=["key", "id"], name="attempt_key"),
            models.Index(fields=["started_at", "id"], name="attempt_started"),
        ]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.topic}/{self.key} ({self.attempt})"
