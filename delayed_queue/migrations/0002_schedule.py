"""The schedules of the cron service."""

from django.db import migrations, models

import delayed_queue.fields
from delayed_queue.migrations._operations import CreateModelOnce

# As in the first migration: processes that migrate at the same time queue up.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""


class Migration(migrations.Migration):
    dependencies = [("delayed_queue", "0001_initial")]

    operations = [
        migrations.RunSQL(TAKE_TURNS, reverse_sql=migrations.RunSQL.noop),
        CreateModelOnce(
            name="Schedule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(db_column="pKind", max_length=100)),
                (
                    "key_prefix",
                    models.CharField(db_collation="C", db_column="keyPrefix", max_length=200),
                ),
                ("queue", models.CharField(max_length=100)),
                ("codec", models.CharField(db_default="json", max_length=100)),
                ("type", models.CharField(blank=True, db_default="", max_length=20)),
                ("expression", models.TextField(blank=True, db_default="")),
                ("timezone", models.CharField(blank=True, db_default="", max_length=100)),
                ("gap", models.CharField(blank=True, db_default="shift", max_length=10)),
                ("fold", models.CharField(blank=True, db_default="", max_length=10)),
                ("missed", models.CharField(db_default="latest", max_length=10)),
                ("missed_cap", models.IntegerField(db_column="missedCap", db_default=100)),
                ("payload", models.JSONField(blank=True, null=True)),
                (
                    "declared_in",
                    models.TextField(blank=True, db_column="declaredIn", db_default=""),
                ),
                ("is_enabled", models.BooleanField(db_column="isEnabled", db_default=True)),
                (
                    "config_hash",
                    models.CharField(
                        blank=True, db_column="configHash", db_default="", max_length=200
                    ),
                ),
                (
                    "retired_hashes",
                    models.JSONField(
                        db_column="retiredHashes",
                        db_default=models.Value([], models.JSONField()),
                    ),
                ),
                (
                    "last_tick",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="lastTick", null=True
                    ),
                ),
                (
                    "installed_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="installedAt", null=True
                    ),
                ),
                ("interval", models.BigIntegerField(db_column="scheduleInterval", null=True)),
            ],
            options={
                "db_table": "delayed_queue_schedule",
                "permissions": [
                    ("pause_schedule", "Can pause and enable schedules"),
                    ("run_schedule", "Can run schedules now"),
                ],
                "indexes": [
                    models.Index(
                        condition=models.Q(("type__in", ["cron", "daily", "periodic", "other"])),
                        fields=["id"],
                        name="schedule_described",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("kind", "key_prefix"), name="schedule_kind_prefix"
                    )
                ],
            },
        ),
        migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=TAKE_TURNS),
    ]
