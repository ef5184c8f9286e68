"""The app: registers the system checks and imports the handlers of the installed apps."""

from __future__ import annotations

import logging
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from django.apps import AppConfig, apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.autoreload import autoreload_started
from django.utils.module_loading import module_has_submodule

from delayed_queue.conf import SETTING, QueueSettings, find_problems, get_settings
from delayed_queue.handlers import registry
from delayed_queue.observe import signals
from delayed_queue.observe.logs import log

_WATCH: Final = "delayed_queue.watch"
_NO_DRIVER: Final = (
    "psycopg cannot be loaded ({error}): pip install 'psycopg[binary]', or install libpq."
)


def _demand_driver() -> None:
    """Raise before models do: without psycopg nothing of Django's works, and no command either."""
    try:
        import_module("psycopg")
    except ImportError as error:
        said = _NO_DRIVER.format(error=str(error).partition("\n")[0].rstrip("."))
        # Of this one people ask what is wrong.
        if sys.argv[1:2] == ["queuepipeline"]:
            raise SystemExit(said) from None
        raise ImproperlyConfigured(said) from error


_demand_driver()


class DelayedQueueConfig(AppConfig):
    name = "delayed_queue"
    verbose_name = "Delayed queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.conf import settings

        import_module("delayed_queue.checks")
        signals.connect()
        # With wrong settings the defaults do: the system check must get to say what is wrong.
        if find_problems(getattr(settings, SETTING, {})):
            module = QueueSettings().HANDLERS_MODULE
        else:
            module = get_settings().HANDLERS_MODULE
        registry.failures = import_modules(module)


def import_modules(name: str) -> dict[str, str]:
    """Import the module of that name of each app; return a sentence for each that failed.

    Web processes and ``migrate`` go on: they do not call what is in it. A system check and workers
    repeat the sentences.
    """
    failures: dict[str, str] = {}
    files: list[Path] = []
    for app in apps.get_app_configs():
        if not module_has_submodule(app.module, name):
            continue
        path = f"{app.name}.{name}"
        try:
            import_module(path)
        # The caller's code: it may raise anything.
        except Exception as error:
            places = _places_of(error)
            files += [file for file, _ in places]
            failures[path] = _sentence(path, error, places)
    for path, failure in failures.items():
        log(logging.ERROR, "handlers_failed", module=path, error=failure)
    _watch(files)
    return failures


def _places_of(error: Exception) -> list[tuple[Path, int | None]]:
    """Return the files and lines through which the import went, down to where it failed."""
    places = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    return [(Path(file), line) for file, line in places if Path(file).is_file()]


def _sentence(path: str, error: Exception, places: list[tuple[Path, int | None]]) -> str:
    said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(".")
    where = " ({}, line {})".format(*places[-1]) if places else ""  # none in a zip
    return f"{path} cannot be imported: {said}{where}."


def _watch(files: list[Path]) -> None:
    """Have ``runserver`` start anew when they change; it watches by itself what was imported."""

    def add(sender: Any, **kwargs: Any) -> None:
        sender.extra_files.update(files)

    if files:
        autoreload_started.disconnect(dispatch_uid=_WATCH)
        autoreload_started.connect(add, weak=False, dispatch_uid=_WATCH)
