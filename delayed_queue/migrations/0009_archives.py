"""Manifests of archives, and the reports that the admin shows."""

from django.db import migrations, models

import delayed_queue.fields
from delayed_queue.migrations._operations import CreateModelOnce

# As in the first migration: processes that migrate at the same time queue up.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""


class Migration(migrations.Migration):
    dependencies = [("delayed_queue", "0008_pipeline")]

    operations = [
        migrations.RunSQL(TAKE_TURNS, reverse_sql=migrations.RunSQL.noop),
        CreateModelOnce(
            name="ArchiveManifest",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("source", models.TextField()),
                ("key_column", models.TextField(db_column="keyColumn")),
                ("age_column", models.TextField(db_column="ageColumn")),
                ("lower", models.TextField()),
                ("upper", models.TextField()),
                (
                    "only",
                    models.JSONField(db_default=models.Value({}, models.JSONField())),
                ),
                ("cutoff", delayed_queue.fields.EpochMillisecondField()),
                ("expected", models.BigIntegerField()),
                ("destination", models.TextField()),
                (
                    "state",
                    models.TextField(
                        choices=[
                            ("planned", "Planned"),
                            ("staged", "Staged"),
                            ("published", "Published"),
                            ("pruned", "Pruned"),
                        ],
                        db_default="planned",
                    ),
                ),
                ("staging", models.TextField(db_default="")),
                ("rows", models.BigIntegerField(null=True)),
                ("digest", models.TextField(db_default="")),
                (
                    "files",
                    models.JSONField(db_default=models.Value([], models.JSONField())),
                ),
                ("deleted", models.BigIntegerField(db_default=0)),
                ("changed", models.BigIntegerField(db_default=0)),
                ("holder", models.TextField(db_default="")),
                ("held_until", delayed_queue.fields.EpochMillisecondField(db_column="heldUntil")),
                ("created_at", delayed_queue.fields.EpochMillisecondField(db_column="createdAt")),
                (
                    "finished_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="finishedAt", null=True
                    ),
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
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("created_at", delayed_queue.fields.EpochMillisecondField(db_column="createdAt")),
                ("figures", models.JSONField()),
                (
                    "plots",
                    models.JSONField(db_default=models.Value({}, models.JSONField())),
                ),
            ],
            options={"db_table": "delayed_queue_report", "default_permissions": ["view"]},
        ),
        migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=TAKE_TURNS),
    ]
