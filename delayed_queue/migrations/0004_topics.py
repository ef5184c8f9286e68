"""Topics, and the answers that idempotency keys replay."""

import django.core.validators
from django.db import migrations, models

import delayed_queue.fields
from delayed_queue.migrations._operations import CreateModelOnce

# As in the first migration: processes that migrate at the same time queue up.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""


class Migration(migrations.Migration):
    dependencies = [("delayed_queue", "0003_workers_and_pauses")]

    operations = [
        migrations.RunSQL(TAKE_TURNS, reverse_sql=migrations.RunSQL.noop),
        CreateModelOnce(
            name="Topic",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(db_collation="C", max_length=80)),
                (
                    "shards",
                    models.IntegerField(
                        db_default=1,
                        default=1,
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(64),
                        ],
                    ),
                ),
                ("ladder", models.TextField(blank=True, db_default="", default="")),
                (
                    "jitter",
                    models.FloatField(
                        db_default=0.0,
                        default=0.0,
                        validators=[
                            django.core.validators.MinValueValidator(0.0),
                            django.core.validators.MaxValueValidator(1.0),
                        ],
                    ),
                ),
                (
                    "ttr",
                    models.BigIntegerField(
                        blank=True,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1000)],
                    ),
                ),
                ("created_at", delayed_queue.fields.EpochMillisecondField(db_column="createdAt")),
            ],
            options={
                "db_table": "delayed_queue_topic",
                "constraints": [models.UniqueConstraint(fields=("name",), name="topic_name")],
            },
        ),
        CreateModelOnce(
            name="IdempotencyKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("scope", models.CharField(db_collation="C", max_length=200)),
                ("key", models.CharField(db_collation="C", max_length=200)),
                ("request_hash", models.BinaryField(db_column="requestHash")),
                ("status", models.IntegerField()),
                ("answer", models.TextField()),
                ("created_at", delayed_queue.fields.EpochMillisecondField(db_column="createdAt")),
            ],
            options={
                "db_table": "delayed_queue_idempotency_key",
                "default_permissions": ["view"],
                "indexes": [models.Index(fields=["created_at", "id"], name="idempotency_created")],
                "constraints": [
                    models.UniqueConstraint(fields=("scope", "key"), name="idempotency_scope_key")
                ],
            },
        ),
        migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=TAKE_TURNS),
    ]
