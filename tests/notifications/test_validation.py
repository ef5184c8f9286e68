"""Validation of N1, N2 and N9: refused fields and their paths, without an exception."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.template import TemplateSyntaxError
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from delayed_queue import exceptions
from delayed_queue.notifications.recipients import recipient_hash
from delayed_queue.notifications.rendering import Compiled, compiled
from delayed_queue.notifications.validation import FieldError, Request, validate
from tests.notifications.configured import configure
from tests.notifications.requests import email, sms, template, webhook

NOW = datetime(2031, 5, 1, 12, tzinfo=UTC)


class Shelf:
    """Templates in memory, as in the catalogue."""

    def __init__(self, *templates: Any) -> None:
        self._found = {(each.channel, each.name): compiled(each) for each in templates}

    def find(self, channel: str, name: str, version: int | None) -> Compiled | None:
        return self._found.get((channel, name)) if version in (None, 1) else None


SHELF = Shelf(
    template(),
    template(name="code", channel="sms", subject="", html="", body="Code {{ code }}"),
    template(
        name="paid", channel="webhook", subject="", html="",
        body='{"order": "{{ order.id }}", "lines": ["{{ order.note }}"]}',
    ),
)  # fmt: skip


def valid(raw: object) -> Request:
    answer = validate(raw, SHELF.find, NOW)
    assert isinstance(answer, Request), answer
    return answer


def errors(raw: object) -> list[FieldError]:
    answer = validate(raw, SHELF.find, NOW)
    assert isinstance(answer, list)
    assert answer
    return answer


def paths(raw: object) -> list[str]:
    return [each.path for each in errors(raw)]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_n1_an_email_as_it_is_written():
    request = valid(email(html="<p>Hello</p>", dedupeKey="order-1", category="receipts"))
    assert (request.channel, request.recipient, request.priority) == (
        "email", "ada@example.org", "normal",
    )  # fmt: skip
    assert (request.subject, request.body, request.html) == (
        "Hello", "Hello, Ada.", "<p>Hello</p>",
    )  # fmt: skip
    assert (request.dedupe_key, request.category) == ("order-1", "receipts")


def test_n1_times_in_any_zone():
    request = valid(email(sendAt="2031-05-01T14:30:00+02:00", expiresAt="2031-05-01T13:00:00.5Z"))
    assert request.send_at == datetime(2031, 5, 1, 12, 30, tzinfo=UTC)
    assert request.expires_at == datetime(2031, 5, 1, 13, 0, 0, 500_000, tzinfo=UTC)


def test_n1_a_webhook_carries_any_json():
    assert json.loads(valid(webhook(body=[1, {"a": None}])).body) == [1, {"a": None}]
    assert valid(webhook(body=None)).body == "null"


@pytest.mark.parametrize("raw", [None, 1, "x", [], [email()], True, 1.5])
def test_n1_what_is_no_object_is_refused(raw):
    assert errors(raw) == [FieldError("", "must be a JSON object")]


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({}, "channel"),
        (email(channel="pigeon"), "channel"),
        (email(channel=3), "channel"),
        (email(to=None), "to"),
        (email(to=""), "to"),
        (email(to="ada"), "to"),
        (email(to="Ada <ada@example.org>"), "to"),
        (email(to="ada@example.org\r\nBcc: all@example.org"), "to"),
        (email(to='"a\tb"@example.org'), "to"),
        (email(to="ada@example.org,bob@example.org"), "to"),
        (email(to="a" * 250 + "@example.org"), "to"),
        (email(to="\u017fam@example.org"), "to"),  # a long s, which equals s without case
        (email(to="\u212aim@example.org"), "to"),  # the sign of the kelvin
        (email(to="root@localhost"), "to"),
        (email(to="ada@[127.0.0.1]"), "to"),
        (email(to="ada@" + "\u00e4" * 60 + ".org"), "to"),  # too long in its encoded form
        (sms(to="0721234567"), "to"),
        (sms(to="+0721234567"), "to"),
        (sms(to="+407212345678901234"), "to"),
        (sms(to="+1234567"), "to"),
        (sms(to="+12345678"), "to"),  # within its town only
        (sms(to="+400721234567"), "to"),  # another spelling of +40721234567
        (sms(to="+٤٠٧٢١٢٣٤٥٦٧"), "to"),
        (sms(to="+40721234567\n"), "to"),
        (webhook(to="ftp://shop.example/"), "to"),
        (webhook(to="https://user:pw@shop.example/"), "to"),
        (webhook(to="https://shop.example/" + "a" * 2048), "to"),
        (email(subject="a\nBcc: b@example.org"), "subject"),
        (email(subject="a\u2028b"), "subject"),
        (email(subject="x" * 256), "subject"),
        (email(subject=None), "subject"),
        (email(body=None), "body"),
        (email(body=" \n "), "body"),
        (email(body={"a": 1}), "body"),
        (email(body="x" * 100_001), "body"),
        (sms(body="x" * 1531), "body"),
        (sms(subject="Hello"), "subject"),
        (webhook(subject="Hello"), "subject"),
        ({"channel": "webhook", "to": "https://shop.example/"}, "body"),
        (email(body="a\x00b"), "body"),
        (email(subject="a\ud800b"), "subject"),
        (webhook(body={"a": float("nan")}), "body.a"),
        (webhook(body=[1, float("inf")]), "body[1]"),
        (webhook(body=10**5000), "body"),
        (webhook(body={"a\x00": 1}), "body.?"),
        (email(priority="highest"), "priority"),
        (email(priority=1), "priority"),
        (email(category="Big Offers"), "category"),
        (email(category="x" * 51), "category"),
        (email(dedupeKey="x" * 201), "dedupeKey"),
        (email(dedupeKey=""), "dedupeKey"),
        (email(dedupeKey="a\nb"), "dedupeKey"),
        (email(callbackUrl="javascript:alert(1)"), "callbackUrl"),
        (email(sendAt="tomorrow"), "sendAt"),
        (email(sendAt=1_900_000_000), "sendAt"),
        (email(sendAt="2031-05-01T12:00:00"), "sendAt"),
        (email(sendAt="2031-02-30T12:00:00Z"), "sendAt"),
        (email(sendAt="0001-01-01T00:00:00+14:00"), "sendAt"),
        (email(sendAt="2041-05-01T12:00:00Z"), "sendAt"),
        (email(expiresAt="2031-05-01T11:59:59Z"), "expiresAt"),
        (email(sendAt="2031-05-01T14:00:00Z", expiresAt="2031-05-01T13:00:00Z"), "expiresAt"),
        (email(template="welcome", context={"name": "Ada"}), "subject"),
        (email(context={"name": "Ada"}), "context"),
        (email(templateVersion=1), "templateVersion"),
        (email(colour="red"), "colour"),
    ],
)
def test_n1_each_bad_field_is_named(raw, path):
    assert path in paths(raw)


@pytest.mark.parametrize(
    "number", ["+40721234567", "+390612345678", "+12025550123", "+5491123456789"]
)
def test_n1_a_number_is_taken_as_it_is_dialled_from_abroad(number):
    assert valid(sms(to=number)).recipient == number


def test_n1_guesses_and_errors_are_few(monkeypatch: pytest.MonkeyPatch):
    guessed: list[str] = []

    def guess(name: str, known: object, n: int) -> list[str]:
        guessed.append(name)
        return []

    monkeypatch.setattr(exceptions, "get_close_matches", guess)
    many = {f"sendAtt{number}": 1 for number in range(1000)}
    assert errors(many)[20] == FieldError("", "has more than 20 errors")
    assert len(guessed) == 3
    assert validate(many, SHELF.find, NOW, guesses=0) == errors(many)
    assert len(guessed) == 6


def test_n1_every_error_is_told_at_once():
    raw = {"channel": "sms", "to": "1", "priority": "x", "sendAt": "x", "colour": 1}
    assert paths(raw) == ["colour", "priority", "to", "sendAt", "body"]


def test_n1_a_misspelt_field_is_guessed():
    assert errors(email(expireAt="x"))[0].message.endswith("Did you mean 'expiresAt'?")


def test_n1_depth_is_limited():
    assert valid(webhook(body=deep(15))).body.startswith("[[")
    assert "deeper" in errors(webhook(body=deep(16)))[0].message
    assert errors(webhook(body=deep(100_000)))


def test_n1_no_error_repeats_what_was_sent():
    raw = email(
        to="secret-ada", subject="secret\n", body="secret\x00", sendAt="secret",
        dedupeKey="secret\n", callbackUrl="secret", **{"secret field": 1},
    )  # fmt: skip
    told = repr(errors(raw)) + repr(errors(raw | {"body": "b"}))
    assert "secret" not in told


def test_n9_a_template_is_rendered_and_escaped_by_channel():
    raw = {"channel": "email", "to": "ada@example.org", "template": "welcome"}
    request = valid(raw | {"context": {"name": "<Ada>"}})
    assert request.subject == "Welcome, <Ada>"
    assert request.html == "<p>Dear &lt;Ada&gt;, welcome.</p>"
    assert (request.template, request.template_version) == ("welcome", 1)


def test_n9_no_context_changes_the_structure_of_a_webhook():
    order = {"id": '1", "admin": "yes', "note": "a\nb"}
    raw = {"channel": "webhook", "to": "https://shop.example/", "template": "paid"}
    body = valid(raw | {"context": {"order": order}}).body
    assert json.loads(body) == {"order": order["id"], "lines": ["a\nb"]}


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"template": "unknown"}, "template"),
        ({"template": "code"}, "template"),  # it exists for another channel
        ({"template": 7}, "template"),
        ({"template": "welcome", "templateVersion": 2}, "template"),
        ({"template": "welcome", "templateVersion": "1"}, "templateVersion"),
        ({"template": "welcome", "templateVersion": True}, "templateVersion"),
        ({"template": "welcome"}, "context.name"),
        ({"template": "welcome", "context": {"name": None}}, "context.name"),
        ({"template": "welcome", "context": []}, "context"),
        ({"template": "welcome", "context": {"name": {}}}, "context"),
        ({"template": "welcome", "context": {"name": "a\nBcc: b"}}, "subject"),
        ({"template": "welcome", "context": {"name": "a" * 300}}, "subject"),
    ],
)
def test_n9_what_a_template_lacks_is_refused(values, path):
    assert path in paths({"channel": "email", "to": "ada@example.org"} | values)


@pytest.mark.parametrize(
    "text",
    [
        "{% load static %}",
        "{% include 'admin/base.html' %}",
        "{% extends 'admin/base.html' %}",
        "{% debug %}",
        "{% csrf_token %}",
        "{% url 'admin:index' %}",
        "{% autoescape off %}{{ name }}{% endautoescape %}",
        "{{ name|safe }}",
        "{{ name.__class__ }}",
        "{% if %}",
        "{{ name|unknown }}",
    ],
)
def test_n9_a_template_has_no_tag_that_reaches_out(text):
    with pytest.raises(TemplateSyntaxError):
        compiled(template(html=text))


@pytest.mark.parametrize("text", ["{{ o.items }}", "{{ o.clear }}", "{{ l.pop }}", "{{ o.x.y }}"])
@pytest.mark.parametrize("part", ["subject", "body", "html"])
def test_n9_a_template_reaches_no_method_of_a_value(text, part):
    shelf = Shelf(template(**{part: text}))
    raw = {"channel": "email", "to": "ada@example.org", "template": "welcome"}
    answer = validate(raw | {"context": {"name": "a", "o": {"x": 1}, "l": [1]}}, shelf.find, NOW)
    assert isinstance(answer, list)


def test_n9_a_condition_may_ask_for_what_is_missing_but_a_loop_may_not():
    shelf = Shelf(
        template(body="{% if nick %}{{ nick }}{% else %}{{ name }}{% endif %}"),
        template(name="list", body="{% for each in lines %}{{ each }}{% endfor %}"),
    )
    raw = {"channel": "email", "to": "ada@example.org", "context": {"name": "Ada"}}
    answer = validate(raw | {"template": "welcome"}, shelf.find, NOW)
    assert isinstance(answer, Request)
    assert answer.body == "Ada"
    missing = validate(raw | {"template": "list"}, shelf.find, NOW)
    assert missing == [FieldError("context.lines", "is needed by the template")]


def test_n9_spellings_of_one_address_have_one_hash():
    idn = recipient_hash("email", "ada@b\u00fccher.example")
    assert idn == recipient_hash("email", "ADA@XN--BCHER-KVA.example")
    assert recipient_hash("email", "Ada@Example.ORG") == recipient_hash("email", "ada@example.org")
    assert recipient_hash("email", "a@b.org") != recipient_hash("webhook", "a@b.org")


def test_n9_the_hash_needs_the_key(settings):
    before = recipient_hash("email", "ada@example.org")
    configure(settings, {"HASH_KEY": "another", "RETENTION": timedelta(days=9)})
    assert recipient_hash("email", "ada@example.org") != before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
FIELDS = st.sampled_from([*email(), *webhook(), "template", "context", "sendAt", "priority"])


@settings(max_examples=settings().max_examples * 3)
@given(st.sampled_from([email(), sms(), webhook()]), st.dictionaries(FIELDS, JSON, max_size=4))
def test_n1_nothing_raises_and_what_is_valid_can_be_stored(base, changes):
    answer = validate(base | changes, SHELF.find, NOW)
    if isinstance(answer, Request):
        texts = answer.recipient + answer.subject + answer.body + answer.html
        assert "\x00" not in texts
        texts.encode()
    else:
        assert to_builtins(answer)
