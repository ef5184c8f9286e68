"""The app: it imports the handlers of the installed apps, and the system checks."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.autoreload import autoreload_started
from django.utils.module_loading import module_has_submodule
from django.utils.translation import gettext_lazy

from delayed_queue.conf import SETTING, QueueSettings, find_problems, get_settings, register_check
from delayed_queue.handlers import registry
from delayed_queue.logs import log
from delayed_queue.observe import signals

_WATCH: Final = "delayed_queue.watch"
_NO_DRIVER: Final = (
    "psycopg cannot be loaded ({error}): pip install 'psycopg[binary]', or install libpq."
)


def _demand_driver() -> None:
    """Refuse to start without psycopg, with a clearer error than that of the models."""
    try:
        import_module("psycopg")
    except ImportError as error:
        said = _NO_DRIVER.format(error=str(error).partition("\n")[0].rstrip("."))
        # This command reports an error of the environment without a traceback.
        if sys.argv[1:2] == ["queuepipeline"]:
            raise SystemExit(said) from None
        raise ImproperlyConfigured(said) from error


_demand_driver()


def _check_cron(entries: Any) -> None:
    # Imported on first use: most projects declare no schedules in their settings.
    from delayed_queue.cron.registry import entries_of

    entries_of(entries)


register_check("CRON", _check_cron)


class DelayedQueueConfig(AppConfig):
    name = "delayed_queue"
    verbose_name = gettext_lazy("Delayed queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        signals.connect()
        # With wrong settings the default is enough, so that the system check can report them.
        if find_problems(getattr(settings, SETTING, {})):
            module = QueueSettings().HANDLERS_MODULE
        else:
            module = get_settings().HANDLERS_MODULE
        registry.failures = import_modules(module)
        import_module("delayed_queue.checks")


def import_modules(name: str) -> dict[str, str]:
    """Import the module of that name of each app; return a sentence per failed module.

    Web processes and ``migrate`` continue, because they call no handlers. A system check and the
    workers report the sentences.
    """
    failures: dict[str, str] = {}
    files: list[Path] = []
    for app in apps.get_app_configs():
        if not module_has_submodule(app.module, name):
            continue
        path = f"{app.name}.{name}"
        try:
            import_module(path)
        # Foreign code may raise anything.
        except Exception as error:
            places = _places_of(error)
            files += [file for file, _ in places]
            failures[path] = _sentence(path, error, places)
    for path, failure in failures.items():
        log(logging.ERROR, "handlers_failed", module=path, error=failure)
    _watch(files)
    return failures


def _places_of(error: Exception) -> list[tuple[Path, int | None]]:
    """Return the files and lines of the failed import, the innermost last."""
    places = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    return [(Path(file), line) for file, line in places if Path(file).is_file()]


# Where Python and packages are installed.
_INSTALLED: Final = re.compile(r"[/\\](?:lib[/\\]python3\.\d+|site-packages|dist-packages)[/\\]")


def _sentence(path: str, error: Exception, places: list[tuple[Path, int | None]]) -> str:
    said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(".")
    # The last line of the project's own code, below which libraries raise.
    own = [each for each in places if not _INSTALLED.search(str(each[0]))] or places
    where = " ({}, line {})".format(*own[-1]) if own else ""  # no files in a zip
    return f"{path} cannot be imported: {said}{where}."


def _watch(files: list[Path]) -> None:
    """Let ``runserver`` restart when these files change; it watches imported ones by itself."""

    def add(sender: Any, **kwargs: Any) -> None:
        sender.extra_files.update(files)

    if files:
        autoreload_started.disconnect(dispatch_uid=_WATCH)
        autoreload_started.connect(add, weak=False, dispatch_uid=_WATCH)
