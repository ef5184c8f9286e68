"""The app of the tasks: serves the queues that ``TASKS`` declares."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import django
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
        """Register handlers of the declared queues; nothing where none is declared."""
        if django.VERSION < (6, 0) and getattr(settings, "TASKS", None):
            register(check_backends)
        _serve()
        setting_changed.connect(_serve_again, dispatch_uid="delayed_queue.tasks.apps")


def check_backends(**kwargs: Any) -> list[CheckMessage]:
    """Have the backends of ``TASKS`` checked, as Django does from 6.0 on."""
    if _TASKS in registry.failures:
        return []  # E006 comes first: the backends may not be made of this setting
    from delayed_queue.tasks._api import task_backends

    return [each for backend in task_backends.all() for each in backend.check(**kwargs)]


def _serve() -> None:
    """Have workers serve the queues of the backends in ``TASKS``, and import the tasks of apps."""
    configured = getattr(settings, "TASKS", None)
    if not configured:
        return
    if problem := _problem_with(configured):
        registry.failures[_TASKS] = problem
        return
    serving = import_module("delayed_queue.tasks.serving")
    if any(map(serving.is_ours, configured.values())):
        problems = [backend.problem for _, backend in serving.declared() if backend.problem]
        if problems:
            # Workers refuse to start, and the core's check repeats the sentences.
            registry.failures[_TASKS] = " ".join(problems)
            return
        serving.serve_declared()
        serving.watch_workers()
        hooks.remote_calls = import_module("delayed_queue.tasks.results").OpenTasks()
        # For their schedules, and so that what does not import is said at the start.
        registry.failures |= import_modules("tasks")


def _problem_with(configured: Any) -> str:
    """Return a sentence about a ``TASKS`` of which no backends can be made."""
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
        import_module("delayed_queue.tasks.serving").forget_declared()
        _serve()
