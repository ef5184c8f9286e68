"""The app of the HTTP service, and its checks: access, topics and callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.urls import URLResolver, get_resolver
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


@register(Tags.urls)
def check_topics(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """W007: the mounted API serves no topic. W011: it refuses jobs with a url."""
    configured = getattr(settings, SETTING, {})
    if find_problems(configured) or not _is_served():
        return []
    if not api_settings().TOPICS:
        text = "The HTTP API is in the URLs but serves no topics, so it refuses every job."
        hint = f"List the topics: {SETTING} = {{'API': {{'TOPICS': ['orders']}}}}."
        return [checks.Warning(text, hint=hint, id="delayed_queue.W007", obj=SETTING)]
    section = configured.get("CALLBACKS", {})
    # An ENABLED that is written down is a decision, False too.
    if not isinstance(section, Mapping) or "ENABLED" in section:
        return []
    text = "The HTTP API is in the URLs but callbacks are off, so it refuses jobs with a url."
    hint = (
        f"Set {SETTING}['CALLBACKS']['ENABLED'] to True, for web servers and workers, or to False "
        "where jobs are only popped."
    )
    return [checks.Warning(text, hint=hint, id="delayed_queue.W011", obj=SETTING)]


def _is_served() -> bool:
    """Return whether a url leads to the API, or to one that a project has built of endpoints."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return False
    return any(map(_is_of_api, _views_of(get_resolver())))


def _views_of(resolver: URLResolver) -> Iterator[Any]:
    for each in resolver.url_patterns:
        if isinstance(each, URLResolver):
            yield from _views_of(each)
        else:
            yield each.callback


def _is_of_api(view: Any) -> bool:
    return str(getattr(view, "__module__", "")).startswith("delayed_queue.http.api.openapi")


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
