"""The application's own functions, by their paths, in executors that have booted nothing."""

from __future__ import annotations

import importlib
import os
import sys
from operator import attrgetter
from typing import Any, Final

from delayed_queue.exceptions import InvalidConfiguration

_SETTINGS: Final = "DJANGO_SETTINGS_MODULE"


def load_application(path: str) -> Any:
    """Return what the path names, after Django was set up where there are settings for it."""
    if _SETTINGS in os.environ:
        setup_django()
    return load(path)


def load(path: str) -> Any:
    """Return what ``package.module:name`` names."""
    module, _, name = path.partition(":")
    try:
        return attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfiguration(
            f"{path!r} cannot be loaded: {error}. Write package.module:function."
        ) from error


def setup_django() -> None:
    """Make Django's models usable in this process: an executor's worker has not booted it."""
    if _SETTINGS not in os.environ:
        raise InvalidConfiguration(
            "DJANGO_SETTINGS_MODULE is not set in the executors; say it with "
            "--conf spark.executorEnv.DJANGO_SETTINGS_MODULE=…"
        )
    # By name, because this side of the package imports no Django where none is wanted.
    importlib.import_module("django").setup()


def close_connections() -> None:
    """Close what the application opened by Django: an executor's process lives on, unused."""
    if "django.db" in sys.modules:
        sys.modules["django.db"].connections.close_all()
