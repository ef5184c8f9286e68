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
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule
from django.utils.translation import gettext_lazy

from delayed_queue.conf import register_check
from delayed_queue.handlers import registry
from delayed_queue.logs import log
from delayed_queue.observe import signals

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
        registry.failures = import_modules("handlers")
        import_module("delayed_queue.checks")


def import_modules(name: str) -> dict[str, str]:
    """Import the module of that name of each app; return a sentence per failed module.

    Web processes and ``migrate`` continue, because they call no handlers. A system check and the
    workers report the sentences.
    """
    failures: dict[str, str] = {}
    for app in apps.get_app_configs():
        if not module_has_submodule(app.module, name):
            continue
        path = f"{app.name}.{name}"
        try:
            import_module(path)
        # Foreign code may raise anything.
        except Exception as error:
            failures[path] = _sentence(path, error)
    for path, failure in failures.items():
        log(logging.ERROR, "handlers_failed", module=path, error=failure)
    return failures


# Where Python and packages are installed.
_INSTALLED: Final = re.compile(r"[/\\](?:lib[/\\]python3\.\d+|site-packages|dist-packages)[/\\]")


def _sentence(path: str, error: Exception) -> str:
    said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(".")
    places = [(each.filename, each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    places = [each for each in places if Path(each[0]).is_file()]
    # The last line of the project's own code, below which libraries raise.
    own = [each for each in places if not _INSTALLED.search(each[0])] or places
    where = " ({}, line {})".format(*own[-1]) if own else ""  # no files in a zip
    return f"{path} cannot be imported: {said}{where}."
