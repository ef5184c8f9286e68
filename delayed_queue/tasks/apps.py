"""The app of the tasks: serves the queues that ``TASKS`` declares."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import django
from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks
from django.core.signals import setting_changed
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from delayed_queue.apps import import_modules
from delayed_queue.checks import check_alias
from delayed_queue.handlers import registry
from delayed_queue.queue.hooks import hooks

_TASKS: Final = "TASKS"


class TasksConfig(AppConfig):
    name = "delayed_queue.tasks"
    label = "delayed_queue_tasks"
    verbose_name = _("Delayed queue: tasks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register handlers of the queues that TASKS declares."""
        if getattr(settings, _TASKS, None):
            checks.register(check_backends)
        _serve()
        setting_changed.connect(_serve_again, dispatch_uid="delayed_queue.tasks.apps")


def _module(name: str) -> Any:
    """Import a module late: where TASKS is empty, there may be no tasks to import."""
    return import_module(f"delayed_queue.tasks.{name}")


def _serve() -> None:
    """Serve the queues of the backends in ``TASKS``, and import the tasks of apps."""
    configured = getattr(settings, _TASKS, None)
    if not configured:
        return
    if problem := _problem_with(configured):
        registry.failures[_TASKS] = problem
        return
    backends = [backend for _, backend in _module("backend").declared()]
    if problems := [each.problem for each in backends if each.problem]:
        # Workers refuse to start, and the core's check reports the problems.
        registry.failures[_TASKS] = " ".join(problems)
    elif backends:
        _module("serving").serve_declared()
        _module("keeping").watch_workers()
        hooks.remote_calls = _module("remote").OpenTasks()
        # The schedules of tasks are declared, and errors of these modules reported, at the start.
        registry.failures |= import_modules("tasks")


def _problem_with(configured: Any) -> str:
    """Return why no backends can be made of ``TASKS``."""
    if not isinstance(configured, dict):
        return f"TASKS must be a dict, not a {type(configured).__name__}."
    for alias, entry in configured.items():
        path = entry.get("BACKEND") if isinstance(entry, dict) else None
        if not isinstance(path, str):
            return f"TASKS[{alias!r}] must be a dict with the path of a class as 'BACKEND'."
        try:
            import_string(path)
        except ImportError as error:
            said = str(error).removesuffix(".")
            return f"TASKS[{alias!r}]: 'BACKEND' cannot be imported: {said}."
    return ""


def _serve_again(*, setting: str, **kwargs: object) -> None:
    if setting == _TASKS:
        registry.failures.pop(_TASKS, None)
        _module("serving").stop_serving()
        _serve()


# System checks: E009 to E011, W010


def check_backends(**kwargs: Any) -> list[checks.CheckMessage]:
    """Check the backends of ``TASKS``, unless E006 reports that they cannot be made."""
    if _TASKS in registry.failures:
        return []
    found: list[checks.CheckMessage] = []
    # If the app is missing, the core reports that.
    is_installed = apps.is_installed(TasksConfig.name)
    for backend in _module("_api").task_backends.all():
        if django.VERSION < (6, 0):  # later versions do this themselves
            found += backend.check()
        if is_installed and isinstance(backend, _module("backend").DelayedQueueBackend):
            found += _problems_of_queues(f"TASKS[{backend.alias!r}]", backend.queues)
            found += _problems_of_database(backend)
    return found


def _problems_of_database(backend: Any) -> Iterator[checks.CheckMessage]:
    alias, setting = backend.settings.database, f"TASKS[{backend.alias!r}]['OPTIONS']['DATABASE']"
    if alias in settings.DATABASES:
        yield from check_alias(alias, setting, "delayed_queue_tasks.TaskResult")
        return
    yield checks.Error(
        f"{setting} is {alias!r}, which is not in DATABASES.",
        hint=f"Name one of {', '.join(settings.DATABASES)}.",
        id="delayed_queue.E010",
    )


def _problems_of_queues(where: str, queues: set[str]) -> Iterator[checks.CheckMessage]:
    if not queues:
        yield checks.Error(
            f"{where}['QUEUES'] is empty, so workers would serve no queue.",
            hint="Name the queues of tasks, as in ['default', 'mail'].",
            id="delayed_queue.E011",
        )
    topics = getattr(settings, "DELAYED_QUEUE", {}).get("API", {}).get("TOPICS", ())
    for queue in sorted(queues):
        if queue in topics:
            yield checks.Warning(
                f"DELAYED_QUEUE['API']['TOPICS'] has {queue!r}, a queue of {where}: "
                "callers that may add jobs to it can enqueue any task.",
                hint="Remove it. Callers enqueue tasks with http=True by POST /v1/tasks.",
                id="delayed_queue.W010",
            )
        if queue in registry and not _module("serving").is_served(queue):
            yield checks.Error(
                f"{where} declares the queue {queue!r}, which {registry.get(queue).path} handles.",
                hint="Give tasks a queue of their own, or remove the @handler.",
                id="delayed_queue.E009",
            )
