"""The ledger of offers through Spark."""

from django.db import migrations, models

import delayed_queue.fields
from delayed_queue.migrations._operations import CreateModelOnce

# As in the first migration: processes that migrate at the same time queue up.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""
# What is staged is of no use after a crash: the job that staged it has died with its connection.
UNLOGGED = "ALTER TABLE delayed_queue_offer_stage SET UNLOGGED"


class Migration(migrations.Migration):
    dependencies = [("delayed_queue", "0007_rates")]

    operations = [
        migrations.RunSQL(TAKE_TURNS, reverse_sql=migrations.RunSQL.noop),
        CreateModelOnce(
            name="OfferLedger",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("job", models.CharField(db_collation="C", max_length=200)),
                ("batch", models.BigIntegerField()),
                ("partition", models.IntegerField()),
                ("chunk", models.IntegerField()),
                ("digest", models.CharField(db_collation="C", max_length=64)),
                ("rows", models.BigIntegerField()),
                ("created", models.BigIntegerField(db_default=0)),
                ("updated", models.BigIntegerField(db_default=0)),
                ("recorded_at", delayed_queue.fields.EpochMillisecondField(db_column="recordedAt")),
            ],
            options={
                "db_table": "delayed_queue_offer_ledger",
                "default_permissions": [],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("job", "batch", "partition", "chunk", "digest"),
                        name="offer_ledger_chunk",
                    )
                ],
                "indexes": [
                    models.Index(fields=["recorded_at", "id"], name="offer_ledger_recorded")
                ],
            },
        ),
        CreateModelOnce(
            name="OfferStage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("job", models.CharField(db_collation="C", max_length=200)),
                ("attempt", models.CharField(db_collation="C", max_length=36)),
                ("partition", models.IntegerField()),
                ("position", models.BigIntegerField()),
                ("key", models.TextField(db_collation="C")),
                ("payload", models.BinaryField()),
                ("due_at", delayed_queue.fields.EpochMillisecondField(db_column="dueAt")),
                ("headers", models.JSONField(blank=True, null=True)),
                ("recorded_at", delayed_queue.fields.EpochMillisecondField(db_column="recordedAt")),
            ],
            options={
                "db_table": "delayed_queue_offer_stage",
                "default_permissions": [],
                "indexes": [
                    models.Index(fields=["job", "attempt"], name="offer_stage_attempt"),
                    models.Index(fields=["recorded_at", "id"], name="offer_stage_recorded"),
                ],
            },
        ),
        migrations.RunSQL(UNLOGGED, reverse_sql=migrations.RunSQL.noop),
        migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=TAKE_TURNS),
    ]
