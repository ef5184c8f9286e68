"""System checks of the HTTP service: doors that stand open, and an API that serves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.urls import URLResolver, get_resolver

from delayed_queue.conf import SETTING, find_problems
from delayed_queue.exceptions import ExtraNotInstalled
from delayed_queue.http.conf import api_settings


@register(Tags.security, deploy=True)
def check_api(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E004: an API without tokens. E005: its page of documentation open to all. On deployment."""
    configured = getattr(settings, SETTING, {})
    if find_problems(configured):
        return []
    api = api_settings()
    messages: list[CheckMessage] = []
    if api.PUBLIC:
        messages.append(
            _open("The HTTP API answers without a token.", "PUBLIC", "delayed_queue.E004")
        )
    if (settings.DEBUG if api.DOCS is None else api.DOCS) and _is_served():
        messages.append(
            _open("The page of the HTTP API is open to all.", "DOCS", "delayed_queue.E005")
        )
    return messages


@register(Tags.urls)
def check_topics(
    app_configs: Sequence[AppConfig] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """W007: the HTTP API is mounted, and serves no topic."""
    if find_problems(getattr(settings, SETTING, {})):
        return []
    if api_settings().TOPICS or not _is_served():
        return []
    return [
        checks.Warning(
            "The HTTP API is among the URLs and serves no topic: it refuses every job.",
            hint=f"Name what it is to serve: {SETTING} = {{'API': {{'TOPICS': ['orders']}}}}.",
            id="delayed_queue.W007",
            obj=SETTING,
        )
    ]


def _is_served() -> bool:
    """Return whether a url leads to the API, or to one that a project has made in its manner."""
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
    return str(getattr(view, "__module__", "")).startswith("delayed_queue.http.api.docs")


def missing_extra(error: ExtraNotInstalled) -> CheckMessage:
    """E007: a url that leads to the API, whose extra is not installed."""
    return Error(str(error), hint="Or take the include out.", id="delayed_queue.E007")


def _open(text: str, key: str, number: str) -> CheckMessage:
    hint = f"Leave {SETTING}['API'][{key!r}] out, and DEBUG off."
    return Error(text, hint=hint, id=number, obj=SETTING)
