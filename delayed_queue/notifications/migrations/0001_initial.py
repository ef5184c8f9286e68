"""Notifications and their deliveries, templates, suppressions, and what was parked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import migrations, models
from django.db.models.functions import Now

from delayed_queue.notifications.models import new_id

CHANNELS = [("email", "email"), ("sms", "SMS"), ("webhook", "webhook")]
PRIORITIES = [("urgent", "urgent"), ("normal", "normal"), ("bulk", "bulk")]
STATUSES = [
    ("ENQUEUED", "enqueued"), ("PROCESSING", "processing"), ("SUCCESSFULLY_PROCESSED", "sent"),
    ("FAILED", "failed"), ("CANCELLED", "cancelled"), ("EXPIRED", "expired"),
]  # fmt: skip
OUTCOMES = [
    ("sent", "sent"),
    ("refused", "refused for good"),
    ("failed", "failed, may be tried again"),
    ("ambiguous", "ambiguous: it may have been sent"),
    ("unfinished", "interrupted: it may have been sent"),
]
RECEPTIONS = [
    ("unknown", "unknown"), ("delivered", "delivered"), ("bounced", "bounced"),
    ("complained", "complained about"),
]  # fmt: skip
REASONS = [
    ("opt-out", "opted out"), ("bounce", "address does not exist"), ("complaint", "complained"),
]  # fmt: skip
TRANSACTIONAL = "For example a receipt: it ignores opt-outs and has no unsubscribe link."
IS_PROCESSING = models.Q(status="PROCESSING")
IS_OPEN = models.Q(status__in=("ENQUEUED", "PROCESSING"))
# Each notification leaves two dead versions: at its start and at its end. Vacuum by
# count rather than by share, as for the queue's own table.
STORAGE = """
ALTER TABLE delayed_queue_notification SET (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000
);
"""


def _fields(**fields: models.Field[Any, Any]) -> list[tuple[str, models.Field[Any, Any]]]:
    """Return the fields, after an id of their own unless they have one."""
    id_ = models.BigAutoField("ID", auto_created=True, primary_key=True, serialize=False)
    return [*({} if "id" in fields else {"id": id_}).items(), *fields.items()]


def _text(name: str | None = None, **options: Any) -> models.Field[Any, Any]:
    return models.TextField(name, blank=True, default="", **options)


def _line(length: int, name: str | None = None, **options: Any) -> models.Field[Any, Any]:
    return models.CharField(name, blank=True, default="", max_length=length, **options)


def _one_of(
    choices: Iterable[tuple[str, str]], length: int, name: str | None = None, **options: Any
) -> Any:
    return models.CharField(name, choices=choices, max_length=length, **options)


def _only(name: str, column: str, choices: Iterable[tuple[str, str]]) -> models.CheckConstraint:
    values = [value for value, _ in choices]
    return models.CheckConstraint(condition=models.Q((f"{column}__in", values)), name=name)


def _unique(name: str, *columns: str) -> models.UniqueConstraint:
    return models.UniqueConstraint(fields=columns, name=name)


def _only_while(name: str, state: models.Q, **condition: bool) -> models.CheckConstraint:
    """Allow the condition in that state, and its opposite in every other."""
    opposite = {column: not each for column, each in condition.items()}
    return models.CheckConstraint(
        condition=models.Q(state, **condition) | models.Q(~state, **opposite), name=name
    )


class Migration(migrations.Migration):
    initial = True

    # The sweep of dead letters reads the table of the queue.
    dependencies = [("delayed_queue", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="DedupeClaim",
            fields=_fields(
                tenant=models.CharField(max_length=100),
                key=models.CharField(db_collation="C", max_length=250),
                notification_id=models.UUIDField(),
                until=models.DateTimeField(),
            ),
            options={
                "db_table": "delayed_queue_notification_dedupe",
                "default_permissions": [],
                "indexes": [models.Index(fields=["until"], name="notification_dedupe_until")],
                "constraints": [_unique("notification_dedupe", "tenant", "key")],
            },
        ),
        migrations.CreateModel(
            name="Notification",
            fields=_fields(
                id=models.UUIDField(
                    default=new_id, editable=False, primary_key=True, serialize=False
                ),
                tenant=models.CharField("tenant", max_length=100),
                channel=_one_of(CHANNELS, 7),
                priority=_one_of(PRIORITIES, 6, default="normal"),
                category=_line(50),
                recipient=models.TextField(),
                recipient_hash=models.BinaryField(max_length=16),
                template=_line(100),
                template_version=models.IntegerField(blank=True, null=True),
                is_transactional=models.BooleanField(db_default=False, default=False),
                subject=_text(),
                body=models.TextField(),
                html=_text(),
                send_at=models.DateTimeField(),
                expires_at=models.DateTimeField(blank=True, null=True),
                quiet=_text(db_default=""),
                mail=models.JSONField(blank=True, null=True),
                dedupe_key=_line(200),
                callback_url=_text(),
                status=_one_of(STATUSES, 22, default="ENQUEUED"),
                attempts=models.IntegerField(default=0),
                lease_id=models.UUIDField(blank=True, null=True),
                provider=_line(100),
                provider_id=_text(),
                outcome=_text(),
                error_class=_line(100),
                created_at=models.DateTimeField(db_default=Now()),
                started_at=models.DateTimeField(blank=True, null=True),
                ended_at=models.DateTimeField(blank=True, null=True),
                delivery=_one_of(RECEPTIONS, 10, db_default="unknown", default="unknown"),
                delivery_at=models.DateTimeField(blank=True, null=True),
            ),
            options={
                "verbose_name": "notification",
                "verbose_name_plural": "notifications",
                "db_table": "delayed_queue_notification",
                "permissions": [
                    ("view_recipient", "Can view recipients and contents of notifications"),
                    ("cancel_notification", "Can cancel notifications"),
                    ("retry_notification", "Can retry failed notifications"),
                ],
                "default_permissions": ["view"],
                "indexes": [
                    models.Index(fields=["status", "id"], name="notification_status_id"),
                    models.Index(fields=["tenant", "status", "id"], name="notification_tenant"),
                    models.Index(
                        name="notification_expires",
                        fields=["expires_at"],
                        condition=models.Q(status="ENQUEUED", expires_at__isnull=False),
                    ),
                    models.Index(
                        name="notification_received",
                        fields=["provider", "delivery_at"],
                        condition=~models.Q(delivery="unknown"),
                    ),
                    models.Index(
                        name="notification_provider_id",
                        fields=["provider_id"],
                        condition=~models.Q(provider_id="")
                        & ~models.Q(provider_id__regex="^<[0-9a-f-]{36}@"),
                    ),
                ],
                "constraints": [
                    _only("notification_status", "status", STATUSES),
                    _only("notification_channel", "channel", CHANNELS),
                    _only("notification_priority", "priority", PRIORITIES),
                    _only("notification_delivery", "delivery", RECEPTIONS),
                    _only_while("notification_lease", IS_PROCESSING, lease_id__isnull=False),
                    _only_while("notification_end", IS_OPEN, ended_at__isnull=True),
                ],
            },
        ),
        migrations.CreateModel(
            name="ParkedRequest",
            fields=_fields(
                digest=models.BinaryField(max_length=32),
                origin=models.CharField("origin", max_length=200),
                tenant=models.CharField("tenant", blank=True, db_default="", max_length=100),
                message_id=_line(200, "message id"),
                content_type=_line(200, "content type"),
                body=models.BinaryField(),
                reason=models.CharField("reason", max_length=200),
                errors=models.JSONField(default=list),
                times=models.IntegerField("times", default=1),
                parked_at=models.DateTimeField(db_default=Now()),
            ),
            options={
                "verbose_name": "parked request",
                "verbose_name_plural": "parked requests",
                "db_table": "delayed_queue_notification_parked",
                "permissions": [
                    ("view_parked_body", "Can view the bodies of parked requests"),
                    ("retry_parkedrequest", "Can put parked requests through the intake again"),
                ],
                "default_permissions": ["view", "delete"],
                "indexes": [
                    models.Index(fields=["parked_at", "id"], name="notification_parked_at")
                ],
                "constraints": [_unique("notification_parked_digest", "digest")],
            },
        ),
        migrations.CreateModel(
            name="Suppression",
            fields=_fields(
                channel=_one_of(CHANNELS, 7, "channel"),
                recipient_hash=models.BinaryField(max_length=16),
                category=_line(50, "category", help_text="Empty: every category."),
                reason=_one_of(REASONS, 9, "reason", default="opt-out"),
                created_at=models.DateTimeField("created at", db_default=Now()),
            ),
            options={
                "verbose_name": "suppression",
                "verbose_name_plural": "suppressions",
                "db_table": "delayed_queue_notification_suppression",
                "default_permissions": ["view", "add", "delete"],
                "constraints": [
                    _unique("notification_suppression", "channel", "recipient_hash", "category")
                ],
            },
        ),
        migrations.CreateModel(
            name="Template",
            fields=_fields(
                name=models.SlugField("name", max_length=100),
                channel=_one_of(CHANNELS, 7, "channel"),
                version=models.PositiveIntegerField("version", editable=False),
                subject=_text("subject", help_text="The subject of an email; one line."),
                body=models.TextField(
                    "body", help_text="Text; for a webhook, JSON with variables in its strings."
                ),
                html=_text(help_text="The HTML version of an email, in addition to the text."),
                category=_line(50, "category"),
                is_transactional=models.BooleanField(
                    "transactional", db_default=False, default=False, help_text=TRANSACTIONAL
                ),
                created_at=models.DateTimeField("created at", db_default=Now()),
            ),
            options={
                "verbose_name": "template",
                "verbose_name_plural": "templates",
                "db_table": "delayed_queue_notification_template",
                "default_permissions": ["view", "add"],
                "constraints": [
                    _unique("notification_template_version", "name", "channel", "version")
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=_fields(
                at=models.DateTimeField(db_default=Now()),
                attempt=models.IntegerField(),
                provider=_line(100),
                provider_id=_text(),
                outcome=_one_of(OUTCOMES, 10),
                error_class=_line(100),
                detail=_text(),
                duration_ms=models.IntegerField(blank=True, null=True),
                notification=models.ForeignKey(
                    "delayed_queue_notifications.notification",
                    models.CASCADE,
                    db_constraint=False,
                    related_name="deliveries",
                ),
            ),
            options={
                "db_table": "delayed_queue_notification_delivery",
                "verbose_name_plural": "deliveries",
                "default_permissions": ["view"],
                "indexes": [models.Index(fields=["at", "id"], name="notification_delivery_at")],
                "constraints": [_only("delivery_outcome", "outcome", OUTCOMES)],
            },
        ),
        migrations.CreateModel(
            name="SoftBounce",
            fields=_fields(
                recipient_hash=models.BinaryField(max_length=16), at=models.DateTimeField()
            ),
            options={
                "db_table": "delayed_queue_notification_soft_bounce",
                "default_permissions": [],
                "constraints": [_unique("notification_soft_bounce", "recipient_hash", "at")],
            },
        ),
        # The reverse drops the table.
        migrations.RunSQL(STORAGE, reverse_sql=migrations.RunSQL.noop),
    ]
