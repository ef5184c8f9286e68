"""Results of tasks, partitioned by the day in their ids, and the priorities in use."""

from __future__ import annotations

from django.db import migrations, models

import delayed_queue.fields
from delayed_queue.migrations._operations import (
    END_TURN,
    TAKE_TURN,
    CreateModelOnce,
    CreateTableOfDays,
)


class Migration(migrations.Migration):
    initial = True

    dependencies = [("delayed_queue", "0001_initial")]

    operations = [
        TAKE_TURN,
        CreateTableOfDays(
            name="TaskResult",
            by="id",
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
                    delayed_queue.fields.EpochMillisecondField(db_column="enqueuedAt"),
                ),
                (
                    "scheduled_at",
                    delayed_queue.fields.EpochMillisecondField(db_column="scheduledAt"),
                ),
                (
                    "started_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="startedAt", null=True
                    ),
                ),
                (
                    "last_attempted_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="lastAttemptedAt", null=True
                    ),
                ),
                (
                    "finished_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
                        db_column="finishedAt", null=True
                    ),
                ),
                (
                    "cancelled_at",
                    delayed_queue.fields.EpochMillisecondField(  # type: ignore[misc]
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
                "verbose_name_plural": "tasks",
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
                    models.Index(
                        condition=models.Q(("status", "FAILED")),
                        fields=["task", "id"],
                        name="task_result_task_failed",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TaskUnderWay",
            fields=[],
            options={
                "verbose_name": "task under way",
                "verbose_name_plural": "tasks under way",
                "proxy": True,
                "default_permissions": [],
                "indexes": [],
                "constraints": [],
            },
            bases=("delayed_queue.message",),
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
