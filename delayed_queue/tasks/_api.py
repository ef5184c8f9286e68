"""Django's API of tasks: its own since 6.0, the package ``django-tasks`` before."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import django
from django.utils.log import RequireDebugFalse, RequireDebugTrue

from delayed_queue.exceptions import ExtraNotInstalled

if TYPE_CHECKING or django.VERSION < (6, 0):
    try:
        from django_tasks import signals, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import (
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
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus, task
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.utils.json import normalize_json

if TYPE_CHECKING:
    AnyTask = Task[Any, Any]
    AnyResult = TaskResult[Any]
else:
    AnyTask, AnyResult = Task, TaskResult

__all__ = [
    "AnyResult", "AnyTask", "BaseTaskBackend", "InvalidTask", "Task", "TaskContext", "TaskError",
    "TaskResult", "TaskResultDoesNotExist", "TaskResultMismatch", "TaskResultStatus",
    "have_listeners", "normalize_json", "signals", "task", "task_backends",
]  # fmt: skip

_BY_DEBUG: Final = (RequireDebugFalse, RequireDebugTrue)
# Django's own receivers, which only log.
_LOGGING: Final = [[id(signals.log_task_started)], [id(signals.log_task_finished)]]


def have_listeners() -> bool:
    """Return whether a receiver, or a log handler, takes the start or end of a task."""
    receivers = signals.task_started.receivers, signals.task_finished.receivers
    if [[each[0][0] for each in some] for some in receivers] == _LOGGING:
        return _is_written()
    return any(receivers)


def _is_written() -> bool:
    """Return whether a log handler accepts records of Django's receivers at INFO.

    By default Django's logger is at that level, and its only handler ignores it unless DEBUG. To
    format two lines per task for that takes several times as long as the rest of a run.
    """
    logger: logging.Logger | None = signals.logger
    if logger is None or not logger.isEnabledFor(logging.INFO):
        return False
    while logger is not None:
        if any(map(_may_take, logger.handlers)):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _may_take(handler: logging.Handler) -> bool:
    # Django's filters depend on the settings alone. Other filters need the record.
    known: list[Any] = [each for each in handler.filters if isinstance(each, _BY_DEBUG)]
    return handler.level <= logging.INFO and all(each.filter(None) for each in known)
