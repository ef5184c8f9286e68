"""Django's API of tasks: its own since 6.0, the package ``django-tasks`` before."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import django
from django.utils.log import RequireDebugFalse, RequireDebugTrue

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
    "have_listeners",
    "normalize_json",
    "signals",
    "task",
    "task_backends",
]


# Django's own receivers, which only log.
_LOGGING: Final = frozenset({id(signals.log_task_started), id(signals.log_task_finished)})


def have_listeners() -> bool:
    """Return whether a receiver, or a log handler, takes the start or end of a task."""
    started, finished = signals.task_started.receivers, signals.task_finished.receivers
    if (
        len(started) == len(finished) == 1
        and started[0][0][0] in _LOGGING
        and finished[0][0][0] in _LOGGING
    ):
        return _log.is_written()
    return bool(started or finished)


class _Log:
    """Finds out whether a log handler accepts records of Django's receivers at INFO.

    By default Django's logger is at that level, and its only handler ignores it unless DEBUG. To
    format two lines per task for that takes several times as long as the rest of a run.
    """

    _handlers: Sequence[logging.Handler] = ()
    _until = 0.0
    _is_taken = False

    def is_written(self) -> bool:
        logger = signals.logger
        if not logger.isEnabledFor(logging.INFO):
            return False
        handlers, now = _handlers_of(logger), time.monotonic()
        # Levels and filters of the same handlers are read once a second.
        if handlers != self._handlers or now > self._until:
            self._handlers, self._until = handlers, now + 1
            self._is_taken = any(map(_may_take, handlers))
        return self._is_taken


def _handlers_of(logger: logging.Logger) -> list[logging.Handler]:
    handlers = list(logger.handlers)
    while logger.propagate and logger.parent is not None:
        logger = logger.parent
        handlers += logger.handlers
    return handlers


def _may_take(handler: logging.Handler) -> bool:
    return handler.level <= logging.INFO and all(map(_may_pass, handler.filters))


def _may_pass(given: Any) -> bool:
    # Django's filters depend on the settings alone. Other filters need the record.
    is_known = isinstance(given, RequireDebugTrue | RequireDebugFalse)
    return not is_known or given.filter(None)


_log: Final = _Log()
