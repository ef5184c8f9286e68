"""The admin of schedules: its pages and operations."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import connection
from django.test import Client

from delayed_queue.admin.schedule_preview import preview
from delayed_queue.cron.keeper import CronEntry, CronKeeper
from delayed_queue.cron.registry import crontab
from delayed_queue.cron.schedules import PeriodicSchedule
from delayed_queue.models import Message, Schedule
from tests.admin.support import operator, page, told
from tests.cron.schedules import FORM, SCHEDULES, VIEW, do, installed, made, ticks, url

pytestmark = pytest.mark.django_db


# Content of pages


def test_list_shows_what_runs_when_and_where_it_comes_from(admin_client: Client):
    installed()
    made(key_prefix="weekly", declared_in="reports.ticks", is_enabled=False)
    made(key_prefix="mine", type="")  # ticks that a program installs by itself
    html = page(admin_client, SCHEDULES)

    for words in ("nightly", "30 3 * * *", "Europe/Bucharest", "enabled", "paused", " UTC",
                  "reports.ticks", ">admin<", "03:30:00 EE"):  # fmt: skip
        assert words in html, words
    assert '<span class="dq-key">mine</span>' not in html


def test_unreadable_schedule_does_not_break_the_list(admin_client: Client):
    made(timezone="Mars/Olympus")
    made(key_prefix="odd", type="other", declared_in="gone.module")
    html = unescape(page(admin_client, SCHEDULES))

    assert "Unknown time zone 'Mars/Olympus'" in html
    assert "Its times are defined in gone.module" in html


def test_search_finds_a_prefix(admin_client: Client):
    made()
    made(key_prefix="other")
    html = page(admin_client, f"{SCHEDULES}?q=other")
    assert html.count('<span class="dq-key">') == 1


def test_preview_shows_ten_runs_and_the_next_clock_change():
    html = str(preview(made(), datetime(2030, 3, 27, tzinfo=UTC)))
    rows = html.split("<tr")[2:]

    assert len(rows) == 10
    assert "2030-03-30 03:30:00 EET" in rows[3]
    assert "2030-03-30 01:30:00" in rows[3]
    assert "2030-03-31 04:30:00 EEST" in rows[4]
    assert "2030-03-31 03:00 becomes 2030-03-31 04:00, forward by 1 h." in html
    html = str(preview(made(key_prefix="other"), datetime(2030, 5, 1, tzinfo=UTC)))
    assert "2030-10-27 04:00 becomes 2030-10-27 03:00, back by 1 h." in html
    html = str(preview(made(key_prefix="utc", timezone="UTC"), datetime(2030, 5, 1, tzinfo=UTC)))
    assert "The clocks of UTC do not change" in html


def test_detail_shows_the_preview_and_the_buttons_that_fit(admin_client: Client):
    html = page(admin_client, url(made()))
    assert html.count('<td data-label="UTC">') == 10
    assert 'value="pause"' in html
    assert 'value="run_now"' in html
    assert 'value="enable"' not in html


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
    assert text == "Skipped 1 schedule, paused already: nightly."
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


def test_change_and_audit_are_one_transaction(admin_client: Client):
    row = installed()
    before = ticks()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_admin_log ADD CHECK (object_repr = '') NOT VALID")
    admin_client.raise_request_exception = False
    assert do(admin_client, "run_now", row).status_code == 500
    assert ticks() == before


def test_deleting_takes_the_pending_ticks_back(admin_client: Client):
    row = installed()
    do(admin_client, "run_now", row)
    LogEntry.objects.all().delete()
    assert admin_client.post(url(row, "delete"), {"post": "yes"}).status_code == 302

    assert not Schedule.objects.exists()
    assert ["run-now" in key for key in ticks()] == [True]
    assert LogEntry.objects.get().action_flag == DELETION
