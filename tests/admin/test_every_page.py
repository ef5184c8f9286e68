"""Each URL of the admin, with rows in the tables, in both languages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any, Final

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, resolve, reverse
from django.utils.http import urlencode
from django.utils.translation import override
from pytest_django import Settings

from delayed_queue.admin.lists import AFTER
from tests.admin.support import page, post, tokens
from tests.support import gallery

pytestmark = pytest.mark.django_db

# Django's own pages, POST-only URLs, a picture, and aliases.
NO_PAGES: Final = {
    "autocomplete", "jsi18n", "login", "logout", "password_change", "password_change_done",
    "view_on_site", "delayed_queue_notifications_find", "delayed_queue_notifications_operate",
    "delayed_queue_spark_pipelinereport_plot", "delayed_queue_queueoverview_changelist", None,
}  # fmt: skip
_VARIABLE: Final = re.compile(r"{{ *([\w.]+)")
# Values that PostgreSQL or a cast refuses.
TYPED: Final = ("a\0b", "9" * 5000, str(2**63))
MISSING: Final = re.compile("¤(.*?)¤", re.DOTALL)
# Our own markup, escaped as if it were a value.
ESCAPED: Final = re.compile("&lt;(?:time|span|code|a|p) ")
WEEKDAY: Final = re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d+")


@pytest.fixture(scope="module", autouse=True)
def furnished(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The gallery, in a transaction that is never committed; it takes two seconds for all tests."""
    with django_db_blocker.unblock(), transaction.atomic():
        gallery.furnish()
        yield
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _telling(settings: Settings) -> None:
    """Templates mark each of their variables that has no value."""
    (engine,) = settings.TEMPLATES
    options = engine["OPTIONS"] | {"string_if_invalid": "¤%s¤"}
    settings.TEMPLATES = [engine | {"OPTIONS": options}]


def names(patterns: Any) -> Iterator[str | None]:
    for each in patterns:
        if isinstance(each, URLResolver):
            yield from names(each.url_patterns)
        elif isinstance(each, URLPattern) and not str(each.name).startswith("auth_"):
            yield each.name


def ours() -> set[str]:
    """Return the variables of our own templates, without those of Django's."""
    folders = [Path(each.path) / "templates" for each in apps.get_app_configs()]
    texts = [
        path.read_text(encoding="utf-8")
        for folder in folders
        if "delayed_queue" in str(folder) and "site-packages" not in str(folder)
        for path in folder.rglob("*.html")
    ]
    return {each for text in texts for each in _VARIABLE.findall(text)}


def test_the_gallery_has_each_page_there_is() -> None:
    reached = {resolve(path.partition("?")[0]).url_name for path in gallery.pages().values()}
    there_are = set(names(admin.site.get_urls()))
    assert there_are - NO_PAGES - gallery.forbidden() - reached == set()


@pytest.mark.parametrize("language", ["en", "de"])
def test_each_page_answers_and_has_all_it_shows(admin_client, settings, language):
    settings.LANGUAGE_CODE = language
    wanted, lacking = ours(), {}
    with override(language):
        for name, path in gallery.pages().items():
            html = page(admin_client, path)
            found = wanted.intersection(MISSING.findall(html)) | set(ESCAPED.findall(html))
            if language != "en":
                found |= set(WEEKDAY.findall(html))
            if found:
                lacking[name] = found
    assert lacking == {}


@pytest.mark.parametrize("language", ["en", "de"])
def test_each_operation_asks_first_where_it_has_something_to_warn_of(
    admin_client: Client, settings: Settings, language: str
) -> None:
    settings.LANGUAGE_CODE = language
    wanted, asked = ours(), 0
    with override(language):
        for url, operation in gallery.operations():
            if operation.warning:
                chosen = tokens(page(admin_client, url))
                response = post(admin_client, url, operation.name, chosen)
                assert response.status_code == 200, (url, operation.name)
                html = unescape(response.content.decode())
                assert str(operation.warning) in html, (url, operation.name)
                assert wanted.isdisjoint(MISSING.findall(html)), (url, operation.name)
                asked += 1
    assert asked > 10


def lists() -> list[tuple[str, Any]]:
    """Return the path and the model admin of each of our lists."""
    models = [each for each in apps.get_models() if admin.site.is_registered(each)]
    return [
        (gallery.list_of(each), admin.site.get_model_admin(each))
        for each in models
        if each._meta.app_label.startswith("delayed_queue")
        and each._meta.model_name != "queueoverview"
    ]


def parameters(model_admin: Any) -> set[str]:
    """Return random parameters of a list: filters, search, position."""
    filters = [
        getattr(each, "parameter_name", f"{each}__exact") for each in model_admin.list_filter
    ]
    return {*filters, SEARCH_VAR, AFTER}


@pytest.mark.parametrize("typed", TYPED)
def test_no_list_fails_for_what_is_typed_into_its_url(admin_client: Client, typed: str) -> None:
    found = {}
    for path, model_admin in lists():
        for name in parameters(model_admin):
            url = f"{path}{'&' if '?' in path else '?'}{urlencode({name: typed})}"
            found[url] = admin_client.get(url).status_code
    for name in ("queues", "failures", "history"):
        url = (
            reverse(f"admin:delayed_queue_{name}")
            + "?"
            + urlencode({"kind": typed, "range": typed})
        )
        assert admin_client.get(url).status_code < 500
    assert len(found) > 40
    assert {url: status for url, status in found.items() if status not in (200, 302)} == {}


def test_each_choice_of_each_filter_can_be_chosen(admin_client: Client) -> None:
    chosen = 0
    for path in (path for path, model_admin in lists() if model_admin.list_filter):
        changelist = admin_client.get(path, follow=True).context["cl"]
        for each in changelist.filter_specs:
            for choice in each.choices(changelist):
                if choice["query_string"].startswith("?"):
                    url = path.partition("?")[0] + choice["query_string"]
                    assert admin_client.get(url, follow=True).status_code == 200, url
                    chosen += 1
    assert chosen > 30
