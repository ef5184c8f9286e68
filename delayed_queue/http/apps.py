"""The app of the HTTP service, and its checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.utils.translation import gettext_lazy as _

from delayed_queue.checks import check_alias
from delayed_queue.conf import SETTING, find_problems
from delayed_queue.exceptions import ExtraNotInstalled, InvalidConfiguration
from delayed_queue.handlers import Handler, Source, registry
from delayed_queue.http.conf import api_settings, callback_settings
from delayed_queue.queue.hooks import hooks


class HttpConfig(AppConfig):
    name = "delayed_queue.http"
    label = "delayed_queue_http"
    verbose_name = _("Delayed queue: jobs over HTTP")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register what holds jobs, and callbacks as a source of handlers."""
        has_problems = find_problems(getattr(settings, SETTING, {}))  # for the check to say
        if not has_problems and callback_settings().ENABLED:
            registry.add_source(_source())
        _add_hooks()


def _add_hooks() -> None:
    from delayed_queue.http.jobs.catalogue import why_not_limited
    from delayed_queue.http.jobs.dead import JobsGuard, is_topic
    from delayed_queue.http.store.kinds import KIND_FAMILY

    hooks.redrive_guards.append(JobsGuard())
    hooks.kind_family = KIND_FAMILY
    hooks.is_queue.append(is_topic)
    hooks.limit_guards.append(why_not_limited)


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
    # Imported in workers only: web processes need no client.
    delivery = import_module("delayed_queue.http.callbacks.delivery")
    found: Iterable[Handler] = delivery.handlers_of_topics(using)
    return found


@register(Tags.security, deploy=True)
def check_api(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E004, on deployment: an API without tokens."""
    if find_problems(getattr(settings, SETTING, {})) or not api_settings().PUBLIC:
        return []
    text = "The HTTP API does not require a token."
    hint = f"Set {SETTING}['API']['PUBLIC'] to False."
    return [Error(text, hint=hint, id="delayed_queue.E004", obj=SETTING)]


def missing_extra(error: ExtraNotInstalled) -> CheckMessage:
    """E007: a url that leads to the API, whose extra is not installed."""
    return Error(str(error), hint="Or remove the include.", id="delayed_queue.E007")


@register()
def check_database(**kwargs: Any) -> list[CheckMessage]:
    """E014, W013: the setting ``DATABASE`` and the router name different databases."""
    if find_problems(getattr(settings, SETTING, {})):
        return []
    where = f"{SETTING}['API']['DATABASE']"
    return check_alias(api_settings().DATABASE, where, "delayed_queue_http.ApiToken")
