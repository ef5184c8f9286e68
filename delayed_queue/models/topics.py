"""How topics treat their jobs, and the answers that idempotency keys replay."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from delayed_queue.fields import EpochMillisecondField
from delayed_queue.managers import IdempotencyKeyManager, TopicManager


class Topic(models.Model):
    """How the jobs of a topic are spread, leased and retried.

    An empty ladder is the default one, a NULL ttr (in milliseconds) the lease duration of the
    settings. ``shards`` changes through ``delayed_queue.topics.configure_topic`` alone.
    """

    name = models.CharField(max_length=80, db_collation="C")
    shards = models.IntegerField(
        db_default=1, default=1, validators=[MinValueValidator(1), MaxValueValidator(64)]
    )
    ladder = models.TextField(blank=True, db_default="", default="")
    jitter = models.FloatField(
        db_default=0.0, default=0.0, validators=[MinValueValidator(0.0), MaxValueValidator(1.0)]
    )
    ttr = models.BigIntegerField(null=True, blank=True, validators=[MinValueValidator(1000)])
    created_at = EpochMillisecondField(db_column="createdAt")

    objects = TopicManager["Topic"]()

    class Meta:
        db_table = "delayed_queue_topic"
        # Not unique=True: Django would add another index, for LIKE.
        constraints = [models.UniqueConstraint(fields=["name"], name="topic_name")]

    def __str__(self) -> str:
        return self.name


class IdempotencyKey(models.Model):
    """The first answer to a request that named a key; ``scope`` is the caller and the call."""

    scope = models.CharField(max_length=200, db_collation="C")
    key = models.CharField(max_length=200, db_collation="C")
    request_hash = models.BinaryField(db_column="requestHash")
    status = models.IntegerField()
    answer = models.TextField()
    created_at = EpochMillisecondField(db_column="createdAt")

    objects = IdempotencyKeyManager["IdempotencyKey"]()

    class Meta:
        db_table = "delayed_queue_idempotency_key"
        constraints = [
            models.UniqueConstraint(fields=["scope", "key"], name="idempotency_scope_key")
        ]
        indexes = [models.Index(fields=["created_at", "id"], name="idempotency_created")]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.scope}/{self.key}"
