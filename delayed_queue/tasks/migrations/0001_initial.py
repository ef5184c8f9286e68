"""Results of tasks, partitioned by the day in their ids, and the priorities in use."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

import delayed_queue.db.fields
from delayed_queue.migrations._operations import END_TURN, TAKE_TURN, CreateModelOnce

# What has no partition of its own: results of days that were dropped, or are not made yet.
_REST = """
CREATE TABLE delayed_queue_task_result_rest PARTITION OF delayed_queue_task_result DEFAULT
"""


class CreatePartitioned(CreateModelOnce):
    """Create the table as partitioned by its ids, with one partition for all that has no other."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: Any
    ) -> None:
        editor: Any = schema_editor
        plain, deferred = editor.sql_create_table, len(editor.deferred_sql)
        editor.sql_create_table = f"{plain} PARTITION BY RANGE (id)"
        try:
            super().database_forwards(app_label, schema_editor, *states)
        finally:
            editor.sql_create_table = plain
        if len(editor.deferred_sql) > deferred:  # it was made here: its indexes are to come
            schema_editor.execute(_REST)


class Migration(migrations.Migration):
    initial = True

    dependencies = [("delayed_queue", "0001_initial")]

    operations = [
        TAKE_TURN,
        CreatePartitioned(
            name="TaskResult",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("task", models.TextField()),
                ("backend", models.TextField()),
                ("kind", models.TextField(db_column="pKind")),
                ("key", models.TextField(db_column="pKey", null=True)),
                ("payload", models.BinaryField()),
                (
                    "status",
                    models.TextField(
                        blank=True,
                        choices=[
                            ("", "unfinished"),
                            ("FAILED", "failed"),
                            ("SUCCESSFUL", "successful"),
                        ],
                        db_default="",
                    ),
                ),
                (
                    "enqueued_at",
                    delayed_queue.db.fields.EpochMillisecondField(db_column="enqueuedAt"),
                ),
                (
                    "scheduled_at",
                    delayed_queue.db.fields.EpochMillisecondField(db_column="scheduledAt"),
                ),
                (
                    "started_at",
                    delayed_queue.db.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="startedAt", null=True
                    ),
                ),
                (
                    "last_attempted_at",
                    delayed_queue.db.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="lastAttemptedAt", null=True
                    ),
                ),
                (
                    "finished_at",
                    delayed_queue.db.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="finishedAt", null=True
                    ),
                ),
                (
                    "cancelled_at",
                    delayed_queue.db.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="cancelledAt", null=True
                    ),
                ),
                ("return_value", models.JSONField(db_column="returnValue", null=True)),
                ("errors", models.JSONField(db_default=models.Value([], models.JSONField()))),
                (
                    "worker_ids",
                    models.JSONField(
                        db_column="workerIds", db_default=models.Value([], models.JSONField())
                    ),
                ),
                ("metadata", models.JSONField(db_default=models.Value({}, models.JSONField()))),
            ],
            options={
                "verbose_name": "task",
                "db_table": "delayed_queue_task_result",
                "permissions": [
                    ("cancel_task", "Can cancel tasks"),
                    ("rerun_task", "Can retry tasks, and run them again"),
                ],
                "default_permissions": ["view"],
                "indexes": [
                    models.Index(fields=["task", "id"], name="task_result_task"),
                    models.Index(
                        condition=models.Q(("status", "FAILED")),
                        fields=["id"],
                        name="task_result_failed",
                    ),
                ],
            },
        ),
        CreateModelOnce(
            name="TaskPriority",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.CharField(max_length=100)),
                ("priority", models.SmallIntegerField()),
            ],
            options={
                "db_table": "delayed_queue_task_priority",
                "default_permissions": [],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("queue", "priority"), name="task_priority_queue"
                    )
                ],
            },
        ),
        END_TURN,
    ]
