"""The detail pages of the admin: times, errors, payloads, all escaped; and durations in words."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.core.exceptions import FieldDoesNotExist
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from delayed_queue.admin.formats import MAX_READ, human, relative, show_payload, timeline
from delayed_queue.models import Message
from tests.admin.lists import MODELS
from tests.admin.support import LETTERS, MESSAGES, QUEUES, operator, page, tokens
from tests.support.factories import DeadLetterFactory, MessageFactory

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>"


# The detail page


def test_detail_shows_errors_headers_and_what_is_to_come(admin_client: Client):
    message = MessageFactory.create(
        leased=True, headers={"tenant": "acme"}, first_error="first trouble", last_error="last one"
    )
    html = page(admin_client, f"{MESSAGES}{message.pk}/change/")

    for words in (
        "first trouble", "last one", "&quot;tenant&quot;: &quot;acme&quot;", message.lease_id,
        "offered", "fell due for the last delivery", "now", "lease ends",
    ):  # fmt: skip
        assert str(words) in html


def test_letter_shows_reason_and_errors(admin_client: Client):
    letter = DeadLetterFactory.create(reason="no such order", last_error="Traceback\nValueError")
    html = page(admin_client, f"{LETTERS}{letter.pk}/change/")
    assert "no such order" in html
    assert "Traceback\nValueError" in html


def test_message_that_went_leads_back_to_the_list(admin_client: Client):
    message = MessageFactory.create()
    Message.objects.all().delete()
    response = admin_client.get(f"{MESSAGES}{message.pk}/change/", follow=True)

    assert response.redirect_chain == [(MESSAGES, 302)]
    assert "it was handled, moved or dropped" in response.content.decode()


@pytest.mark.parametrize(("model", "url"), MODELS)
def test_no_page_shows_a_field_by_its_own_name(model: Any, url: str):
    """Otherwise Django would show the model's field, with the payload."""
    shown = admin.site.get_model_admin(model).readonly_fields
    for name in shown:
        with pytest.raises(FieldDoesNotExist):
            model._meta.get_field(name)


@pytest.mark.parametrize("factory", [MessageFactory, DeadLetterFactory])
def test_payload_needs_its_permission(factory: Any):
    row = factory(payload=b'{"secret":"4711-0815"}')
    url = f"{MESSAGES if factory is MessageFactory else LETTERS}{row.pk}/change/"
    viewer = operator("view_message", "view_deadletter")
    reader = operator("view_message", "view_deadletter", "view_payload")

    assert "4711-0815" in page(reader, url)
    with CaptureQueriesContext(connection) as queries:
        html = page(viewer, url)
    assert "4711-0815" not in html
    assert "22 bytes, hidden: needs the permission delayed_queue.view_payload" in html
    assert not any("4711-0815" in each["sql"] or "substring" in each["sql"] for each in queries)


@pytest.mark.parametrize("factory", [MessageFactory, DeadLetterFactory])
def test_everything_is_escaped(admin_client: Client, factory: Any):
    row = factory(
        key=f"key {EVIL}", kind=f"{EVIL}|json", payload=json.dumps(EVIL).encode(),
        headers={EVIL: EVIL}, first_error=EVIL, last_error=EVIL,
        **({"reason": EVIL} if factory is DeadLetterFactory else {"lease_id": EVIL}),
    )  # fmt: skip
    base = MESSAGES if factory is MessageFactory else LETTERS

    for url in (
        base,
        f"{base}?q={EVIL}",
        f"{base}{row.pk}/change/",
        f"{base}{row.pk}/history/",
        QUEUES,
    ):
        html = page(admin_client, url)
        assert EVIL not in html
        assert "&lt;script&gt;" in html
    posted = admin_client.post(
        base, {"action": "drop", "_selected_action": tokens(page(admin_client, base))}
    )
    assert EVIL not in posted.content.decode()
    assert "&lt;script&gt;" in posted.content.decode()


# Payloads


@pytest.mark.parametrize(
    ("kind", "payload", "shown", "note"),
    [
        ("q|json", b'{"b":[1],"a":"\xc3\xa9"}', '{\n  "b": [\n    1\n  ],', "18 bytes of JSON"),
        ("q|json", b'{"b":[1],"a":"\xc3\xa9"}', '"a": "é"', "indented"),
        ("q|json", b"{broken", "{broken", "not readable as JSON"),
        ("q|json", b"\xff\xfe{broken", r"\xff\xfe{broken", "not readable as JSON"),
        ("q|json", rb'"\ud800"', r"\ud800", "of JSON"),
        ("q|json", b"[" * 100_000, "[[[[", "not readable as JSON"),
        ("q|json", b"9" * 5000, "9999", "not readable as JSON"),
        ("q|text", "grüße 👩‍🚀".encode(), "grüße 👩‍🚀", "19 bytes."),
        ("q|text", b"a\x00b", r"a\x00b", "3 bytes."),
        ("q|bytes", b"\x89PNG\r\n", r"\x89PNG", "6 bytes."),
        ("7ab2b0dfa43e1a1f12169da88468fb53", b"from the JVM", "from the JVM", "12 bytes."),
        ("q|msgpack", b"", "", "0 bytes"),
    ],
)  # fmt: skip
def test_payload_is_readable_whatever_it_is(admin_client, kind, payload, shown, note):
    message = MessageFactory.create(kind=kind, payload=payload)
    html = unescape(page(admin_client, f"{MESSAGES}{message.pk}/change/"))

    assert shown in html
    assert note in html


def test_long_payload_is_cut_and_says_so(admin_client: Client):
    message = MessageFactory.create(payload=json.dumps("x" * 20_000).encode())
    html = page(admin_client, f"{MESSAGES}{message.pk}/change/")

    assert "20,002 bytes of JSON, indented; the first 10,000 characters are shown." in html
    assert html.count("x" * 100) <= 100


def test_huge_payload_is_never_fetched_whole(admin_client: Client):
    size = 2 * MAX_READ
    message = MessageFactory.create(payload=b'"' + "é".encode() * MAX_READ + b'"')
    html = page(admin_client, f"{MESSAGES}{message.pk}/change/")

    assert f"{size + 2:,} bytes; the first 10,000 characters are shown." in html
    assert len(html) < 60_000


def test_json_that_indentation_would_blow_up_is_cut_early():
    deep = b"[" * 500 + b",".join([b"[]"] * 300_000) + b"]" * 500

    assert len(show_payload("q|json", deep, len(deep))) < 12_000


def test_long_error_shows_its_end(admin_client: Client):
    message = MessageFactory.create(last_error="start " + "x" * 20_000 + " ValueError: at the end")
    html = page(admin_client, f"{MESSAGES}{message.pk}/change/")

    assert "ValueError: at the end" in html
    assert "start xxx" not in html


# Words


@pytest.mark.parametrize(
    ("span", "words"),
    [
        ({"milliseconds": 300}, "under 1 s"),
        ({"seconds": 59}, "59 s"),
        ({"seconds": -61}, "1 min 1 s"),
        ({"hours": 1, "seconds": 5}, "1 h"),
        ({"days": 3, "hours": 4, "minutes": 5}, "3 d 4 h"),
        ({"days": 400}, "1 y 34 d"),
        ({"days": 2_000_000}, "5,475 y 256 d"),
    ],
)
def test_durations_in_words(span: dict[str, int], words: str):
    assert human(timedelta(**span)) == words


def test_timeline_puts_now_in_its_place():
    now = datetime(2024, 1, 1, 12, tzinfo=UTC)
    html = timeline([(now + timedelta(hours=1), "due"), (now - timedelta(hours=1), "offered")], now)

    assert html.index("offered") < html.index("now") < html.index("due")
    assert relative(now + timedelta(hours=1), now) == "in 1 h"
    assert relative(now, now + timedelta(hours=1)) == "1 h ago"
