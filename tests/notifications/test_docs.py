"""The guide says what the code has: fields, settings, permissions, calls, filters."""

from __future__ import annotations

import re
from typing import Final

import pytest
from django.contrib.auth.models import Permission
from msgspec.structs import fields

from delayed_queue.http.api.openapi import describe
from delayed_queue.notifications.api import api
from delayed_queue.notifications.rendering import register
from delayed_queue.notifications.requests import NotificationRequest
from example_project.samples import read_samples
from tests.support import documents

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
    paragraph = TEXT[TEXT.index("The language is Django's") : TEXT.index("There is no way to load")]
    told = set(documents.INLINE_CODE.findall(paragraph))
    assert told == set(register.tags) | set(register.filters)


def test_the_numbers_of_the_shipped_file():
    samples = list(read_samples())
    assert sum(each.kind == "wrong" for each in samples) == pytest.approx(500, abs=40)
    assert sum(each.via == "broker" for each in samples) == pytest.approx(3000, abs=150)
