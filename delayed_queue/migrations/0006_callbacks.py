"""Where callbacks go, how their hosts fare, and what became of each."""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

import delayed_queue.fields
from delayed_queue.migrations._operations import CreateModelOnce

# As in the first migration: processes that migrate at the same time queue up.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""


class Migration(migrations.Migration):
    dependencies = [
        ("delayed_queue", "0005_tokens"),
    ]

    operations = [
        migrations.RunSQL(TAKE_TURNS, reverse_sql=migrations.RunSQL.noop),
        CreateModelOnce(
            name="CallbackAttempt",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(db_collation="C", max_length=200)),
                ("topic", models.CharField(db_collation="C", max_length=100)),
                ("kind", models.CharField(max_length=100)),
                ("webhook_id", models.TextField(db_column="webhookId")),
                ("attempt", models.IntegerField()),
                ("started_at", delayed_queue.fields.EpochMillisecondField(db_column="startedAt")),
                ("duration", models.IntegerField()),
                ("status", models.IntegerField(blank=True, null=True)),
                ("failure", models.TextField(blank=True, db_default="")),
                ("detail", models.TextField(blank=True, db_default="")),
                ("address", models.TextField(blank=True, db_default="")),
                ("excerpt", models.TextField(blank=True, db_default="")),
                ("is_ambiguous", models.BooleanField(db_column="isAmbiguous", db_default=False)),
                ("endpoint_id", models.BigIntegerField(blank=True, null=True)),
            ],
            options={
                "db_table": "delayed_queue_callback_attempt",
                "default_permissions": ["view"],
                "indexes": [
                    models.Index(fields=["key", "id"], name="attempt_key"),
                    models.Index(fields=["started_at", "id"], name="attempt_started"),
                ],
            },
        ),
        CreateModelOnce(
            name="Endpoint",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("origin", models.TextField(db_collation="C")),
                ("prefix", models.TextField(db_collation="C")),
                ("secret", models.TextField()),
                (
                    "previous_secret",
                    models.TextField(blank=True, db_column="previousSecret", db_default=""),
                ),
                (
                    "rotated_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        blank=True, db_column="rotatedAt", null=True
                    ),
                ),
                (
                    "disabled_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        blank=True, db_column="disabledAt", null=True
                    ),
                ),
                (
                    "disabled_reason",
                    models.TextField(blank=True, db_column="disabledReason", db_default=""),
                ),
                ("per_second", models.FloatField(blank=True, db_column="perSecond", null=True)),
                (
                    "burst",
                    models.IntegerField(
                        db_default=1,
                        default=1,
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "concurrency",
                    models.IntegerField(
                        blank=True,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                ("created_at", delayed_queue.fields.EpochMillisecondField(db_column="createdAt")),
            ],
            options={
                "db_table": "delayed_queue_endpoint",
                "permissions": [
                    ("rotate_endpoint", "Can rotate the secrets of endpoints"),
                    ("disable_endpoint", "Can disable and enable endpoints"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("origin", "prefix"), name="endpoint_origin_prefix"
                    )
                ],
            },
        ),
        CreateModelOnce(
            name="Host",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.TextField(db_collation="C")),
                (
                    "opened_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="openedAt", null=True
                    ),
                ),
                (
                    "open_until",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="openUntil", null=True
                    ),
                ),
                ("openings", models.IntegerField(db_default=0)),
                ("reason", models.TextField(blank=True, db_default="")),
                ("probe_by", models.CharField(db_column="probeBy", max_length=36, null=True)),
                (
                    "probe_until",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="probeUntil", null=True
                    ),
                ),
            ],
            options={
                "db_table": "delayed_queue_host",
                "permissions": [("close_host", "Can close and open the breakers of hosts")],
                "default_permissions": ["view"],
                "constraints": [models.UniqueConstraint(fields=("name",), name="host_name")],
            },
        ),
        CreateModelOnce(
            name="Slot",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("holder", models.CharField(db_collation="C", max_length=36)),
                ("held", models.IntegerField()),
                ("held_until", delayed_queue.fields.EpochMillisecondField(db_column="heldUntil")),
                (
                    "endpoint",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        to="delayed_queue.endpoint",
                    ),
                ),
            ],
            options={
                "db_table": "delayed_queue_slot",
                "default_permissions": [],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("endpoint", "holder"), name="slot_endpoint_holder"
                    )
                ],
            },
        ),
        migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=TAKE_TURNS),
    ]
