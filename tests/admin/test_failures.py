"""The page of failures: dead letters by cause (O8)."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client

from delayed_queue import DelayedQueue
from delayed_queue.admin.failures import RunForm
from delayed_queue.models import BulkRun
from tests.admin.lists import keys_of
from tests.admin.support import LETTERS, operator, page, post, tokens
from tests.support.factories import DeadLetterFactory, from_now

FAILURES = f"{LETTERS}failures/"
pytestmark = pytest.mark.django_db


def test_failures_are_grouped_by_queue_and_cause_the_latest_first(admin_client: Client):
    DeadLetterFactory.create_batch(3, fingerprint="a" * 16, died_at=from_now(hours=-1))
    DeadLetterFactory.create_batch(2, fingerprint="b" * 16, reason="refused by 12", last_error=None)
    DeadLetterFactory.create(kind="other|json", fingerprint="a" * 16, died_at=from_now(days=-1))
    response = admin_client.get(FAILURES)
    lines = response.context["lines"]

    assert [(each["name"].queue, each["count"], each["title"]) for each in lines] == [
        ("orders", "2", "refused by #"),
        ("orders", "3", "attempts exhausted: ValueError · Traceback (most recent call last):"),
        ("other", "1", "attempts exhausted: ValueError · Traceback (most recent call last):"),
    ]
    listed = page(admin_client, f"{LETTERS}?{lines[1]['query']}")
    assert len(keys_of(listed)) == 3
    of_one_queue = admin_client.get(f"{FAILURES}?kind=other%7Cjson").context["lines"]
    assert [each["name"].queue for each in of_one_queue] == ["other"]


def test_a_letter_has_its_fingerprint_from_its_death_on(admin_client: Client):
    queue = DelayedQueue("orders")
    for key in ("1", "2", "3"):
        queue.offer_or_update(key, {})
        envelope = queue.try_poll()
        assert envelope is not None
        assert envelope.reject(f"customer {key} is gone" if key != "3" else "refused")
    assert [each["count"] for each in admin_client.get(FAILURES).context["lines"]] == ["1", "2"]


def test_a_letter_of_another_program_has_a_group_too(admin_client: Client):
    with connection.cursor() as cursor:
        cursor.execute(
            'INSERT INTO delayed_queue_dead_letter ("pKind", "pKey", payload, attempts, reason, '
            '"scheduledAtInitially", "createdAt", "diedAt") VALUES '
            "('orders|json', 'a', '1', 1, 'no', 0, 0, 0)"
        )
    (line,) = admin_client.get(FAILURES).context["lines"]
    assert (line["row"].fingerprint, line["title"], line["count"]) == ("", "no", "1")
    assert len(keys_of(page(admin_client, f"{LETTERS}?{line['query']}"))) == 1


ADMIN = "/admin/delayed_queue/bulkrun/"


def shown(response: Any) -> str:
    """Return the HTML of a page that requires a confirmation."""
    assert response.status_code == 200
    return unescape(response.content.decode())


def begin(client: Client, action: str = "", target: str = "", **data: str) -> Any:
    asked = {action: target} if action else {}
    return client.post(FAILURES, {**asked, "confirmed": "yes", **data})


def test_a_failure_is_redriven_from_its_line_after_a_page_that_counts(admin_client: Client):
    DeadLetterFactory.create_batch(3, fingerprint="a" * 16)
    target = f"{'a' * 16}:orders|json"
    asked = admin_client.post(FAILURES, {"redrive": target}).content.decode()
    assert "<strong>3</strong> dead letters of orders" in asked
    assert "attempts exhausted: ValueError" in asked
    # Enter in a field presses the first button: it must start nothing.
    first = asked.partition('class="dq-confirm"')[2].partition("<button")[2].partition(">")[0]
    assert "confirmed" not in first
    assert not BulkRun.objects.exists()

    response = begin(admin_client, "redrive", target, pace="50", canary="1", why="mended")
    run = BulkRun.objects.get()
    assert response.url == f"{ADMIN}{run.pk}/change/"
    assert (run.pace, run.canary, run.why, run.total) == (50, 1, "mended", 3)
    assert run.started_by == LogEntry.objects.get().user.get_username()
    assert "0 done · 3 left" in page(admin_client, ADMIN)
    again = begin(admin_client, "redrive", target, why="twice")
    assert "is in progress" in shown(again)
    assert 'value="twice"' in shown(again)


def test_a_failure_is_counted_and_redriven_by_when_it_died(admin_client: Client):
    for hours in (-1, -30, -80):
        DeadLetterFactory.create(fingerprint="a", died_at=from_now(hours=hours))
    data = {"redrive": "a:orders|json", "newer_than": "2d", "older_than": "2h", "why": "night"}
    asked = admin_client.post(FAILURES, data).content.decode()
    assert "<strong>1</strong> dead letter " in asked
    assert 'value="2d"' in asked
    assert not BulkRun.objects.exists()

    begin(admin_client, **data)
    assert BulkRun.objects.get().total == 1


@pytest.mark.parametrize("field", ["over", "newer_than", "older_than"])
def test_a_time_that_is_none_is_told_beside_its_field(admin_client: Client, field: str):
    DeadLetterFactory.create(fingerprint="a")
    html = shown(begin(admin_client, "redrive", "a:orders|json", limit="7", **{field: "soon"}))

    line = html.partition(f'name="{field}"')[0].rpartition('class="form-row"')[2]
    assert "is not a duration" in line
    assert f'name="{field}" value="soon"' in html
    assert 'name="limit" value="7"' in html
    assert not BulkRun.objects.exists()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"canary": "2", "canary_deaths": "3"}, "canary_deaths"),
        ({"newer_than": "1h", "older_than": "2h"}, "until must be later than since"),
        ({"pace": "5", "over": "2h"}, "not both"),
        ({"over": "0s"}, "over must be a duration from 1ms to 366d, not 0s"),
    ],
)
def test_what_makes_no_run_together_is_told_above_the_fields(admin_client, typed, said):
    DeadLetterFactory.create(fingerprint="a")
    html = shown(begin(admin_client, "redrive", "a:orders|json", **typed))

    assert said in html.partition('class="form-row"')[0]
    kept = {name: f'name="{name}" value="{value}"' in html for name, value in typed.items()}
    assert all(kept.values()), kept
    assert not BulkRun.objects.exists()


def test_a_run_is_paused_resumed_and_cancelled(admin_client: Client):
    DeadLetterFactory.create(fingerprint="a")
    begin(admin_client, "drop", "a:orders|json")
    for action, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        post(admin_client, ADMIN, action, tokens(page(admin_client, ADMIN)), confirmed="yes")
        assert BulkRun.objects.get().state == state
    shown = page(admin_client, f"{ADMIN}{BulkRun.objects.get().pk}/change/")
    assert not re.search(r'<div class="readonly">(-|None|)</div>', shown)
    assert shown.count('<div class="readonly"><span class="dq-quiet">—</span></div>') == 3


@pytest.mark.parametrize("pace", ["0", "1000000", "x"])
def test_a_pace_out_of_range_is_asked_for_again(admin_client: Client, pace: str):
    DeadLetterFactory.create(fingerprint="a")
    assert begin(admin_client, "redrive", "a:orders|json", pace=pace).status_code == 200
    assert not BulkRun.objects.exists()


def test_what_is_no_group_begins_nothing(admin_client: Client):
    assert "has no dead letters" in shown(begin(admin_client, "redrive", "a:orders|json"))
    assert begin(admin_client, "redrive", "a:" + "x" * 200).status_code == 400
    assert not BulkRun.objects.exists()
    assert admin_client.post(FAILURES, {}).status_code == 400
    viewer = operator("view_deadletter")
    assert viewer.post(FAILURES, {"drop": "a:orders|json"}).status_code == 403


def test_it_needs_the_permission_to_see_dead_letters():
    assert operator().get(FAILURES).status_code == 403
    assert operator("view_deadletter", "view_message").get(FAILURES).status_code == 200


def test_a_failure_without_a_queue_is_no_server_error(admin_client: Client):
    assert admin_client.get(f"{LETTERS}?failure=abc").status_code == 302
    assert "There are no dead letters." in page(admin_client, FAILURES)


def test_o25_a_run_is_slow_and_behind_a_canary_unless_the_operator_says_otherwise(admin_client):
    DeadLetterFactory.create_batch(3, fingerprint="a")
    asked = admin_client.post(FAILURES, {"redrive": "a:orders|json"}).content.decode()
    form = asked.partition('class="dq-confirm"')[2]
    first, _, more = form.partition('<details class="dq-more">')
    assert 'name="pace" value="100"' in first
    assert 'name="canary" value="20"' in first
    assert all(f'name="{name}"' in more for name in RunForm.more)

    begin(admin_client, "redrive", "a:orders|json", pace="100", canary="20", over="2h")
    run = BulkRun.objects.get()
    assert run.canary == 20
    # Spread over two hours: the default pace gives way.
    assert run.pace == pytest.approx(3 / 7200)
    shown = page(admin_client, f"{ADMIN}{run.pk}/change/")
    assert 'data-dq-live="detail"' in shown
    assert run.failure in unescape(shown)
    assert run.failure in unescape(page(admin_client, ADMIN))
    assert "ValueError" in run.failure
