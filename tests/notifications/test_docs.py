"""The guides match the code: fields, permissions, calls, filters, providers, verdicts."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

import pytest
from django.contrib.auth.models import Permission
from django.utils.module_loading import import_string
from msgspec.structs import fields

from delayed_queue.http.api.openapi import describe
from delayed_queue.notifications.api import api
from delayed_queue.notifications.channels import KINDS, routes_of
from delayed_queue.notifications.providers import Verdict
from delayed_queue.notifications.providers.http import STATUSES
from delayed_queue.notifications.rendering import register
from delayed_queue.notifications.requests import NotificationRequest
from tests.notifications.configured import configure
from tests.support import documents

SENDING: Final = documents.DOCS / "guides" / "dispatching.md"
GUIDE: Final = documents.DOCS / "guides" / "notifications.md"
TEXT: Final = GUIDE.read_text(encoding="utf-8")


def test_the_table_of_fields_has_every_field():
    rows = documents.table(GUIDE, "field", "for", "meaning")
    assert [documents.code(row[0]) for row in rows] == [
        each.encode_name for each in fields(NotificationRequest)
    ]


def test_the_table_of_calls_has_every_call():
    rows = documents.table(GUIDE, "call", "verb", "answers")
    told = set(re.findall(r"/v1/[a-z{}/]+", " ".join(row[0] for row in rows)))
    paths = describe(api, prefix="/v1/")["paths"]
    assert told == set(paths)


@pytest.mark.django_db
def test_the_permissions_exist():
    rows = documents.table(GUIDE, "permission", "allows")
    told = {documents.code(row[0]).partition(".")[2] for row in rows}
    of_app = Permission.objects.filter(content_type__app_label="delayed_queue_notifications")
    assert told <= set(of_app.values_list("codename", flat=True))


def test_tags_and_filters_are_those_of_the_language():
    paragraph = TEXT[TEXT.index("The template language is") : TEXT.index("A template cannot load")]
    told = set(documents.INLINE_CODE.findall(paragraph))
    assert told == set(register.tags) | set(register.filters)


def test_the_table_of_kinds_has_every_kind_and_option():
    rows = documents.table(SENDING, "kind", "sends", "options")
    assert {documents.code(row[0]) for row in rows} == set(KINDS)
    for name, _, options in rows:
        made = inspect.signature(import_string(KINDS[documents.code(name)]))
        known = {each for each in made.parameters if each not in ("name", "options")}
        assert set(documents.INLINE_CODE.findall(options)) - {"{recipient}"} == known


@pytest.mark.parametrize(
    ("verdict", "statuses"),
    [
        (Verdict.TRANSIENT, {401, 402, 403, 408, 425, 503}),
        (Verdict.BUSY, {429}),
        (Verdict.AMBIGUOUS, {409, 500, 502, 504}),
        (Verdict.ACCEPTED, {200, 201, 202, 204}),
    ],
)
def test_statuses_mean_what_the_table_says(verdict: Verdict, statuses: set[int]):
    assert {STATUSES[status] for status in statuses} == {verdict}
    assert not {400, 404, 410, 413, 422} & set(STATUSES)


def test_the_example_of_the_guide_makes_providers(settings):
    namespace: dict[str, Any] = {}
    for block in documents.blocks(SENDING, "python"):
        exec(block.text, namespace)  # noqa: S102 - our own page
    configure(settings, namespace["DELAYED_QUEUE"]["NOTIFICATIONS"])
    names = {route.name for channel in ("email", "sms", "webhook") for route in routes_of(channel)}
    assert names == {"relay", "first", "second", "hooks"}
