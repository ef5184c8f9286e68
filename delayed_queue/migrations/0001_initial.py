"""The queue's table, as the seed has it with the package's own columns, and the dead letters."""

from django.db import migrations, models

import delayed_queue.fields
import delayed_queue.models
from delayed_queue.migrations._operations import CreateModelOnce

# Processes that migrate at the same time queue up here, until the winner's commit. The limit on
# waiting for table locks is set after that, so it does not cut short an orderly wait.
TAKE_TURNS = """
SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0));
SET LOCAL lock_timeout = '5s';
"""

# The queue's rows live for seconds: each leaves a dead version per lease and one at its end, in
# every index. Vacuum by count rather than by share, without pauses, and analyze as often. Giving
# pages back would need an exclusive lock for room that the next burst needs again. A fillfactor
# of 70 leaves room for the leased version on the page of the first.
STORAGE = """
ALTER TABLE delayed_queue SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000,
    vacuum_truncate = false
);
"""
NO_STORAGE = """
ALTER TABLE IF EXISTS delayed_queue RESET (
    fillfactor,
    autovacuum_vacuum_scale_factor,
    autovacuum_vacuum_threshold,
    autovacuum_vacuum_insert_scale_factor,
    autovacuum_vacuum_cost_delay,
    autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold,
    vacuum_truncate
);
"""


# What a service of another language that shares the table may have created it with.
SEED_COLUMNS = (
    "id",
    "pKey",
    "pKind",
    "payload",
    "scheduledAt",
    "scheduledAtInitially",
    "lockUuid",
    "createdAt",
)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.RunSQL(TAKE_TURNS, reverse_sql=migrations.RunSQL.noop),
        CreateModelOnce(
            name="Message",
            adopts=SEED_COLUMNS,
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "key",
                    models.CharField(db_collation="C", db_column="pKey", max_length=200),
                ),
                ("kind", models.CharField(db_column="pKind", max_length=100)),
                ("payload", models.BinaryField()),
                (
                    "scheduled_at",
                    delayed_queue.fields.EpochMillisecondField(db_column="scheduledAt"),
                ),
                (
                    "scheduled_at_initially",
                    delayed_queue.fields.EpochMillisecondField(db_column="scheduledAtInitially"),
                ),
                (
                    "lease_id",
                    models.CharField(blank=True, db_column="lockUuid", max_length=36, null=True),
                ),
                (
                    "created_at",
                    delayed_queue.fields.EpochMillisecondField(db_column="createdAt"),
                ),
                ("attempts", models.IntegerField(db_default=0)),
                ("headers", models.JSONField(blank=True, null=True)),
                (
                    "due_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        blank=True, db_column="dueAt", null=True
                    ),
                ),
                (
                    "first_error",
                    models.TextField(blank=True, db_column="firstError", null=True),
                ),
                ("last_error", models.TextField(blank=True, db_column="lastError", null=True)),
            ],
            options={
                "db_table": "delayed_queue",
                "permissions": [
                    ("view_payload", "Can view the payload of messages"),
                    ("release_message", "Can release the lease of messages"),
                    ("extend_message", "Can extend the lease of messages"),
                    ("reject_message", "Can move messages to the dead letters"),
                    ("drop_message", "Can drop messages"),
                    ("deliver_message", "Can deliver messages now"),
                ],
                "default_permissions": ["view"],
                "indexes": [
                    delayed_queue.models.LongNamedIndex(
                        fields=["kind", "scheduled_at", "id"],
                        name="delayed_queue__KindPlusScheduledAtIndex",
                    ),
                    delayed_queue.models.LongNamedIndex(
                        condition=models.Q(("lease_id__isnull", False)),
                        fields=["lease_id", "id"],
                        name="delayed_queue__LockUuidPlusIdIndex",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("key", "kind"), name="delayed_queue__PKeyPlusKindUniqueIndex"
                    )
                ],
            },
        ),
        CreateModelOnce(
            name="DeadLetter",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(db_column="pKind", max_length=100)),
                (
                    "key",
                    models.CharField(db_collation="C", db_column="pKey", max_length=200),
                ),
                ("payload", models.BinaryField()),
                ("headers", models.JSONField(blank=True, null=True)),
                ("attempts", models.IntegerField()),
                ("reason", models.TextField()),
                (
                    "first_error",
                    models.TextField(blank=True, db_column="firstError", null=True),
                ),
                ("last_error", models.TextField(blank=True, db_column="lastError", null=True)),
                (
                    "scheduled_at_initially",
                    delayed_queue.fields.EpochMillisecondField(db_column="scheduledAtInitially"),
                ),
                (
                    "created_at",
                    delayed_queue.fields.EpochMillisecondField(db_column="createdAt"),
                ),
                ("died_at", delayed_queue.fields.EpochMillisecondField(db_column="diedAt")),
            ],
            options={
                "db_table": "delayed_queue_dead_letter",
                "permissions": [
                    ("redrive_deadletter", "Can redrive dead letters"),
                    ("drop_deadletter", "Can drop dead letters"),
                ],
                "default_permissions": ["view"],
                "indexes": [
                    models.Index(fields=["kind", "died_at", "id"], name="dead_letter_kind_died"),
                    models.Index(fields=["kind", "id"], name="dead_letter_kind_id"),
                    models.Index(fields=["key"], name="dead_letter_key"),
                ],
            },
        ),
        migrations.RunSQL(STORAGE, reverse_sql=NO_STORAGE),
        migrations.RunSQL(migrations.RunSQL.noop, reverse_sql=TAKE_TURNS),
    ]
