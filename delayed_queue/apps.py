"""The app: registers the system checks and imports the handlers of the installed apps."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules

from delayed_queue import logs
from delayed_queue.conf import SETTING, QueueSettings, find_problems, get_settings


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
        autodiscover_modules(module)
