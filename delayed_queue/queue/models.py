"""The tables of queues: messages, dead letters, bulk runs, limits."""

from __future__ import annotations

from typing import Any, Self, TypeVar

from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from delayed_queue.fields import EpochMillisecondField, LongNamedIndex
from delayed_queue.queue.store.batches import BatchStore
from delayed_queue.queue.store.bulk import BulkRunManager
from delayed_queue.queue.store.claim import ClaimStore
from delayed_queue.queue.store.dead_letters import DeadLetterManager
from delayed_queue.queue.store.groups import GroupStore
from delayed_queue.queue.store.inspect import InspectStore
from delayed_queue.queue.store.limits import LimitStore
from delayed_queue.queue.store.offer import OfferStore
from delayed_queue.queue.store.settle import SettleStore

M = TypeVar("M", bound=models.Model)


class MessageManager(
    OfferStore, ClaimStore, GroupStore, SettleStore, InspectStore, models.Manager[M]
):
    """The queue's statements. ``kind`` names the queue, ``using`` the database alias.

    Instants and durations are integer milliseconds; ``now=None`` is the database's clock.
    Methods neither retry nor open transactions.
    """


class Message(models.Model):
    """One message of a queue.

    The first eight columns and the index names are shared with services of other languages
    and never change; the package's own columns follow, NULL-able or with a database default,
    so that an INSERT naming only the eight works.
    """

    key = models.CharField(max_length=200, db_column="pKey", db_collation="C")
    kind = models.CharField(max_length=100, db_column="pKind")
    payload = models.BinaryField()
    scheduled_at = EpochMillisecondField(db_column="scheduledAt")
    scheduled_at_initially = EpochMillisecondField(db_column="scheduledAtInitially")
    lease_id = models.CharField(max_length=36, null=True, blank=True, db_column="lockUuid")
    created_at = EpochMillisecondField(db_column="createdAt")

    attempts = models.IntegerField(db_default=0)
    headers = models.JSONField(null=True, blank=True)
    due_at = EpochMillisecondField(null=True, blank=True, db_column="dueAt")  # type: ignore[misc]
    first_error = models.TextField(null=True, blank=True, db_column="firstError")
    last_error = models.TextField(null=True, blank=True, db_column="lastError")
    version_at = EpochMillisecondField(  # type: ignore[misc]
        null=True, blank=True, db_column="versionAt"
    )
    # Belongs to no version: a service that writes a new one leaves it as it was.
    group = models.CharField(max_length=100, null=True, blank=True, db_collation="C")
    expires_at = EpochMillisecondField(  # type: ignore[misc]
        null=True, blank=True, db_column="expiresAt"
    )
    # No foreign key: a cancelled batch leaves its members as they are, and ids are never reused.
    batch_id = models.BigIntegerField(null=True, blank=True, db_column="batchId")

    objects = MessageManager["Message"]()

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        db_table = "delayed_queue"
        constraints = [
            models.UniqueConstraint(
                fields=["key", "kind"], name="delayed_queue__PKeyPlusKindUniqueIndex"
            ),
        ]
        indexes = [
            # With the id, so that messages of one due time, as of a bulk import, are in order.
            # It has all messages, but its condition limits it to statements that compare due
            # times: others would scan it while the planner takes the table for empty.
            LongNamedIndex(
                fields=["kind", "scheduled_at", "id"],
                name="delayed_queue__KindPlusScheduledAtIndex",
                condition=Q(scheduled_at__isnull=False),
            ),
            # Only rows in flight are read by their lease.
            LongNamedIndex(
                fields=["lease_id", "id"],
                name="delayed_queue__LockUuidPlusIdIndex",
                condition=Q(lease_id__isnull=False),
            ),
            # The waiting messages of each group, in the order of their due times.
            LongNamedIndex(
                fields=["kind", "group", "scheduled_at", "id"],
                name="delayed_queue__GroupPlusScheduledAtIndex",
                condition=Q(group__isnull=False, lease_id__isnull=True),
            ),
            # Its leased messages, by the end of their leases.
            LongNamedIndex(
                fields=["kind", "group", "scheduled_at", "id"],
                name="delayed_queue__GroupPlusLeasedUntilIndex",
                condition=Q(group__isnull=False, lease_id__isnull=False),
            ),
            # Its messages that wait for a retry. With the lease, which is NULL, the planner does
            # not read the first index in its place.
            LongNamedIndex(
                fields=["kind", "group", "lease_id", "scheduled_at", "id"],
                name="delayed_queue__GroupPlusLockUuidIndex",
                condition=Q(
                    group__isnull=False,
                    lease_id__isnull=True,
                    scheduled_at__gt=F("scheduled_at_initially"),
                ),
            ),
            # The newest member of a batch, which is usually the last to finish, is read first.
            models.Index(
                fields=["batch_id", "id"],
                name="message_of_batch",
                condition=Q(batch_id__isnull=False),
            ),
        ]
        permissions = [
            ("view_payload", "Can view the payload of messages"),
            ("release_message", "Can release the lease of messages"),
            ("extend_message", "Can extend the lease of messages"),
            ("reject_message", "Can move messages to the dead letters"),
            ("drop_message", "Can drop messages"),
            ("deliver_message", "Can deliver messages now"),
        ]
        # Offered by code, never typed into a form.
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.kind}/{self.key}"

    @classmethod
    def from_db(cls, *args: Any, **kwargs: Any) -> Self:
        """Read our columns of an older version as empty."""
        row = super().from_db(*args, **kwargs)
        is_loaded = {"created_at", "version_at"} <= row.__dict__.keys()
        if is_loaded and row.version_at not in (None, row.created_at):
            row.attempts, row.headers, row.due_at = 0, None, None
            row.first_error = row.last_error = row.expires_at = None
        return row


class QueueOverview(Message):
    """The queues as the admin lists them, without rows of its own."""

    class Meta:
        proxy = True
        default_permissions = []
        verbose_name = _("overview of the queues")
        # The blank, which HTML does not show, sorts it first.
        verbose_name_plural = _(" Queues")


class DeadLetter(models.Model):
    """A message that failed for good, with everything to understand and redrive it."""

    kind = models.CharField(max_length=100, db_column="pKind")
    key = models.CharField(max_length=200, db_column="pKey", db_collation="C")
    payload = models.BinaryField()
    headers = models.JSONField(null=True, blank=True)
    attempts = models.IntegerField()
    reason = models.TextField()
    first_error = models.TextField(null=True, blank=True, db_column="firstError")
    last_error = models.TextField(null=True, blank=True, db_column="lastError")
    scheduled_at_initially = EpochMillisecondField(db_column="scheduledAtInitially")
    created_at = EpochMillisecondField(db_column="createdAt")
    died_at = EpochMillisecondField(db_column="diedAt")
    fingerprint = models.CharField(max_length=16, blank=True, db_default="")
    group = models.CharField(max_length=100, null=True, blank=True, db_collation="C")
    lease_id = models.CharField(max_length=36, null=True, blank=True, db_column="lockUuid")
    # Only if its batch waits for dead letters.
    batch_id = models.BigIntegerField(null=True, blank=True, db_column="batchId")

    objects = DeadLetterManager["DeadLetter"]()

    class Meta:
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        db_table = "delayed_queue_dead_letter"
        indexes = [
            models.Index(fields=["kind", "died_at", "id"], name="dead_letter_kind_died"),
            # On an expression: while the planner takes the table for empty, it would read a smaller
            # index of the kind, and sort.
            models.Index(
                Func(F("kind"), Value(""), arg_joiner=" || ", template="(%(expressions)s)"),
                "id",
                name="dead_letter_kind_id",
            ),
            models.Index(fields=["key"], name="dead_letter_key"),
            models.Index(fields=["fingerprint", "kind", "died_at", "id"], name="dead_letter_group"),
            models.Index(
                fields=["kind", "group", "died_at"],
                name="dead_letter_of_group",
                condition=Q(group__isnull=False),
            ),
            models.Index(
                fields=["batch_id", "id"],
                name="dead_letter_of_batch",
                condition=Q(batch_id__isnull=False),
            ),
        ]
        permissions = [
            ("redrive_deadletter", "Can redrive dead letters"),
            ("drop_deadletter", "Can drop dead letters"),
        ]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.kind}/{self.key} ({self.reason})"


class BatchManager(BatchStore, models.Manager[M]):
    """The statements of batches."""


class StoredBatch(models.Model):
    """A set of messages, and the message ``then`` that is offered when all have finished.

    Members have its id. The counters are of those that have left it.
    """

    kind = models.CharField(max_length=100, db_column="pKind")
    created_at = EpochMillisecondField(db_column="createdAt")
    closed_at = EpochMillisecondField(null=True, blank=True, db_column="closedAt")  # type: ignore[misc]
    waits_for_dead = models.BooleanField(db_column="waitsForDead")
    then_kind = models.CharField(max_length=100, db_column="thenKind")
    then_key = models.CharField(max_length=200, db_column="thenKey", db_collation="C")
    then_payload = models.BinaryField(db_column="thenPayload")
    then_headers = models.JSONField(null=True, blank=True, db_column="thenHeaders")
    then_group = models.CharField(
        max_length=100, null=True, blank=True, db_column="thenGroup", db_collation="C"
    )
    then_scheduled_at = EpochMillisecondField(  # type: ignore[misc]
        null=True, blank=True, db_column="thenScheduledAt"
    )
    then_expires_at = EpochMillisecondField(  # type: ignore[misc]
        null=True, blank=True, db_column="thenExpiresAt"
    )
    done = models.BigIntegerField(db_default=0)
    dead = models.BigIntegerField(db_default=0)
    dropped = models.BigIntegerField(db_default=0)
    expired = models.BigIntegerField(db_default=0)

    objects = BatchManager["StoredBatch"]()

    class Meta:
        verbose_name = _("batch")
        verbose_name_plural = _("batches")
        db_table = "delayed_queue_batch"
        permissions = [("operate_batch", "Can cancel batches")]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.kind}/{self.pk}"


class BulkRun(models.Model):
    """An operator's bulk operation on dead letters, and its progress."""

    action = models.CharField(max_length=10)
    kind = models.CharField(max_length=100, db_column="pKind")
    fingerprint = models.CharField(max_length=16, null=True, blank=True)
    group = models.CharField(max_length=100, null=True, blank=True, db_collation="C")
    reason = models.TextField(null=True, blank=True)
    key_from = models.TextField(null=True, blank=True, db_column="keyFrom")
    key_before = models.TextField(null=True, blank=True, db_column="keyBefore")
    pace = models.FloatField(null=True, blank=True)
    limit = models.BigIntegerField(null=True, blank=True, db_column="most")
    canary = models.IntegerField(db_default=0)
    canary_deaths = models.IntegerField(db_column="canaryDeaths", db_default=1)
    canary_keys = models.JSONField(db_column="canaryKeys", db_default=Value({}, models.JSONField()))
    is_canary_over = models.BooleanField(db_column="isCanaryOver", db_default=False)
    died_until = EpochMillisecondField(db_column="diedUntil")
    newest_id = models.BigIntegerField(db_column="newestId")
    total = models.BigIntegerField()
    is_total_cut = models.BooleanField(db_column="isTotalCut")
    last_died_at = models.BigIntegerField(db_column="lastDiedAt", db_default=-(2**63))
    last_id = models.BigIntegerField(db_column="lastId", db_default=0)
    done = models.BigIntegerField(db_default=0)
    skipped = models.BigIntegerField(db_default=0)
    state = models.CharField(max_length=10, db_default="running")
    # The name of the failure: its letters may be gone when the run has ended.
    failure = models.TextField(blank=True, db_default="")
    note = models.TextField(blank=True, db_default="")
    started_by = models.TextField(blank=True, db_column="startedBy", db_default="")
    why = models.TextField(blank=True, db_default="")
    created_at = EpochMillisecondField(db_column="createdAt")
    next_at = EpochMillisecondField(db_column="nextAt")
    ended_at = EpochMillisecondField(null=True, blank=True, db_column="endedAt")  # type: ignore[misc]

    objects = BulkRunManager["BulkRun"]()

    class Meta:
        verbose_name = _("bulk run")
        verbose_name_plural = _("bulk runs")
        db_table = "delayed_queue_bulk_run"
        constraints = [
            models.UniqueConstraint(
                "kind",
                # PostgreSQL has NULLS NOT DISTINCT since version 15 only.
                Coalesce("fingerprint", Value("")),
                name="bulk_run_in_progress",
                condition=Q(state__in=["running", "paused"]),
            ),
        ]
        indexes = [
            models.Index(
                fields=["next_at", "id"], name="bulk_run_next", condition=Q(state="running")
            ),
        ]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.action} {self.kind} ({self.state})"


class LimitManager(LimitStore, models.Manager[M]):
    """The statements that pause and limit queues and groups."""

    def paused(self, using: str) -> models.QuerySet[M]:
        """Return the queues that are paused as a whole."""
        return self.using(using).filter(group="", paused_at__isnull=False)

    def limiting(self, using: str) -> models.QuerySet[M]:
        """Return the limits of queues and groups other than pauses."""
        return self.using(using).exclude(
            declared=None, concurrency=None, weight=None, interval=None
        )


class Limit(models.Model):
    """A pause or the limits of a queue or of one of its groups.

    While a queue has any row, only claims by group lease its messages. The row with an empty group
    is that of the queue: its own pause and rate, and the limits of each group without a row. NULL:
    no limit.
    """

    kind = models.CharField(max_length=100, db_column="pKind")
    group = models.CharField(max_length=100, blank=True, db_collation="C", db_default="")
    paused_at = EpochMillisecondField(null=True, blank=True, db_column="pausedAt")  # type: ignore[misc]
    paused_by = models.TextField(blank=True, db_column="pausedBy", db_default="")
    reason = models.TextField(blank=True, db_default="")
    # Only in the row of the queue.
    is_ordered = models.BooleanField(db_column="isOrdered", db_default=False)
    is_fair = models.BooleanField(db_column="isFair", db_default=True)
    blocks_on_dead = models.BooleanField(db_column="blocksOnDead", db_default=False)
    queue_interval = models.FloatField(null=True, db_column="queueInterval")
    queue_burst = models.IntegerField(null=True, db_column="queueBurst")
    declared = models.TextField(null=True)
    # Limits of each group, or of this one. An interval is in milliseconds from permit to permit.
    concurrency = models.IntegerField(null=True)
    weight = models.IntegerField(null=True)
    interval = models.FloatField(null=True)
    burst = models.IntegerField(null=True)
    # Until when permits of the queue's or the group's rate are spent.
    spent_until = models.FloatField(null=True, db_column="spentUntil")
    # Earlier dead letters do not block the group.
    resumed_at = EpochMillisecondField(null=True, blank=True, db_column="resumedAt")  # type: ignore[misc]

    objects = LimitManager["Limit"]()

    class Meta:
        db_table = "delayed_queue_limit"
        # Not the primary key, for which Django would create another index, for LIKE.
        constraints = [
            models.UniqueConstraint(fields=["kind", "group"], name="limit_kind_group"),
        ]
        permissions = [("pause_queue", "Can pause and resume queues")]
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.kind}/{self.group}" if self.group else self.kind
