"""The workers' own rows, and the queues that are paused."""

from django.db import migrations, models

import delayed_queue.fields
from delayed_queue.migrations._operations import CreateModelOnce

# As in the first migration: processes that migrate at the same time queue up.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""


class Migration(migrations.Migration):
    dependencies = [("delayed_queue", "0002_schedule")]

    operations = [
        migrations.RunSQL(TAKE_TURNS, reverse_sql=migrations.RunSQL.noop),
        CreateModelOnce(
            name="Worker",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.TextField()),
                ("host", models.TextField()),
                ("pid", models.IntegerField()),
                ("process", models.IntegerField(db_default=0)),
                ("queues", models.JSONField()),
                ("version", models.TextField()),
                ("started_at", delayed_queue.fields.EpochMillisecondField(db_column="startedAt")),
                (
                    "heartbeat_at",
                    delayed_queue.fields.EpochMillisecondField(db_column="heartbeatAt"),
                ),
                ("in_flight", models.BigIntegerField(db_column="inFlight", db_default=0)),
                ("done", models.BigIntegerField(db_default=0)),
                ("failed", models.BigIntegerField(db_default=0)),
                ("dead", models.BigIntegerField(db_default=0)),
                ("lost", models.BigIntegerField(db_default=0)),
                ("rates", models.JSONField(db_default=models.Value({}, models.JSONField()))),
                (
                    "lease_ids",
                    models.JSONField(
                        db_column="leaseIds", db_default=models.Value([], models.JSONField())
                    ),
                ),
            ],
            options={
                "db_table": "delayed_queue_worker",
                "default_permissions": ["view"],
                "indexes": [models.Index(fields=["heartbeat_at", "id"], name="worker_heartbeat")],
            },
        ),
        CreateModelOnce(
            name="PausedQueue",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(db_column="pKind", max_length=100)),
                ("paused_at", delayed_queue.fields.EpochMillisecondField(db_column="pausedAt")),
                (
                    "paused_by",
                    models.TextField(blank=True, db_column="pausedBy", db_default=""),
                ),
                ("reason", models.TextField(blank=True, db_default="")),
            ],
            options={
                "db_table": "delayed_queue_paused",
                "permissions": [("pause_queue", "Can pause and resume queues")],
                "default_permissions": [],
                "constraints": [models.UniqueConstraint(fields=("kind",), name="paused_kind")],
            },
        ),
        migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=TAKE_TURNS),
    ]
