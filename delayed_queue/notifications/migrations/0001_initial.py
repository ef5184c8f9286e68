"""Notifications and their deliveries, templates, suppressions, and what was parked."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.models.functions import Now

from delayed_queue.notifications.models import new_id

CHANNELS = [("email", "email"), ("sms", "SMS"), ("webhook", "webhook")]
# Each notification leaves two dead versions: when it is begun, and at its end. Vacuum by
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
NO_STORAGE = """
ALTER TABLE IF EXISTS delayed_queue_notification RESET (
    fillfactor,
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold,
    autovacuum_vacuum_cost_delay,
    autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold
);
"""


def _id() -> tuple[str, models.Field[Any, Any]]:
    field = models.BigAutoField(
        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
    )
    return "id", field


class Migration(migrations.Migration):
    initial = True

    # The sweep of dead letters reads the table of the queue.
    dependencies = [("delayed_queue", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="DedupeClaim",
            fields=[
                _id(),
                ("tenant", models.CharField(max_length=100)),
                ("key", models.CharField(db_collation="C", max_length=250)),
                ("notification_id", models.UUIDField()),
                (
                    "until",
                    models.DateTimeField(help_text="The key can be used again after this time."),
                ),
            ],
            options={
                "db_table": "delayed_queue_notification_dedupe",
                "default_permissions": [],
                "indexes": [models.Index(fields=["until"], name="notification_dedupe_until")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "key"), name="notification_dedupe")
                ],
            },
        ),
        migrations.CreateModel(
            name="Notification",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=new_id, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "tenant",
                    models.CharField(
                        verbose_name="tenant",
                        help_text="The caller that requested it.",
                        max_length=100,
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        choices=[("rest", "REST"), ("broker", "broker"), ("import", "import")],
                        max_length=6,
                    ),
                ),
                ("channel", models.CharField(choices=CHANNELS, max_length=7)),
                (
                    "priority",
                    models.CharField(
                        choices=[("urgent", "urgent"), ("normal", "normal"), ("bulk", "bulk")],
                        default="normal",
                        max_length=6,
                    ),
                ),
                ("category", models.CharField(blank=True, default="", max_length=50)),
                ("recipient", models.TextField()),
                ("recipient_hash", models.BinaryField(max_length=16)),
                ("template", models.CharField(blank=True, default="", max_length=100)),
                ("template_version", models.IntegerField(blank=True, null=True)),
                ("subject", models.TextField(blank=True, default="")),
                ("body", models.TextField()),
                ("html", models.TextField(blank=True, default="")),
                ("send_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("dedupe_key", models.CharField(blank=True, default="", max_length=200)),
                ("callback_url", models.TextField(blank=True, default="")),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("ENQUEUED", "enqueued"),
                            ("PROCESSING", "processing"),
                            ("SUCCESSFULLY_PROCESSED", "sent"),
                            ("FAILED", "failed"),
                            ("CANCELLED", "cancelled"),
                            ("EXPIRED", "expired"),
                        ],
                        default="ENQUEUED",
                        max_length=22,
                    ),
                ),
                ("attempts", models.IntegerField(default=0)),
                ("lease_id", models.UUIDField(blank=True, null=True)),
                ("provider", models.CharField(blank=True, default="", max_length=100)),
                (
                    "provider_id",
                    models.TextField(blank=True, default="", help_text="The provider's own id."),
                ),
                (
                    "outcome",
                    models.TextField(
                        blank=True, default="", help_text="The reason of the outcome."
                    ),
                ),
                ("error_class", models.CharField(blank=True, default="", max_length=100)),
                ("created_at", models.DateTimeField(db_default=Now())),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
            ],
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
                    models.Index(fields=["recipient_hash", "id"], name="notification_recipient"),
                    models.Index(
                        condition=models.Q(("expires_at__isnull", False), ("status", "ENQUEUED")),
                        fields=["expires_at"],
                        name="notification_expires",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "status__in",
                                [
                                    "ENQUEUED",
                                    "PROCESSING",
                                    "SUCCESSFULLY_PROCESSED",
                                    "FAILED",
                                    "CANCELLED",
                                    "EXPIRED",
                                ],
                            )
                        ),
                        name="notification_status",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("channel__in", ["email", "sms", "webhook"])),
                        name="notification_channel",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("priority__in", ["urgent", "normal", "bulk"])),
                        name="notification_priority",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("lease_id__isnull", False), ("status", "PROCESSING")),
                            models.Q(
                                models.Q(("status", "PROCESSING"), _negated=True),
                                ("lease_id__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="notification_lease",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("ended_at__isnull", True),
                                ("status__in", ("ENQUEUED", "PROCESSING")),
                            ),
                            models.Q(
                                models.Q(("status__in", ("ENQUEUED", "PROCESSING")), _negated=True),
                                ("ended_at__isnull", False),
                            ),
                            _connector="OR",
                        ),
                        name="notification_end",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ParkedRequest",
            fields=[
                _id(),
                ("digest", models.BinaryField(max_length=32)),
                (
                    "origin",
                    models.CharField(
                        verbose_name="origin", help_text="The broker's queue.", max_length=200
                    ),
                ),
                (
                    "tenant",
                    models.CharField(
                        verbose_name="tenant", blank=True, db_default="", max_length=100
                    ),
                ),
                (
                    "message_id",
                    models.CharField(
                        verbose_name="message id", blank=True, default="", max_length=200
                    ),
                ),
                (
                    "content_type",
                    models.CharField(
                        verbose_name="content type", blank=True, default="", max_length=200
                    ),
                ),
                ("body", models.BinaryField()),
                ("reason", models.CharField(verbose_name="reason", max_length=200)),
                ("errors", models.JSONField(default=list)),
                ("times", models.IntegerField(verbose_name="times", default=1)),
                ("parked_at", models.DateTimeField(db_default=Now())),
            ],
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
                "constraints": [
                    models.UniqueConstraint(fields=("digest",), name="notification_parked_digest")
                ],
            },
        ),
        migrations.CreateModel(
            name="Suppression",
            fields=[
                _id(),
                (
                    "channel",
                    models.CharField(verbose_name="channel", choices=CHANNELS, max_length=7),
                ),
                ("recipient_hash", models.BinaryField(max_length=16)),
                (
                    "category",
                    models.CharField(
                        verbose_name="category",
                        blank=True,
                        default="",
                        help_text="Empty: every category.",
                        max_length=50,
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        verbose_name="reason",
                        choices=[
                            ("opt-out", "opted out"),
                            ("bounce", "address does not exist"),
                            ("complaint", "complained"),
                        ],
                        default="opt-out",
                        max_length=9,
                    ),
                ),
                ("created_at", models.DateTimeField(verbose_name="created at", db_default=Now())),
            ],
            options={
                "verbose_name": "suppression",
                "verbose_name_plural": "suppressions",
                "db_table": "delayed_queue_notification_suppression",
                "default_permissions": ["view", "add", "delete"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("channel", "recipient_hash", "category"),
                        name="notification_suppression",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Template",
            fields=[
                _id(),
                ("name", models.SlugField(verbose_name="name", max_length=100)),
                (
                    "channel",
                    models.CharField(verbose_name="channel", choices=CHANNELS, max_length=7),
                ),
                ("version", models.PositiveIntegerField(verbose_name="version", editable=False)),
                (
                    "subject",
                    models.TextField(
                        verbose_name="subject",
                        blank=True,
                        default="",
                        help_text="The subject of an email; one line.",
                    ),
                ),
                (
                    "body",
                    models.TextField(
                        verbose_name="body",
                        help_text="Text; for a webhook, JSON with variables in its strings.",
                    ),
                ),
                (
                    "html",
                    models.TextField(
                        blank=True,
                        default="",
                        help_text="The HTML version of an email, in addition to the text.",
                    ),
                ),
                (
                    "category",
                    models.CharField(
                        verbose_name="category", blank=True, default="", max_length=50
                    ),
                ),
                ("created_at", models.DateTimeField(verbose_name="created at", db_default=Now())),
            ],
            options={
                "verbose_name": "template",
                "verbose_name_plural": "templates",
                "db_table": "delayed_queue_notification_template",
                "default_permissions": ["view", "add"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("name", "channel", "version"), name="notification_template_version"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                _id(),
                ("at", models.DateTimeField(db_default=Now())),
                ("attempt", models.IntegerField()),
                ("provider", models.CharField(blank=True, default="", max_length=100)),
                ("provider_id", models.TextField(blank=True, default="")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("sent", "sent"),
                            ("refused", "refused for good"),
                            ("failed", "failed, may be tried again"),
                            ("ambiguous", "ambiguous: it may have been sent"),
                            ("unfinished", "interrupted: it may have been sent"),
                        ],
                        max_length=10,
                    ),
                ),
                ("error_class", models.CharField(blank=True, default="", max_length=100)),
                (
                    "detail",
                    models.TextField(blank=True, default="", help_text="The provider's answer."),
                ),
                ("duration_ms", models.IntegerField(blank=True, null=True)),
                (
                    "notification",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=models.CASCADE,
                        related_name="deliveries",
                        to="delayed_queue_notifications.notification",
                    ),
                ),
            ],
            options={
                "db_table": "delayed_queue_notification_delivery",
                "verbose_name_plural": "deliveries",
                "default_permissions": ["view"],
                "indexes": [models.Index(fields=["at", "id"], name="notification_delivery_at")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "outcome__in",
                                ["sent", "refused", "failed", "ambiguous", "unfinished"],
                            )
                        ),
                        name="delivery_outcome",
                    )
                ],
            },
        ),
        migrations.RunSQL(STORAGE, reverse_sql=NO_STORAGE),
    ]
