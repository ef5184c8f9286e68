"""Django's API of tasks, wherever it comes from: the one module that asks which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django

from delayed_queue.exceptions import ExtraNotInstalled

if TYPE_CHECKING or django.VERSION < (6, 0):
    try:
        from django_tasks import signals, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import (
            TASK_MAX_PRIORITY,
            TASK_MIN_PRIORITY,
            Task,
            TaskContext,
            TaskError,
            TaskResult,
            TaskResultStatus,
            task,
        )
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
        from django_tasks.utils import normalize_json
    except ImportError as error:
        raise ExtraNotInstalled(
            f"Django {django.__version__} has no tasks of its own: install "
            "django-delayed-queue[tasks], which brings django-tasks."
        ) from error
else:
    from django.tasks import signals, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import (
        TASK_MAX_PRIORITY,
        TASK_MIN_PRIORITY,
        Task,
        TaskContext,
        TaskError,
        TaskResult,
        TaskResultStatus,
        task,
    )
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.utils.json import normalize_json

if TYPE_CHECKING:
    AnyTask = Task[Any, Any]
    AnyResult = TaskResult[Any]
else:
    AnyTask, AnyResult = Task, TaskResult

__all__ = [
    "TASK_MAX_PRIORITY",
    "TASK_MIN_PRIORITY",
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "normalize_json",
    "signals",
    "task",
    "task_backends",
]
