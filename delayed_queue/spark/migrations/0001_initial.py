"""Create the tables of offers by jobs, staged rows, archives and reports."""

from __future__ import annotations

from django.db import migrations, models

from delayed_queue.fields import EpochMillisecondField
from delayed_queue.migrations._operations import END_TURN, TAKE_TURN, CreateModelOnce

# Staged rows are useless after a crash, because their job has died with its connection.
UNLOGGED = "ALTER TABLE delayed_queue_offer_stage SET UNLOGGED"

_STATES = [("planned", "Planned"), ("written", "Written"), ("pruned", "Pruned")]


def _id() -> tuple[str, models.BigAutoField[int, int]]:
    field = models.BigAutoField(
        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
    )
    return "id", field


class Migration(migrations.Migration):
    initial = True

    dependencies = [("delayed_queue", "0001_initial")]

    operations = [
        TAKE_TURN,
        CreateModelOnce(
            name="OfferLedger",
            fields=[
                _id(),
                ("job", models.CharField(db_collation="C", max_length=200)),
                ("batch", models.BigIntegerField()),
                ("partition", models.IntegerField()),
                ("chunk", models.IntegerField()),
                ("digest", models.CharField(db_collation="C", max_length=64)),
                ("rows", models.BigIntegerField()),
                ("created", models.BigIntegerField(db_default=0)),
                ("updated", models.BigIntegerField(db_default=0)),
                ("recorded_at", EpochMillisecondField(db_column="recordedAt")),
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
                _id(),
                ("job", models.CharField(db_collation="C", max_length=200)),
                ("attempt", models.CharField(db_collation="C", max_length=36)),
                ("partition", models.IntegerField()),
                ("position", models.BigIntegerField()),
                ("key", models.TextField(db_collation="C")),
                ("payload", models.BinaryField()),
                ("due_at", EpochMillisecondField(db_column="dueAt")),
                ("headers", models.JSONField(blank=True, null=True)),
                ("kind", models.TextField(blank=True, db_collation="C", null=True)),
                ("grouped", models.TextField(blank=True, db_collation="C", null=True)),
                (
                    "expires_at",
                    EpochMillisecondField(db_column="expiresAt", null=True, blank=True),  # type: ignore[misc]
                ),
                ("recorded_at", EpochMillisecondField(db_column="recordedAt")),
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
        CreateModelOnce(
            name="ArchiveManifest",
            fields=[
                _id(),
                ("source", models.TextField()),
                ("path", models.TextField()),
                ("state", models.TextField(choices=_STATES, db_default="planned")),
                ("files", models.JSONField(db_default=models.Value([], models.JSONField()))),
                ("rows", models.BigIntegerField(null=True)),
                ("deleted", models.BigIntegerField(db_default=0)),
                ("changed", models.BigIntegerField(db_default=0)),
                ("created_at", EpochMillisecondField(db_column="createdAt")),
                (
                    "finished_at",
                    EpochMillisecondField(db_column="finishedAt", null=True),  # type: ignore[misc]
                ),
            ],
            options={
                "db_table": "delayed_queue_archive",
                "default_permissions": ["view"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "pruned"), _negated=True),
                        fields=("source",),
                        name="archive_unfinished",
                    )
                ],
            },
        ),
        CreateModelOnce(
            name="PipelineReport",
            fields=[
                _id(),
                ("created_at", EpochMillisecondField(db_column="createdAt")),
                ("figures", models.JSONField()),
                (
                    "plots",
                    models.JSONField(db_default=models.Value({}, models.JSONField())),
                ),
            ],
            options={
                "verbose_name": "pipeline report",
                "verbose_name_plural": "pipeline reports",
                "db_table": "delayed_queue_report",
                "default_permissions": ["view"],
            },
        ),
        END_TURN,
    ]
