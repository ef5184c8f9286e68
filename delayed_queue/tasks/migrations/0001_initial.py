"""Results of tasks, partitioned by the day in their ids, and the priorities in use."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from delayed_queue.fields import EpochMillisecondField
from delayed_queue.migrations._operations import (
    END_TURN,
    TAKE_TURN,
    CreateModelOnce,
    CreateTableOfDays,
)

STATUSES = [("", "unfinished"), ("FAILED", "failed"), ("SUCCESSFUL", "successful")]


def _moment(column: str) -> Any:
    field: Any = EpochMillisecondField
    return field(db_column=column, null=True)


def _json(default: Any, **options: Any) -> models.JSONField[Any, Any]:
    return models.JSONField(db_default=models.Value(default, models.JSONField()), **options)


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
                ("status", models.TextField(blank=True, choices=STATUSES, db_default="")),
                ("enqueued_at", EpochMillisecondField(db_column="enqueuedAt")),
                ("scheduled_at", EpochMillisecondField(db_column="scheduledAt")),
                ("started_at", _moment("startedAt")),
                ("last_attempted_at", _moment("lastAttemptedAt")),
                ("finished_at", _moment("finishedAt")),
                ("cancelled_at", _moment("cancelledAt")),
                ("return_value", models.JSONField(db_column="returnValue", null=True)),
                ("errors", _json([])),
                ("worker_ids", _json([], db_column="workerIds")),
                ("metadata", _json({})),
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
