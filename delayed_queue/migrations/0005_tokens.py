"""Who may use the HTTP API."""

from django.db import migrations, models

import delayed_queue.fields
from delayed_queue.migrations._operations import CreateModelOnce

# As in the first migration: processes that migrate at the same time queue up.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""


class Migration(migrations.Migration):
    dependencies = [("delayed_queue", "0004_topics")]

    operations = [
        migrations.RunSQL(TAKE_TURNS, reverse_sql=migrations.RunSQL.noop),
        CreateModelOnce(
            name="ApiToken",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("prefix", models.CharField(max_length=12)),
                ("digest", models.CharField(max_length=64)),
                ("topics", models.JSONField(db_default=models.Value([], models.JSONField()))),
                ("verbs", models.JSONField(db_default=models.Value([], models.JSONField()))),
                ("rate", models.FloatField(blank=True, null=True)),
                ("burst", models.IntegerField(blank=True, null=True)),
                ("created_at", delayed_queue.fields.EpochMillisecondField(db_column="createdAt")),
                (
                    "expires_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        blank=True, db_column="expiresAt", null=True
                    ),
                ),
                (
                    "disabled_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        blank=True, db_column="disabledAt", null=True
                    ),
                ),
                (
                    "last_used_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        blank=True, db_column="lastUsedAt", null=True
                    ),
                ),
            ],
            options={
                "db_table": "delayed_queue_token",
                "permissions": [("revoke_apitoken", "Can revoke API tokens")],
                "default_permissions": ["view", "add"],
                "constraints": [
                    models.UniqueConstraint(fields=("digest",), name="token_digest"),
                    models.UniqueConstraint(fields=("name",), name="token_name"),
                ],
            },
        ),
        migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=TAKE_TURNS),
    ]
