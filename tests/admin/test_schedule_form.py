"""The form of the schedules: adding, editing and refusing."""

from __future__ import annotations

import json

import pytest
from django.contrib.messages import WARNING, get_messages
from django.test import Client

from delayed_queue.cron.keeper import CronEntry, CronKeeper
from delayed_queue.models import Message, Schedule
from tests.admin.support import operator, page
from tests.cron.schedules import FORM, SCHEDULES, VIEW, errors, installed, made, ticks, url

pytestmark = pytest.mark.django_db


# The form


def test_what_is_added_is_installed_by_workers(admin_client: Client):
    response = admin_client.post(f"{SCHEDULES}add/", FORM)
    assert response.status_code == 302, errors(response)
    row = Schedule.objects.get()
    assert (row.kind, row.codec, row.payload) == ("reports|json", "json", {"n": 1})
    assert (row.declared_in, row.is_enabled) == ("", True)

    assert [each.error for each in CronKeeper(entries=[]).check()] == [""]
    assert all(key.startswith("nightly/") for key in ticks())
    assert json.loads(bytes(Message.objects.all()[0].payload)) == {"n": 1}


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("expression", "61 * * * *", "Bad cron expression"),
        ("expression", "0 0 30 2 *", "never runs"),
        ("expression", "often", "is not of five fields"),
        ("expression", "* " * 100_000, "at most 1000 characters"),
        ("timezone", "Mars/Olympus", "Unknown time zone"),
        ("fold", "both", "would run"),
        ("key_prefix", "p" * 160, "at most 200 fit"),
        ("queue", "q" * 100, "at most 100 fit"),
        ("missed_cap", "0", "greater than or equal to 1"),
        ("payload", "{n: 1}", "This is not JSON: Expecting property name"),
        ("payload", "NaN", "cannot encode"),
        ("payload", '{"a": ["b\\u0000"]}', "NUL"),
        ("payload", '"\\ud800"', "cannot encode"),
        ("payload", "9" * 5000, "This is not JSON"),
        ("payload", "[" * 100_000, "This is not JSON"),
    ],
)
def test_refusal_stands_at_the_field(admin_client: Client, field: str, value: str, reason: str):
    found = errors(admin_client.post(f"{SCHEDULES}add/", {**FORM, field: value}))
    assert list(found) == [field]
    assert reason in found[field][0]
    assert not Schedule.objects.exists()


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("ledger", []),
        (
            "legder",
            [
                "The queue 'legder' has no handler. Did you mean 'ledger'? Its messages wait "
                "until a handler serves this queue."
            ],
        ),
    ],
)
def test_a_queue_without_a_handler_is_warned_about(admin_client, queue, said):
    response = admin_client.post(f"{SCHEDULES}add/", {**FORM, "queue": queue})
    assert response.status_code == 302, errors(response)
    warnings = [each for each in get_messages(response.wsgi_request) if each.level == WARNING]
    assert [str(each) for each in warnings] == said


@pytest.mark.parametrize(
    ("given", "field", "reason"),
    [
        ({"type": "daily", "expression": "2:00, noon"}, "expression", "is not an hour"),
        ({"type": "daily", "expression": "02:00", "fold": "both"}, "fold", "must be one of"),
        ({"type": "periodic", "timezone": "", "expression": "soon"}, "expression", "a duration"),
        ({"type": "periodic", "timezone": "", "expression": "0s"}, "expression", "period must be"),
        ({"type": "periodic", "expression": "5m"}, "timezone", "has no time zone"),
    ],
)
def test_refusal_of_other_types(admin_client, given, field, reason):
    found = errors(admin_client.post(f"{SCHEDULES}add/", {**FORM, **given}))
    assert list(found) == [field]
    assert reason in found[field][0]


@pytest.mark.parametrize("text", [r'"a\\u0000b"', "", "null", "[]", "0", '{"a": "ț"}'])
def test_payload_is_kept_as_it_was_typed(admin_client: Client, text: str):
    response = admin_client.post(f"{SCHEDULES}add/", {**FORM, "payload": text})
    assert response.status_code == 302, errors(response)
    assert Schedule.objects.get().payload == (json.loads(text) if text else None)


def test_prefix_that_is_taken_is_refused(admin_client: Client, weekly: CronEntry):
    made(type="")
    assert list(errors(admin_client.post(f"{SCHEDULES}add/", FORM))) == ["key_prefix"]
    found = errors(admin_client.post(f"{SCHEDULES}add/", {**FORM, "key_prefix": "weekly"}))
    assert "reports.ticks" in found["key_prefix"][0]


def test_edit_replaces_the_ticks_and_keeps_queue_and_prefix(admin_client: Client):
    row = installed()
    before = ticks()
    edited = {**FORM, "expression": "45 4 * * *", "key_prefix": "moved", "queue": "moved"}
    response = admin_client.post(url(row), edited)
    assert response.status_code == 302, errors(response)
    CronKeeper(entries=[]).check()
    row.refresh_from_db()

    assert (row.queue, row.key_prefix, row.expression) == ("reports", "nightly", "45 4 * * *")
    assert ticks()
    assert not set(before) & set(ticks())


def test_switching_off_in_the_form_takes_the_ticks_back(admin_client: Client):
    row = installed()
    response = admin_client.post(url(row), {**FORM, "is_enabled": ""})
    assert response.status_code == 302, errors(response)
    row.refresh_from_db()
    assert not row.is_enabled
    assert ticks() == []


def test_editing_without_the_permission_to_pause_does_not_pause():
    row = installed()
    client = operator(VIEW, "change_schedule", "view_payload")
    assert client.post(url(row), {**FORM, "missed_cap": "7", "is_enabled": ""}).status_code == 302
    row.refresh_from_db()
    assert (row.is_enabled, row.missed_cap) == (True, 7)


def test_payload_is_neither_shown_nor_changed_without_its_permission():
    row = made(payload={"secret": 4711})
    client = operator(VIEW, "change_schedule")
    assert "4711" not in page(client, url(row))
    assert client.post(url(row), FORM).status_code == 302
    row.refresh_from_db()
    assert row.payload == {"secret": 4711}
    assert "4711" in page(operator(VIEW, "view_payload", "run_schedule"), url(row))


def test_schedule_of_code_is_read_only(admin_client: Client):
    row = made(declared_in="reports.ticks")
    html = page(admin_client, url(row))
    assert 'name="expression"' not in html
    assert 'value="pause"' in html
    assert admin_client.post(url(row), FORM).status_code == 403
    assert admin_client.post(url(row, "delete"), {"post": "yes"}).status_code == 403
    assert Schedule.objects.get().declared_in
