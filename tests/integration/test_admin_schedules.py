"""The admin of schedules: what it shows, what it refuses at which field, and what it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import connection
from django.test import Client

from delayed_queue.admin.schedule_rules import next_change, preview
from delayed_queue.cron import CronEntry, CronKeeper
from delayed_queue.crontab import crontab
from delayed_queue.models import Message, Schedule
from delayed_queue.schedules import PeriodicSchedule
from tests.integration.admin_support import operator, page, post, told

pytestmark = pytest.mark.django_db
SCHEDULES = "/admin/delayed_queue/schedule/"
FORM = {
    "queue": "reports", "key_prefix": "nightly", "type": "cron", "expression": "30 3 * * *",
    "timezone": "Europe/Bucharest", "gap": "shift", "fold": "", "missed": "latest",
    "missed_cap": "100", "payload": '{"n": 1}', "is_enabled": "on",
}  # fmt: skip
VIEW = "view_schedule"


def made(**options: Any) -> Schedule:
    fields: dict[str, Any] = {
        "kind": "reports|json", "key_prefix": "nightly", "queue": "reports", "type": "cron",
        "expression": "30 3 * * *", "timezone": "Europe/Bucharest", "payload": {"n": 1},
    }  # fmt: skip
    return Schedule.objects.create(**{**fields, **options})


def installed(**options: Any) -> Schedule:
    row = made(**options)
    CronKeeper(entries=[]).check()
    row.refresh_from_db()
    assert ticks()
    return row


def ticks() -> list[str]:
    # The example project has a schedule of its own.
    found = Message.objects.filter(kind="reports|json").order_by("key")
    return list(found.values_list("key", flat=True))


def url(row: Schedule, what: str = "change") -> str:
    return f"{SCHEDULES}{row.pk}/{what}/"


def errors(response: Any) -> dict[str, list[str]]:
    assert response.status_code == 200, response
    return dict(response.context["adminform"].form.errors)


def do(client: Client, action: str, *rows: Schedule) -> Any:
    return post(client, SCHEDULES, action, [str(row.pk) for row in rows])


@pytest.fixture
def weekly() -> Iterator[CronEntry]:
    """A schedule of code, whose payload tells the time it is made for."""
    entry = CronEntry(
        "reports", "weekly", "0 7 * * mon", "Europe/Bucharest",
        generator=lambda at: {"at": at.isoformat()}, declared_in="reports.ticks",
    )  # fmt: skip
    crontab.add(entry)
    yield entry
    crontab.remove(entry)


# What is shown


def test_list_shows_what_runs_when_and_where_it_comes_from(admin_client: Client):
    installed()
    made(key_prefix="weekly", declared_in="reports.ticks", is_enabled=False)
    made(key_prefix="mine", type="")  # ticks that a program installs by itself
    html = page(admin_client, SCHEDULES)

    for words in ("nightly", "30 3 * * *", "Europe/Bucharest", "enabled", "paused", " UTC",
                  "reports.ticks", ">admin<", " ago", "03:30:00 EE"):  # fmt: skip
        assert words in html, words
    assert '<span class="dq-key">mine</span>' not in html


def test_unreadable_schedule_does_not_break_the_list(admin_client: Client):
    made(timezone="Mars/Olympus")
    made(key_prefix="odd", type="other", declared_in="gone.module")
    html = unescape(page(admin_client, SCHEDULES))

    assert "Unknown time zone 'Mars/Olympus'" in html
    assert "Only gone.module knows when" in html


def test_search_finds_a_prefix(admin_client: Client):
    made()
    made(key_prefix="other")
    html = page(admin_client, f"{SCHEDULES}?q=other")
    assert html.count('<span class="dq-key">') == 1


def test_preview_marks_the_clock_change_where_it_falls():
    rows = str(preview(made(), datetime(2030, 3, 27, tzinfo=UTC))).split("<tr")[2:]
    place = next(number for number, row in enumerate(rows) if "dq-change" in row)

    assert len(rows) == 11
    assert "2030-03-30 03:30:00 EET" in rows[place - 1]
    assert "2030-03-30 01:30:00" in rows[place - 1]
    assert "2030-03-31 03:00 becomes 2030-03-31 04:00" in rows[place]
    assert "forward by 1 h" in rows[place]
    assert "2030-03-31 04:30:00 EEST" in rows[place + 1]


def test_preview_tells_a_clock_change_that_lies_beyond():
    html = str(preview(made(), datetime(2030, 5, 1, tzinfo=UTC)))

    assert html.count('class="dq-run"') == 10
    assert "dq-change" not in html
    assert "after these: 2030-10-27 04:00 becomes 2030-10-27 03:00" in html
    assert "back by 1 h" in html


def test_preview_of_a_zone_whose_clocks_stay():
    html = str(preview(made(timezone="UTC"), datetime(2030, 5, 1, tzinfo=UTC)))
    assert "The clocks of UTC do not change" in html


@pytest.mark.parametrize("zone", ["Europe/Bucharest", "America/St_Johns", "Australia/Lord_Howe"])
def test_change_is_told_as_the_walls_on_both_sides_of_it(zone: str):
    change = next_change(ZoneInfo(zone), datetime(2030, 1, 1, tzinfo=UTC))
    assert change is not None
    just_before = (change.at - timedelta(seconds=1)).astimezone(ZoneInfo(zone))
    assert change.before - timedelta(seconds=1) == just_before.replace(tzinfo=None)
    assert change.after == change.at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    assert change.before != change.after


def test_detail_shows_the_preview_and_the_buttons_that_fit(admin_client: Client):
    html = page(admin_client, url(made()))
    assert html.count('class="dq-run"') == 10
    assert 'value="pause"' in html
    assert 'value="run_now"' in html
    assert 'value="enable"' not in html


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
    ("given", "field", "reason"),
    [
        ({"type": "daily", "expression": "2:00, noon"}, "expression", "is not an hour"),
        ({"type": "daily", "expression": "02:00", "fold": "both"}, "fold", "must be one of"),
        ({"type": "periodic", "timezone": "", "expression": "soon"}, "expression", "a duration"),
        ({"type": "periodic", "timezone": "", "expression": "0s"}, "expression", "period must be"),
        ({"type": "periodic", "expression": "5m"}, "timezone", "has no time zone"),
    ],
)
def test_refusal_of_other_types(
    admin_client: Client, given: dict[str, str], field: str, reason: str
):
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


# The operations


def test_pause_takes_the_ticks_back_and_enable_has_them_written_again(admin_client: Client):
    row = installed()
    response = do(admin_client, "pause", row)
    assert told(response) == ["Paused 1 schedule: nightly."]
    row.refresh_from_db()
    assert (row.is_enabled, ticks()) == (False, [])
    CronKeeper(entries=[]).check()
    assert ticks() == []

    (text,) = told(do(admin_client, "pause", row))[1:]
    assert text == "Left alone 1 schedule, paused already: nightly."
    do(admin_client, "enable", row)
    CronKeeper(entries=[]).check()
    assert ticks()
    said = LogEntry.objects.order_by("id").values_list("action_flag", "change_message")
    assert [flag for flag, _ in said] == [CHANGE, CHANGE]
    assert "Paused. Queue reports|json, key prefix 'nightly'. Pending ticks" in said[0][1]


def test_pause_is_honoured_for_schedules_of_code(admin_client: Client, weekly: CronEntry):
    CronKeeper().check()
    row = Schedule.objects.get(key_prefix="weekly")
    do(admin_client, "pause", row)
    CronKeeper().check()
    assert ticks() == []


def test_run_now_offers_one_message_that_no_installation_removes(admin_client: Client):
    row = installed()
    before = ticks()
    assert told(do(admin_client, "run_now", row)) == ["Run 1 schedule: nightly."]
    (key,) = set(ticks()) - set(before)
    message = Message.objects.get(key=key)

    assert key.startswith("nightly/run-now-")
    assert message.kind == "reports|json"
    assert json.loads(bytes(message.payload)) == {"n": 1}
    assert abs(message.scheduled_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert key in LogEntry.objects.get().change_message
    CronKeeper(entries=[]).check(force=True)
    do(admin_client, "pause", row)
    assert ticks() == [key]


def test_run_now_asks_the_generator_of_code(admin_client: Client, weekly: CronEntry):
    CronKeeper().check()
    row = Schedule.objects.get(key_prefix="weekly")
    do(admin_client, "run_now", row)
    message = Message.objects.get(key__contains="run-now")
    made_for = datetime.fromisoformat(json.loads(bytes(message.payload))["at"])
    assert abs(made_for - message.scheduled_at) < timedelta(minutes=1)


def test_run_now_is_refused_where_the_code_is_not_loaded(admin_client: Client):
    row = made(declared_in="elsewhere.ticks")
    (text,) = told(do(admin_client, "run_now", row))
    assert "its code, elsewhere.ticks, is not loaded in this process" in text
    assert (ticks(), LogEntry.objects.count()) == ([], 0)


def test_what_a_failing_generator_did_is_undone(admin_client: Client):
    def fail(at: datetime) -> Any:
        made(key_prefix="half done")
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1/0")

    entry = CronEntry("reports", "broken", PeriodicSchedule(timedelta(1)), generator=fail)
    crontab.add(entry)
    try:
        row = made(key_prefix="broken", declared_in="reports.ticks")
        (text,) = told(do(admin_client, "run_now", row))
    finally:
        crontab.remove(entry)
    assert "DataError" in text or "DivisionByZero" in text
    assert not Schedule.objects.filter(key_prefix="half done").exists()
    assert ticks() == []


@pytest.mark.parametrize(
    ("action", "permission"),
    [("pause", "run_schedule"), ("enable", "run_schedule"), ("run_now", "pause_schedule")],
)
def test_each_operation_needs_its_own_permission(action: str, permission: str):
    row = installed(is_enabled=True)
    client = operator(VIEW, "change_schedule", permission)
    before = ticks()
    assert do(client, action, row).status_code == 403
    assert f'value="{action}"' not in page(client, url(row))
    row.refresh_from_db()
    assert (row.is_enabled, ticks(), LogEntry.objects.count()) == (True, before, 0)


def test_adding_and_deleting_need_their_permissions():
    row = made()
    client = operator(VIEW, "change_schedule", "run_schedule", "pause_schedule")
    assert client.get(f"{SCHEDULES}add/").status_code == 403
    assert client.post(f"{SCHEDULES}add/", FORM).status_code == 403
    assert client.post(url(row, "delete"), {"post": "yes"}).status_code == 403
    assert client.post(SCHEDULES, {"action": "delete_selected"}).status_code == 302
    assert Schedule.objects.count() == 1


def test_operations_are_posted_with_a_token_against_forgery():
    row = made()
    client = operator(VIEW, "pause_schedule", enforce_csrf_checks=True)
    assert do(client, "pause", row).status_code == 403
    asked = {"action": "pause", "_selected_action": str(row.pk)}
    assert client.get(SCHEDULES, asked).status_code == 400
    row.refresh_from_db()
    assert row.is_enabled


@pytest.mark.parametrize("action", ["pause", "run_now"])
def test_change_and_audit_are_one_transaction(admin_client: Client, action: str):
    row = installed()
    before = ticks()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_admin_log ADD CHECK (object_repr = '') NOT VALID")
    admin_client.raise_request_exception = False
    assert do(admin_client, action, row).status_code == 500
    row.refresh_from_db()
    assert (row.is_enabled, ticks()) == (True, before)


def test_deleting_takes_the_pending_ticks_back(admin_client: Client):
    row = installed()
    do(admin_client, "run_now", row)
    LogEntry.objects.all().delete()
    assert admin_client.post(url(row, "delete"), {"post": "yes"}).status_code == 302

    assert not Schedule.objects.exists()
    assert ["run-now" in key for key in ticks()] == [True]
    assert LogEntry.objects.get().action_flag == DELETION
