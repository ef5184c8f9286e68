"""Django's API of tasks, wherever it comes from: the one module that asks which."""

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
    "listens",
    "normalize_json",
    "signals",
    "task",
    "task_backends",
]


# Django's own receivers, which only log.
_LOGGING: Final = frozenset({id(signals.log_task_started), id(signals.log_task_finished)})


def listens(signal: Any) -> bool:
    """Return whether anybody would notice it: Django's own receiver only logs, if at all."""
    receivers = signal.receivers
    if len(receivers) == 1 and receivers[0][0][0] in _LOGGING:
        return _log.is_written(time.monotonic())
    return bool(receivers)


def have_listeners(now: float) -> bool:
    """Return whether anybody would notice that a task starts or ends, at that monotonic time."""
    started, finished = signals.task_started.receivers, signals.task_finished.receivers
    if (
        len(started) == len(finished) == 1
        and started[0][0][0] in _LOGGING
        and finished[0][0][0] in _LOGGING
    ):
        return _log.is_written(now)
    return listens(signals.task_started) or listens(signals.task_finished)


class _Log:
    """Whether a handler takes what is logged at INFO: asked again where others handle it now.

    By default Django's logger takes it, and its handler under DEBUG alone: each task would have two
    lines made that nobody sees, which takes several times as long as all else about it.
    """

    _handlers: Sequence[logging.Handler] = ()
    _until = 0.0
    _answer = False

    def is_written(self, now: float) -> bool:
        logger = signals.logger
        return logger.isEnabledFor(logging.INFO) and self._is_taken(_handlers_of(logger), now)

    def _is_taken(self, handlers: list[logging.Handler], now: float) -> bool:
        # Their levels and filters are looked at once a second.
        if handlers != self._handlers or now > self._until:
            self._handlers, self._until = handlers, now + 1
            self._answer = any(map(_may_take, handlers))
        return self._answer


def _handlers_of(logger: logging.Logger) -> list[logging.Handler]:
    handlers = list(logger.handlers)
    while logger.propagate and logger.parent is not None:
        logger = logger.parent
        handlers += logger.handlers
    return handlers


def _may_take(handler: logging.Handler) -> bool:
    return handler.level <= logging.INFO and all(map(_may_pass, handler.filters))


def _may_pass(given: Any) -> bool:
    # Those of Django go by the settings and look at no record; of others nobody knows.
    is_known = isinstance(given, RequireDebugTrue | RequireDebugFalse)
    return not is_known or given.filter(None)


_log: Final = _Log()
