"""The app of the tasks: serves the queues that ``TASKS`` declares."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, register
from django.core.signals import setting_changed
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from delayed_queue.apps import import_modules
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
        if getattr(settings, "TASKS", None):
            register(check_backends)
        _serve()
        setting_changed.connect(_serve_again, dispatch_uid="delayed_queue.tasks.apps")


def check_backends(**kwargs: Any) -> list[CheckMessage]:
    """Check the backends of ``TASKS``, unless E006 reports that they cannot be made."""
    if _TASKS in registry.failures:
        return []
    return list(import_module("delayed_queue.tasks.checks").problems())


def _serve() -> None:
    """Serve the queues of the backends in ``TASKS``, and import the tasks of apps."""
    configured = getattr(settings, "TASKS", None)
    if not configured:
        return
    if problem := _problem_with(configured):
        registry.failures[_TASKS] = problem
        return
    # Not imported before: where TASKS is empty, there may be no tasks to import.
    declared, serving, keeping, remote = (
        import_module(f"delayed_queue.tasks.{name}")
        for name in ("declared", "serving", "keeping", "remote")
    )
    backends = [backend for _, backend in declared.declared()]
    if problems := [each.problem for each in backends if each.problem]:
        # Workers refuse to start, and the core's check reports the problems.
        registry.failures[_TASKS] = " ".join(problems)
    elif backends:
        serving.serve_declared()
        keeping.watch_workers()
        hooks.remote_calls = remote.OpenTasks()
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
    if setting == "TASKS":
        registry.failures.pop(_TASKS, None)
        import_module("delayed_queue.tasks.serving").stop_serving()
        _serve()
