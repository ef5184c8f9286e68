"""The tables: notifications, their deliveries, templates and suppressions."""

from __future__ import annotations

import secrets
import uuid
from datetime import UTC, datetime
from typing import Any

from django.db import models, router
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from delayed_queue.db.clock import database_now
from delayed_queue.messages import to_milliseconds


def new_ids(count: int) -> list[uuid.UUID]:
    """Return UUIDs of version 7 in ascending order, with the time of the database's clock."""
    now = to_milliseconds(database_now(router.db_for_write(Notification)))
    high = now << 16 | 7 << 12 | secrets.randbits(12)
    low = 0b10 << 62 | secrets.randbits(61)
    return [uuid.UUID(int=high << 64 | low + each) for each in range(count)]


def new_id() -> uuid.UUID:
    return new_ids(1)[0]


def first_id_at(at: datetime) -> uuid.UUID:
    """Return an id that sorts before all ids of that time or later."""
    milliseconds = int(at.timestamp() * 1000)
    return uuid.UUID(int=(milliseconds << 80) | (7 << 76) | (0b10 << 62))


def time_of(id_: uuid.UUID) -> datetime:
    """Return when an id was made, to the millisecond."""
    return datetime.fromtimestamp((id_.int >> 80) / 1000, tz=UTC)


MAX_NAME_LENGTH = 100


class Channel(models.TextChoices):
    EMAIL = "email", _("email")
    SMS = "sms", "SMS"
    WEBHOOK = "webhook", _("webhook")


class Priority(models.TextChoices):
    """The priorities, in order."""

    URGENT = "urgent", _("urgent")
    NORMAL = "normal", _("normal")
    BULK = "bulk", _("bulk")


class Status(models.TextChoices):
    ENQUEUED = "ENQUEUED", _("enqueued")
    PROCESSING = "PROCESSING", _("processing")
    SUCCESSFULLY_PROCESSED = "SUCCESSFULLY_PROCESSED", _("sent")
    FAILED = "FAILED", _("failed")
    CANCELLED = "CANCELLED", _("cancelled")
    EXPIRED = "EXPIRED", _("expired")


class Reception(models.TextChoices):
    """The provider's last report about an accepted notification."""

    UNKNOWN = "unknown", _("unknown")
    DELIVERED = "delivered", _("delivered")
    BOUNCED = "bounced", _("bounced")
    COMPLAINED = "complained", _("complained about")


# The start of our Message-IDs, which contain the primary key.
OWN_ID = "^<[0-9a-f-]{36}@"
OPEN_STATUSES = (Status.ENQUEUED, Status.PROCESSING)
# Personal data, and large: lists defer it.
CONTENTS = ("recipient", "recipient_hash", "subject", "body", "html", "mail")
FINAL_STATUSES = tuple(each for each in Status if each not in OPEN_STATUSES)


def _only(name: str, **condition: Any) -> models.CheckConstraint:
    return models.CheckConstraint(name=name, condition=Q(**condition))


def _unique(name: str, *columns: str) -> models.UniqueConstraint:
    return models.UniqueConstraint(fields=columns, name=name)


def _only_while(name: str, state: Q, **condition: bool) -> models.CheckConstraint:
    """Allow the condition in that state, and its opposite in every other."""
    opposite = {column: not each for column, each in condition.items()}
    return models.CheckConstraint(
        name=name, condition=Q(state, **condition) | Q(~state, **opposite)
    )


class Notification(models.Model):
    """One notification of one recipient, and its state.

    Its message has the id as key. The transactions that create and cancel a notification also offer
    and drop the message. ``lease_id`` is the message's lease during PROCESSING; every transition
    out of PROCESSING names it.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    # The caller that requested it.
    tenant = models.CharField(_("tenant"), max_length=MAX_NAME_LENGTH)
    channel = models.CharField(max_length=7, choices=Channel)
    priority = models.CharField(max_length=6, choices=Priority, default=Priority.NORMAL)
    category = models.CharField(max_length=50, blank=True, default="")
    # Personal data, like subject, body and HTML. Searches use the keyed hash.
    recipient = models.TextField()
    recipient_hash = models.BinaryField(max_length=16)
    template = models.CharField(max_length=MAX_NAME_LENGTH, blank=True, default="")
    template_version = models.IntegerField(null=True, blank=True)
    # Opt-outs of its category do not apply: it is urgent, or its template is transactional.
    is_transactional = models.BooleanField(default=False, db_default=False)
    # As rendered at intake: a later change of the template has no effect.
    subject = models.TextField(blank=True, default="")
    body = models.TextField()
    html = models.TextField(blank=True, default="")
    send_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    # Start, end and zone of the recipient's quiet hours, such as "21:00 08:00 Asia/Kolkata".
    quiet = models.TextField(blank=True, default="", db_default="")
    # Copies, reply address, headers and attachments of a mail.
    mail = models.JSONField(null=True, blank=True)
    dedupe_key = models.CharField(max_length=200, blank=True, default="")
    callback_url = models.TextField(blank=True, default="")

    status = models.CharField(max_length=22, choices=Status, default=Status.ENQUEUED)
    attempts = models.IntegerField(default=0)
    lease_id = models.UUIDField(null=True, blank=True)
    provider = models.CharField(max_length=MAX_NAME_LENGTH, blank=True, default="")
    provider_id = models.TextField(blank=True, default="")
    outcome = models.TextField(blank=True, default="")
    error_class = models.CharField(max_length=MAX_NAME_LENGTH, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    # The latest event of the provider, by its own time.
    delivery = models.CharField(
        max_length=10, choices=Reception, default=Reception.UNKNOWN, db_default=Reception.UNKNOWN
    )
    delivery_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("notification")
        verbose_name_plural = _("notifications")
        db_table = "delayed_queue_notification"
        constraints = [
            _only("notification_status", status__in=Status.values),
            _only("notification_channel", channel__in=Channel.values),
            _only("notification_priority", priority__in=Priority.values),
            _only("notification_delivery", delivery__in=Reception.values),
            _only_while("notification_lease", Q(status=Status.PROCESSING), lease_id__isnull=False),
            _only_while("notification_end", Q(status__in=OPEN_STATUSES), ended_at__isnull=True),
        ]
        indexes = [
            models.Index(fields=["status", "id"], name="notification_status_id"),
            models.Index(fields=["tenant", "status", "id"], name="notification_tenant"),
            models.Index(
                fields=["expires_at"],
                name="notification_expires",
                condition=Q(status=Status.ENQUEUED, expires_at__isnull=False),
            ),
            models.Index(
                fields=["provider", "delivery_at"],
                name="notification_received",
                condition=~Q(delivery="unknown"),
            ),
            # Ids that a provider gave.
            models.Index(
                fields=["provider_id"],
                name="notification_provider_id",
                condition=~Q(provider_id="") & ~Q(provider_id__regex=OWN_ID),
            ),
        ]
        permissions = [
            ("view_recipient", "Can view recipients and contents of notifications"),
            ("cancel_notification", "Can cancel notifications"),
            ("retry_notification", "Can retry failed notifications"),
        ]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return str(self.id)

    def __repr__(self) -> str:
        # Without the recipient, because logs and tracebacks contain it.
        return f"<Notification {self.id} {self.channel} {self.status}>"

    @property
    def code_not_in_outcome(self) -> str:
        """The error's class or code, unless the outcome contains it."""
        return "" if self.outcome.endswith(f": {self.error_class}") else self.error_class

    @property
    def is_in_doubt(self) -> bool:
        """True if it may have been sent, although it did not end as sent."""
        return self.outcome.endswith("in doubt")


def queue_name(priority: str, channel: str) -> str:
    """Return the name of the queue of that priority and channel."""
    return f"notifications-{priority}-{channel}"


class Delivery(models.Model):
    """One call of a provider, with its result."""

    class Outcome(models.TextChoices):
        """``unfinished``: the dispatcher died before it wrote the result."""

        SENT = "sent", _("sent")
        REFUSED = "refused", _("refused for good")
        FAILED = "failed", _("failed, may be tried again")
        AMBIGUOUS = "ambiguous", _("ambiguous: it may have been sent")
        UNFINISHED = "unfinished", _("interrupted: it may have been sent")

    notification = models.ForeignKey(
        Notification, models.CASCADE, db_constraint=False, related_name="deliveries"
    )
    at = models.DateTimeField(db_default=Now())
    attempt = models.IntegerField()
    provider = models.CharField(max_length=MAX_NAME_LENGTH, blank=True, default="")
    provider_id = models.TextField(blank=True, default="")
    outcome = models.CharField(max_length=10, choices=Outcome)
    error_class = models.CharField(max_length=MAX_NAME_LENGTH, blank=True, default="")
    # The provider's answer.
    detail = models.TextField(blank=True, default="")
    duration_ms = models.IntegerField(null=True, blank=True)

    class Meta:
        db_table = "delayed_queue_notification_delivery"
        verbose_name_plural = _("deliveries")
        constraints = [
            _only(
                "delivery_outcome",
                outcome__in=["sent", "refused", "failed", "ambiguous", "unfinished"],
            )
        ]
        indexes = [models.Index(fields=["at", "id"], name="notification_delivery_at")]
        default_permissions = ["view"]

    def __str__(self) -> str:
        return f"{self.notification_id} attempt {self.attempt}: {self.outcome}"


class Template(models.Model):
    """One version of a template. Versions are added, never changed; the latest one applies."""

    name = models.SlugField(_("name"), max_length=MAX_NAME_LENGTH)
    channel = models.CharField(_("channel"), max_length=7, choices=Channel)
    version = models.PositiveIntegerField(_("version"), editable=False)
    subject = models.TextField(
        _("subject"), blank=True, default="", help_text=_("The subject of an email; one line.")
    )
    body = models.TextField(
        _("body"), help_text=_("Text; for a webhook, JSON with variables in its strings.")
    )
    html = models.TextField(
        blank=True,
        default="",
        help_text=_("The HTML version of an email, in addition to the text."),
    )
    category = models.CharField(_("category"), max_length=50, blank=True, default="")
    is_transactional = models.BooleanField(
        _("transactional"),
        default=False,
        db_default=False,
        help_text=_("For example a receipt: it ignores opt-outs and has no unsubscribe link."),
    )
    created_at = models.DateTimeField(_("created at"), db_default=Now())

    class Meta:
        verbose_name = _("template")
        verbose_name_plural = _("templates")
        db_table = "delayed_queue_notification_template"
        constraints = [_unique("notification_template_version", "name", "channel", "version")]
        default_permissions = ["view", "add"]

    def __str__(self) -> str:
        return f"{self.name} ({self.channel}, version {self.version})"


class Suppression(models.Model):
    """A recipient to whom nothing is sent: at all, or in one category."""

    class Reason(models.TextChoices):
        OPT_OUT = "opt-out", _("opted out")
        BOUNCE = "bounce", _("address does not exist")
        COMPLAINT = "complaint", _("complained")

    channel = models.CharField(_("channel"), max_length=7, choices=Channel)
    recipient_hash = models.BinaryField(max_length=16)
    category = models.CharField(
        _("category"), max_length=50, blank=True, default="", help_text=_("Empty: every category.")
    )
    reason = models.CharField(_("reason"), max_length=9, choices=Reason, default=Reason.OPT_OUT)
    created_at = models.DateTimeField(_("created at"), db_default=Now())

    class Meta:
        verbose_name = _("suppression")
        verbose_name_plural = _("suppressions")
        db_table = "delayed_queue_notification_suppression"
        constraints = [_unique("notification_suppression", "channel", "recipient_hash", "category")]
        default_permissions = ["view", "add", "delete"]

    def __str__(self) -> str:
        return f"{self.channel}, {self.category or 'everything'}: {self.reason}"


class SoftBounce(models.Model):
    """A mail that the recipient's server did not take yet, by the provider's time."""

    recipient_hash = models.BinaryField(max_length=16)
    at = models.DateTimeField()

    class Meta:
        db_table = "delayed_queue_notification_soft_bounce"
        constraints = [_unique("notification_soft_bounce", "recipient_hash", "at")]
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.at:%F %T}"


class DedupeClaim(models.Model):
    """The notification that holds a ``dedupeKey`` of a tenant until the window ends."""

    tenant = models.CharField(max_length=MAX_NAME_LENGTH)
    key = models.CharField(max_length=250, db_collation="C")
    notification_id = models.UUIDField()
    until = models.DateTimeField()

    class Meta:
        db_table = "delayed_queue_notification_dedupe"
        constraints = [_unique("notification_dedupe", "tenant", "key")]
        indexes = [models.Index(fields=["until"], name="notification_dedupe_until")]
        default_permissions = []

    def __str__(self) -> str:
        return f"{self.tenant}/{self.key}"


class ParkedRequest(models.Model):
    """A broker's message that is no valid request, with the reasons.

    A repeated message has the same digest and therefore the same row.
    """

    digest = models.BinaryField(max_length=32)
    # The broker's queue.
    origin = models.CharField(_("origin"), max_length=200)
    # The tenant of the notification, if the request is accepted later.
    tenant = models.CharField(_("tenant"), max_length=MAX_NAME_LENGTH, blank=True, db_default="")
    message_id = models.CharField(_("message id"), max_length=200, blank=True, default="")
    content_type = models.CharField(_("content type"), max_length=200, blank=True, default="")
    body = models.BinaryField()
    reason = models.CharField(_("reason"), max_length=200)
    errors = models.JSONField(default=list)
    times = models.IntegerField(_("times"), default=1)
    parked_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = _("parked request")
        verbose_name_plural = _("parked requests")
        db_table = "delayed_queue_notification_parked"
        constraints = [_unique("notification_parked_digest", "digest")]
        indexes = [models.Index(fields=["parked_at", "id"], name="notification_parked_at")]
        permissions = [
            ("view_parked_body", "Can view the bodies of parked requests"),
            ("retry_parkedrequest", "Can put parked requests through the intake again"),
        ]
        default_permissions = ["view", "delete"]

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"
