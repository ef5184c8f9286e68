"""The app of the HTTP service: topics and jobs, the API, tokens and callbacks."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from django.apps import AppConfig
from django.conf import settings

from delayed_queue.conf import SETTING, find_problems
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import Handler, Source, registry
from delayed_queue.http.conf import callback_settings
from delayed_queue.queue.hooks import hooks


class HttpConfig(AppConfig):
    name = "delayed_queue.http"
    label = "delayed_queue_http"
    verbose_name = "Delayed queue: jobs over HTTP"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, what holds jobs, and callbacks as a source of handlers."""
        import_module("delayed_queue.http.checks")
        has_problems = find_problems(getattr(settings, SETTING, {}))  # for the check to say
        if not has_problems and callback_settings().ENABLED:
            registry.add_source(_source())
        _add_hooks()


def _add_hooks() -> None:
    from delayed_queue.http.jobs.dead import JobsGuard, is_topic
    from delayed_queue.http.jobs.kinds import KIND_FAMILY

    hooks.redrive_guards.append(JobsGuard())
    hooks.kind_family = KIND_FAMILY
    hooks.is_queue.append(is_topic)


def _source() -> Source:
    wake_channel = import_module(
        "delayed_queue.http.jobs.kinds"
    ).WAKE_CHANNEL  # not before the models
    return Source("callbacks", _callbacks, wake_channel, _load_client)


def _load_client() -> None:
    try:
        import_module("delayed_queue.http.callbacks.delivery")
    except ImportError as error:
        raise InvalidConfiguration(
            f"Callbacks are enabled, but cannot be sent: {error}. Install "
            "django-delayed-queue[http] where workers run, or name their queues with --queue."
        ) from error


def _callbacks(using: str) -> Iterable[Handler]:
    # Only where a worker asks: web processes need no client.
    delivery = import_module("delayed_queue.http.callbacks.delivery")
    found: Iterable[Handler] = delivery.handlers_of_topics(using)
    return found
