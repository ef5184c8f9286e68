"""The app: registers the system checks and imports the handlers of the installed apps."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules

from delayed_queue import logs
from delayed_queue.conf import SETTING, QueueSettings, find_problems, get_settings
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import Handler, Source, registry


class DelayedQueueConfig(AppConfig):
    name = "delayed_queue"
    verbose_name = "Delayed queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.conf import settings

        import_module("delayed_queue.checks")
        logs.connect()
        # With wrong settings the defaults do: the system check must get to say what is wrong.
        if find_problems(getattr(settings, SETTING, {})):
            module = QueueSettings().HANDLERS_MODULE
        else:
            module = get_settings().HANDLERS_MODULE
            if get_settings().CALLBACKS.ENABLED:
                registry.add_source(_source())
        autodiscover_modules(module)


def _source() -> Source:
    bell = import_module("delayed_queue.topics.kinds").BELL  # not before the models
    return Source("callbacks", _callbacks, bell, _load_client)


def _load_client() -> None:
    try:
        import_module("delayed_queue.callbacks.source")
    except ImportError as error:
        raise InvalidConfiguration(
            f"Callbacks are enabled, but cannot be sent: {error}. Install "
            "django-delayed-queue[callbacks] where workers run, or name their queues with --queue."
        ) from error


def _callbacks(using: str) -> Iterable[Handler]:
    # Only where a worker asks: web processes need no client.
    found: Iterable[Handler] = import_module("delayed_queue.callbacks.source").handlers_of_topics(
        using
    )
    return found
