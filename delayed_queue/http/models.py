"""The tables of the HTTP service: topics, tokens, rates, endpoints and what was called."""

from __future__ import annotations

from typing import TypeVar

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Value
from django.utils.translation import gettext_lazy as _

from delayed_queue.fields import EpochMillisecondField
from delayed_queue.http.store.adding import AddStore
from delayed_queue.http.store.callbacks import AttemptManager, EndpointManager, HostManager
from delayed_queue.http.store.callers import IdempotencyKeyManager, RateManager
from delayed_queue.http.store.consuming import ConsumeStore
from delayed_queue.http.store.finding import FindStore
from delayed_queue.http.store.topics import TopicStore

M = TypeVar("M", bound=models.Model)


class TopicManager(AddStore, FindStore, ConsumeStore, TopicStore[M]):
    """The statements of topics and their jobs."""


class Topic(models.Model):
    """A topic and its shards, which only ``configure_topic`` changes.

    ``hosts``, whose callbacks have a shard each, grow as jobs are added.
    """

    name = models.CharField(_("name"), max_length=80, db_collation="C")
    shards = models.IntegerField(db_default=1, default=1)
    created_at = EpochMillisecondField(db_column="createdAt")
    hosts = models.TextField(blank=True, db_default="", default="", editable=False)

    objects = TopicManager["Topic"]()

    class Meta:
        verbose_name = _("topic")
        verbose_name_plural = _("topics")
        db_table = "delayed_queue_topic"
        # With unique=True Django would add a second index, for LIKE.
        constraints = [models.UniqueConstraint(fields=["name"], name="topic_name")]

    def __str__(self) -> str:
        return self.name


class IdempotencyKey(models.Model):
    """The first answer to a request with a key; ``scope`` is the caller and the call."""

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


class ApiToken(models.Model):
    """A bearer token: its permissions and its hash; the token itself is not stored.

    ``digest`` is SHA-256 of 256 random bits. These cannot be guessed, so a deliberately slow hash
    would only slow down every request.
    """

    name = models.CharField(_("name"), max_length=100)
    prefix = models.CharField(max_length=12)
    digest = models.CharField(max_length=64)
    topics = models.JSONField(db_default=Value([], models.JSONField()))
    verbs = models.JSONField(db_default=Value([], models.JSONField()))
    rate = models.FloatField(_("rate"), null=True, blank=True)
    burst = models.IntegerField(_("burst"), null=True, blank=True)
    created_at = EpochMillisecondField(db_column="createdAt")
    expires_at = EpochMillisecondField(null=True, blank=True, db_column="expiresAt")  # type: ignore[misc]
    disabled_at = EpochMillisecondField(null=True, blank=True, db_column="disabledAt")  # type: ignore[misc]
    last_used_at = EpochMillisecondField(null=True, blank=True, db_column="lastUsedAt")  # type: ignore[misc]

    class Meta:
        verbose_name = _("API token")
        verbose_name_plural = _("API tokens")
        db_table = "delayed_queue_token"
        constraints = [
            # With unique=True Django would add a second index to each, for LIKE.
            models.UniqueConstraint(fields=["digest"], name="token_digest"),
            models.UniqueConstraint(fields=["name"], name="token_name"),
        ]
        permissions = [("revoke_apitoken", "Can revoke API tokens")]
        default_permissions = ["view", "add"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class Rate(models.Model):
    """A bucket of permits; ``booked_until`` is in microseconds since 1970.

    The callers pass its rate and burst. A bucket whose time has passed is full, so its row can be
    deleted at any time.
    """

    name = models.CharField(max_length=200, db_collation="C")
    booked_until = models.BigIntegerField(db_column="bookedUntil")
    granted = models.IntegerField(db_default=0)

    objects = RateManager["Rate"]()

    class Meta:
        db_table = "delayed_queue_rate"
        # As the primary key, Django would add a second index, for LIKE.
        constraints = [models.UniqueConstraint(fields=["name"], name="rate_name")]
        default_permissions = []

    def __str__(self) -> str:
        return self.name


class Endpoint(models.Model):
    """The urls below a prefix: one secret, one limit, one switch.

    ``prefix`` starts with ``origin`` and ends at a segment of the path; the longest match of a url
    counts. Secrets are sealed (``delayed_queue.http.callbacks.secrets``).
    """

    origin = models.TextField(db_collation="C")
    prefix = models.TextField(_("prefix"), db_collation="C")
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
        verbose_name = _("endpoint")
        verbose_name_plural = _("endpoints")
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
    """A host and port whose callbacks failed: open, half open after that, or closed again."""

    name = models.TextField(db_collation="C")
    opened_at = EpochMillisecondField(null=True, db_column="openedAt")  # type: ignore[misc]
    open_until = EpochMillisecondField(null=True, db_column="openUntil")  # type: ignore[misc]
    openings = models.IntegerField(db_default=0)
    reason = models.TextField(blank=True, db_default="")
    probe_by = models.CharField(max_length=36, null=True, db_column="probeBy")
    probe_until = EpochMillisecondField(null=True, db_column="probeUntil")  # type: ignore[misc]

    objects = HostManager["Host"]()

    class Meta:
        verbose_name = _("host")
        verbose_name_plural = _("hosts")
        db_table = "delayed_queue_host"
        constraints = [models.UniqueConstraint(fields=["name"], name="host_name")]
        default_permissions = ["view"]
        permissions = [("close_host", "Can close and open the breakers of hosts")]

    def __str__(self) -> str:
        return self.name


class Slot(models.Model):
    """A callback under way to an endpoint of limited concurrency; it expires."""

    endpoint = models.ForeignKey(Endpoint, models.CASCADE, db_index=False)
    holder = models.CharField(max_length=36, db_collation="C")
    held_until = EpochMillisecondField(db_column="heldUntil")

    class Meta:
        db_table = "delayed_queue_slot"
        constraints = [
            models.UniqueConstraint(fields=["endpoint", "holder"], name="slot_endpoint_holder")
        ]
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.holder} of {self.endpoint_id}"


class CallbackAttempt(models.Model):
    """One callback that was sent or refused."""

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
    # No foreign key: the log outlives the endpoint, and inserts need no check.
    endpoint_id = models.BigIntegerField(null=True, blank=True)
    # Without possible secrets: user, password and query.
    url = models.TextField(blank=True, db_default="")

    objects = AttemptManager["CallbackAttempt"]()

    class Meta:
        verbose_name = _("callback attempt")
        verbose_name_plural = _("callback attempts")
        db_table = "delayed_queue_callback_attempt"
        indexes = [
            models.Index(fields=["key", "id"], name="attempt_key"),
            models.Index(fields=["started_at", "id"], name="attempt_started"),
        ]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.topic}/{self.key} ({self.attempt})"
