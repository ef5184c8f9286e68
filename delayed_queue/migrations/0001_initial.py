"""The queue's table, as the seed has it with our own columns, and the small tables beside it."""

from django.db import migrations, models
from django.db.models.functions import Coalesce

from delayed_queue.fields import CountsField, LongNamedIndex
from delayed_queue.migrations._operations import (
    END_TURN,
    ID,
    TAKE_TURN,
    CreateFunctions,
    CreateModelOnce,
    CreateTableOfDays,
    instant,
)

# The queue's rows live for seconds: each leaves a dead version per lease and one at its end, in
# every index. Vacuum by count rather than by share, without pauses, and analyze as often. Giving
# pages back would need an exclusive lock for room that the next burst needs again. A fillfactor
# of 70 leaves room for the leased version on the page of the first.
_STORAGE = {
    "fillfactor": "70",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_vacuum_insert_scale_factor": "0.05",
    "autovacuum_vacuum_cost_delay": "0",
    "autovacuum_analyze_scale_factor": "0.05",
    "autovacuum_analyze_threshold": "1000",
    "vacuum_truncate": "false",
}
_SET = ", ".join(f"{name} = {value}" for name, value in _STORAGE.items())
STORAGE = f"ALTER TABLE delayed_queue SET ({_SET});"
NO_STORAGE = f"ALTER TABLE IF EXISTS delayed_queue RESET ({', '.join(_STORAGE)});"

# The columns with which a service in another language may have created the table.
SEED_COLUMNS = (
    "id", "pKey", "pKind", "payload", "scheduledAt", "scheduledAtInitially", "lockUuid",
    "createdAt",
)  # fmt: skip


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        TAKE_TURN,
        CreateModelOnce(
            name="Message",
            adopts=SEED_COLUMNS,
            fields=[
                ID,
                ("key", models.CharField(db_collation="C", db_column="pKey", max_length=200)),
                ("kind", models.CharField(db_column="pKind", max_length=100)),
                ("payload", models.BinaryField()),
                ("scheduled_at", instant("scheduledAt")),
                ("scheduled_at_initially", instant("scheduledAtInitially")),
                (
                    "lease_id",
                    models.CharField(blank=True, db_column="lockUuid", max_length=36, null=True),
                ),
                ("created_at", instant("createdAt")),
                ("attempts", models.IntegerField(db_default=0)),
                ("headers", models.JSONField(blank=True, null=True)),
                ("due_at", instant("dueAt", blank=True, null=True)),
                ("first_error", models.TextField(blank=True, db_column="firstError", null=True)),
                ("last_error", models.TextField(blank=True, db_column="lastError", null=True)),
                ("version_at", instant("versionAt", blank=True, null=True)),
                (
                    "group",
                    models.CharField(blank=True, db_collation="C", max_length=100, null=True),
                ),
                ("expires_at", instant("expiresAt", blank=True, null=True)),
                ("batch_id", models.BigIntegerField(blank=True, db_column="batchId", null=True)),
            ],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
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
                    LongNamedIndex(
                        condition=models.Q(("scheduled_at__isnull", False)),
                        fields=["kind", "scheduled_at", "id"],
                        name="delayed_queue__KindPlusScheduledAtIndex",
                    ),
                    LongNamedIndex(
                        condition=models.Q(("lease_id__isnull", False)),
                        fields=["lease_id", "id"],
                        name="delayed_queue__LockUuidPlusIdIndex",
                    ),
                    LongNamedIndex(
                        condition=models.Q(("group__isnull", False), ("lease_id__isnull", True)),
                        fields=["kind", "group", "scheduled_at", "id"],
                        name="delayed_queue__GroupPlusScheduledAtIndex",
                    ),
                    LongNamedIndex(
                        condition=models.Q(("group__isnull", False), ("lease_id__isnull", False)),
                        fields=["kind", "group", "scheduled_at", "id"],
                        name="delayed_queue__GroupPlusLeasedUntilIndex",
                    ),
                    LongNamedIndex(
                        condition=models.Q(
                            ("group__isnull", False),
                            ("lease_id__isnull", True),
                            ("scheduled_at__gt", models.F("scheduled_at_initially")),
                        ),
                        fields=["kind", "group", "lease_id", "scheduled_at", "id"],
                        name="delayed_queue__GroupPlusLockUuidIndex",
                    ),
                    models.Index(
                        condition=models.Q(("batch_id__isnull", False)),
                        fields=["batch_id", "id"],
                        name="message_of_batch",
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
                ID,
                ("kind", models.CharField(db_column="pKind", max_length=100)),
                ("key", models.CharField(db_collation="C", db_column="pKey", max_length=200)),
                ("payload", models.BinaryField()),
                ("headers", models.JSONField(blank=True, null=True)),
                ("attempts", models.IntegerField()),
                ("reason", models.TextField()),
                ("first_error", models.TextField(blank=True, db_column="firstError", null=True)),
                ("last_error", models.TextField(blank=True, db_column="lastError", null=True)),
                ("scheduled_at_initially", instant("scheduledAtInitially")),
                ("created_at", instant("createdAt")),
                ("died_at", instant("diedAt")),
                ("fingerprint", models.CharField(blank=True, db_default="", max_length=16)),
                (
                    "group",
                    models.CharField(blank=True, db_collation="C", max_length=100, null=True),
                ),
                (
                    "lease_id",
                    models.CharField(blank=True, db_column="lockUuid", max_length=36, null=True),
                ),
                ("batch_id", models.BigIntegerField(blank=True, db_column="batchId", null=True)),
            ],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "db_table": "delayed_queue_dead_letter",
                "permissions": [
                    ("redrive_deadletter", "Can redrive dead letters"),
                    ("drop_deadletter", "Can drop dead letters"),
                ],
                "default_permissions": ["view"],
                "indexes": [
                    models.Index(fields=["kind", "died_at", "id"], name="dead_letter_kind_died"),
                    models.Index(
                        models.Func(
                            models.F("kind"),
                            models.Value(""),
                            arg_joiner=" || ",
                            template="(%(expressions)s)",
                        ),
                        models.F("id"),
                        name="dead_letter_kind_id",
                    ),
                    models.Index(fields=["key"], name="dead_letter_key"),
                    models.Index(
                        fields=["fingerprint", "kind", "died_at", "id"], name="dead_letter_group"
                    ),
                    models.Index(
                        condition=models.Q(("group__isnull", False)),
                        fields=["kind", "group", "died_at"],
                        name="dead_letter_of_group",
                    ),
                    models.Index(
                        condition=models.Q(("batch_id__isnull", False)),
                        fields=["batch_id", "id"],
                        name="dead_letter_of_batch",
                    ),
                ],
            },
        ),
        migrations.RunSQL(STORAGE, reverse_sql=NO_STORAGE),
        CreateModelOnce(
            name="StoredBatch",
            fields=[
                ID,
                ("kind", models.CharField(db_column="pKind", max_length=100)),
                ("created_at", instant("createdAt")),
                ("closed_at", instant("closedAt", blank=True, null=True)),
                ("waits_for_dead", models.BooleanField(db_column="waitsForDead")),
                ("then_kind", models.CharField(db_column="thenKind", max_length=100)),
                (
                    "then_key",
                    models.CharField(db_collation="C", db_column="thenKey", max_length=200),
                ),
                ("then_payload", models.BinaryField(db_column="thenPayload")),
                ("then_headers", models.JSONField(blank=True, db_column="thenHeaders", null=True)),
                (
                    "then_group",
                    models.CharField(
                        blank=True,
                        db_collation="C",
                        db_column="thenGroup",
                        max_length=100,
                        null=True,
                    ),
                ),
                ("then_scheduled_at", instant("thenScheduledAt", blank=True, null=True)),
                ("then_expires_at", instant("thenExpiresAt", blank=True, null=True)),
                ("done", models.BigIntegerField(db_default=0)),
                ("dead", models.BigIntegerField(db_default=0)),
                ("dropped", models.BigIntegerField(db_default=0)),
                ("expired", models.BigIntegerField(db_default=0)),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "db_table": "delayed_queue_batch",
                "permissions": [("operate_batch", "Can cancel batches")],
                "default_permissions": ["view"],
            },
        ),
        CreateModelOnce(
            name="BulkRun",
            fields=[
                ID,
                ("action", models.CharField(max_length=10)),
                ("kind", models.CharField(db_column="pKind", max_length=100)),
                ("fingerprint", models.CharField(blank=True, max_length=16, null=True)),
                (
                    "group",
                    models.CharField(blank=True, db_collation="C", max_length=100, null=True),
                ),
                ("reason", models.TextField(blank=True, null=True)),
                ("key_from", models.TextField(blank=True, db_column="keyFrom", null=True)),
                ("key_before", models.TextField(blank=True, db_column="keyBefore", null=True)),
                ("pace", models.FloatField(blank=True, null=True)),
                ("limit", models.BigIntegerField(blank=True, db_column="most", null=True)),
                ("canary", models.IntegerField(db_default=0)),
                ("canary_deaths", models.IntegerField(db_column="canaryDeaths", db_default=1)),
                (
                    "canary_keys",
                    models.JSONField(
                        db_column="canaryKeys", db_default=models.Value({}, models.JSONField())
                    ),
                ),
                ("is_canary_over", models.BooleanField(db_column="isCanaryOver", db_default=False)),
                ("died_until", instant("diedUntil")),
                ("newest_id", models.BigIntegerField(db_column="newestId")),
                ("total", models.BigIntegerField()),
                ("is_total_cut", models.BooleanField(db_column="isTotalCut")),
                (
                    "last_died_at",
                    models.BigIntegerField(db_column="lastDiedAt", db_default=-(2**63)),
                ),
                ("last_id", models.BigIntegerField(db_column="lastId", db_default=0)),
                ("done", models.BigIntegerField(db_default=0)),
                ("skipped", models.BigIntegerField(db_default=0)),
                ("state", models.CharField(db_default="running", max_length=10)),
                ("failure", models.TextField(blank=True, db_default="")),
                ("note", models.TextField(blank=True, db_default="")),
                ("started_by", models.TextField(blank=True, db_column="startedBy", db_default="")),
                ("why", models.TextField(blank=True, db_default="")),
                ("created_at", instant("createdAt")),
                ("next_at", instant("nextAt")),
                ("ended_at", instant("endedAt", blank=True, null=True)),
            ],
            options={
                "verbose_name": "bulk run",
                "verbose_name_plural": "bulk runs",
                "db_table": "delayed_queue_bulk_run",
                "default_permissions": ["view"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "running")),
                        fields=["next_at", "id"],
                        name="bulk_run_next",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        models.F("kind"),
                        Coalesce("fingerprint", models.Value("")),
                        condition=models.Q(("state__in", ["running", "paused"])),
                        name="bulk_run_in_progress",
                    )
                ],
            },
        ),
        CreateModelOnce(
            name="Schedule",
            fields=[
                ID,
                ("kind", models.CharField(db_column="pKind", max_length=100)),
                (
                    "key_prefix",
                    models.CharField(
                        verbose_name="key prefix",
                        db_collation="C",
                        db_column="keyPrefix",
                        max_length=200,
                    ),
                ),
                ("queue", models.CharField(max_length=100)),
                (
                    "codec",
                    models.CharField(verbose_name="codec", db_default="json", max_length=100),
                ),
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
                ("last_tick", instant("lastTick", null=True)),
                ("installed_at", instant("installedAt", null=True)),
                ("interval", models.BigIntegerField(db_column="scheduleInterval", null=True)),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
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
        CreateModelOnce(
            name="ScheduleRun",
            fields=[
                ID,
                ("key", models.CharField(db_collation="C", max_length=200)),
                ("planned_at", instant("plannedAt")),
                ("started_at", instant("startedAt", null=True)),
                ("finished_at", instant("finishedAt")),
                ("outcome", models.CharField(max_length=10)),
                ("attempts", models.IntegerField()),
                ("worker", models.TextField()),
                (
                    "schedule",
                    models.ForeignKey(
                        db_column="scheduleId",
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="runs",
                        to="delayed_queue.schedule",
                    ),
                ),
            ],
            options={
                "db_table": "delayed_queue_schedule_run",
                "default_permissions": [],
                "indexes": [
                    models.Index(
                        fields=["schedule", "planned_at", "id"], name="schedule_run_planned"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("schedule", "key"), name="schedule_run_key")
                ],
            },
        ),
        CreateModelOnce(
            name="Worker",
            fields=[
                ID,
                ("name", models.TextField()),
                ("host", models.TextField(verbose_name="host")),
                ("pid", models.IntegerField()),
                ("process", models.IntegerField(db_default=0)),
                ("queues", models.JSONField()),
                ("version", models.TextField(verbose_name="version")),
                ("started_at", instant("startedAt")),
                ("heartbeat_at", instant("heartbeatAt")),
                ("in_flight", models.BigIntegerField(db_column="inFlight", db_default=0)),
                ("done", models.BigIntegerField(db_default=0)),
                ("failed", models.BigIntegerField(db_default=0)),
                ("dead", models.BigIntegerField(db_default=0)),
                ("lost", models.BigIntegerField(db_default=0)),
                ("rates", models.JSONField(db_default=models.Value({}, models.JSONField()))),
                ("holder", models.CharField(blank=True, db_default="", max_length=8)),
                ("scanned", models.TextField(blank=True, db_default="")),
                ("scan_seconds", models.FloatField(db_column="scanSeconds", db_default=0.0)),
                ("refused", models.JSONField(db_default=models.Value({}, models.JSONField()))),
                ("running", models.JSONField(db_default=models.Value({}, models.JSONField()))),
                ("slow", models.IntegerField(db_default=0)),
                ("busy", models.JSONField(db_default=models.Value({}, models.JSONField()))),
                ("threads", models.IntegerField(db_default=0)),
                ("memory", models.BigIntegerField(db_default=0)),
                ("command", models.CharField(blank=True, db_default="", max_length=10)),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "db_table": "delayed_queue_worker",
                "permissions": [("operate_worker", "Can drain, resume and restart workers")],
                "default_permissions": ["view"],
                "indexes": [
                    models.Index(fields=["heartbeat_at", "id"], name="worker_heartbeat"),
                    models.Index(fields=["holder", "id"], name="worker_holder"),
                ],
            },
        ),
        CreateModelOnce(
            name="Limit",
            fields=[
                ID,
                ("kind", models.CharField(db_column="pKind", max_length=100)),
                (
                    "group",
                    models.CharField(blank=True, db_collation="C", db_default="", max_length=100),
                ),
                ("paused_at", instant("pausedAt", blank=True, null=True)),
                ("paused_by", models.TextField(blank=True, db_column="pausedBy", db_default="")),
                ("reason", models.TextField(blank=True, db_default="")),
                ("is_ordered", models.BooleanField(db_column="isOrdered", db_default=False)),
                ("is_fair", models.BooleanField(db_column="isFair", db_default=True)),
                ("blocks_on_dead", models.BooleanField(db_column="blocksOnDead", db_default=False)),
                ("queue_interval", models.FloatField(db_column="queueInterval", null=True)),
                ("queue_burst", models.IntegerField(db_column="queueBurst", null=True)),
                ("declared", models.TextField(null=True)),
                ("concurrency", models.IntegerField(null=True)),
                ("weight", models.IntegerField(null=True)),
                ("interval", models.FloatField(null=True)),
                ("burst", models.IntegerField(null=True)),
                ("spent_until", models.FloatField(db_column="spentUntil", null=True)),
                ("resumed_at", instant("resumedAt", blank=True, null=True)),
            ],
            options={
                "db_table": "delayed_queue_limit",
                "permissions": [("pause_queue", "Can pause and resume queues")],
                "default_permissions": [],
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "group"), name="limit_kind_group")
                ],
            },
        ),
        CreateTableOfDays(
            name="Sample",
            by="minute",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "kind",
                        "minute",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("minute", models.IntegerField()),
                ("due", models.IntegerField(null=True)),
                ("scheduled", models.IntegerField(null=True)),
                ("leased", models.IntegerField(null=True)),
                ("dead", models.IntegerField(null=True)),
                ("late", models.IntegerField(null=True)),
                ("done", models.IntegerField(db_default=0)),
                ("failed", models.IntegerField(db_default=0)),
                ("died", models.IntegerField(db_default=0)),
                ("expired", models.IntegerField(null=True)),
                ("kind", models.CharField(db_collation="C", db_column="pKind", max_length=100)),
                ("times", CountsField(db_default=models.Value("{}"))),
                ("versions", models.TextField(null=True)),
            ],
            options={"db_table": "delayed_queue_sample", "default_permissions": []},
        ),
        migrations.CreateModel(
            name="QueueOverview",
            fields=[],
            options={
                "verbose_name": "overview of the queues",
                "verbose_name_plural": " Queues",
                "proxy": True,
                "default_permissions": [],
                "indexes": [],
                "constraints": [],
            },
            bases=("delayed_queue.message",),
        ),
        CreateFunctions("functions_0001.sql"),
        END_TURN,
    ]
