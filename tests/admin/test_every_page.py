"""Each page that the admin has an address for, with rows on it, in both languages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any, Final

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, resolve
from django.utils.translation import override
from pytest_django import Settings

from tests.admin.support import page, post, tokens
from tests.support import gallery

pytestmark = pytest.mark.django_db

# Django's own, what is only posted to, a picture, and second names of what has another.
NO_PAGES: Final = {
    "autocomplete", "jsi18n", "login", "logout", "password_change", "password_change_done",
    "view_on_site", "delayed_queue_notifications_find", "delayed_queue_notifications_operate",
    "delayed_queue_spark_pipelinereport_plot", "delayed_queue_queueoverview_changelist", None,
}  # fmt: skip
_VARIABLE: Final = re.compile(r"{{ *([\w.]+)")
MISSING: Final = re.compile("¤(.*?)¤", re.DOTALL)
WEEKDAY: Final = re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d+")


@pytest.fixture(scope="module", autouse=True)
def furnished(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The gallery, in a transaction that is never committed: two seconds for all tests at once."""
    with django_db_blocker.unblock(), transaction.atomic():
        gallery.furnish()
        yield
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _telling(settings: Settings) -> None:
    """Templates that say which of their variables nobody has given them."""
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
    """Return the variables that our own templates write, which Django's do not."""
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
def test_each_page_answers_and_has_all_it_shows(
    admin_client: Client, settings: Settings, language: str
) -> None:
    settings.LANGUAGE_CODE = language
    wanted, lacking = ours(), {}
    with override(language):
        for name, path in gallery.pages().items():
            html = page(admin_client, path)
            found = wanted.intersection(MISSING.findall(html))
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
