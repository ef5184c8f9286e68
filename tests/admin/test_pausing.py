"""Pausing and resuming from the queues page: confirmed, fenced, permitted, recorded (W12)."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.test import Client

from delayed_queue import DelayedQueue
from delayed_queue.db.wakeups import channel_of
from delayed_queue.models import Limit
from tests.admin.support import LETTERS, QUEUES, operator, page, told
from tests.support.concurrency import raw_connection
from tests.support.factories import DeadLetterFactory, MessageFactory
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db

KIND = "orders|json"
BUTTON = re.compile(r'name="(pause|resume)" value="([^"]*)"')


@pytest.fixture
def queue() -> DelayedQueue:
    return DelayedQueue("orders")


def buttons(client: Client) -> dict[str, str]:
    """Return the name of each button of the page, by its value."""
    return {unescape(value): name for name, value in BUTTON.findall(page(client, QUEUES))}


def switch(client: Client, name: str, value: Any, **data: str) -> Any:
    return client.post(QUEUES, {name: value, "confirmed": "yes", **data})


def paused_id() -> int:
    return Limit.objects.get(kind=KIND).pk


def test_w12_pausing_asks_first(admin_client: Client, queue: DelayedQueue):
    MessageFactory.create()
    assert buttons(admin_client)[KIND] == "pause"

    response = admin_client.post(QUEUES, {"pause": KIND})

    html = response.content.decode()
    assert response.status_code == 200
    assert "Pause orders?" in html
    assert f'name="pause" value="{KIND}"' in html
    assert not queue.is_paused()


def test_w12_confirmed_it_is_paused_and_the_page_says_why(admin_client, queue):
    MessageFactory.create()
    response = switch(admin_client, "pause", KIND, reason="the bank is down <b>")

    assert response.url == QUEUES
    assert told(response) == ["Paused 1 queue: orders."]
    assert queue.try_poll() is None
    html = page(admin_client, QUEUES)
    assert "by admin: the bank is down &lt;b&gt;" in html
    assert buttons(admin_client)[str(paused_id())] == "resume"


def test_w12_a_paused_queue_is_listed_with_nothing_in_it(admin_client: Client):
    DelayedQueue("empty").pause("why not")
    assert "why not" in page(admin_client, QUEUES)


def test_w12_resuming_asks_and_shows_what_it_ends(admin_client: Client, queue: DelayedQueue):
    queue.pause("upgrade", by="ana")

    response = admin_client.post(QUEUES, {"resume": paused_id()})

    assert "by ana: upgrade" in response.content.decode()
    assert queue.is_paused()
    assert told(switch(admin_client, "resume", paused_id())) == ["Resumed 1 queue: orders."]
    assert not queue.is_paused()


def test_w12_a_pause_that_was_not_seen_is_left_alone(admin_client: Client, queue: DelayedQueue):
    queue.pause("seen")
    seen = paused_id()
    queue.resume()
    queue.pause("for another reason")

    assert told(switch(admin_client, "resume", seen)) == [
        f"Skipped 1 queue, no longer there: id {seen}."
    ]
    assert queue.is_paused()
    assert not LogEntry.objects.exists()


def test_w12_the_first_pause_stands_and_the_second_is_told(admin_client, queue):
    queue.pause("first", by="ana")

    assert told(switch(admin_client, "pause", KIND, reason="second")) == [
        "Skipped 1 queue, paused already: orders."
    ]
    assert Limit.objects.get().reason == "first"
    assert not LogEntry.objects.exists()


def test_w12_both_are_recorded(admin_client: Client, admin_user: Any):
    switch(admin_client, "pause", KIND, reason="upgrade")
    row_id = str(paused_id())
    switch(admin_client, "resume", row_id)

    entries = LogEntry.objects.order_by("id")
    assert [(each.user, each.object_id, each.action_flag) for each in entries] == [
        (admin_user, row_id, CHANGE)
    ] * 2
    assert [each.change_message for each in entries] == [
        f"Paused. Queue {KIND}. Reason: upgrade",
        f"Resumed. Queue {KIND}.",
    ]


BUTTONS = [
    (QUEUES, {"pause": KIND}, "view_message", "pause_queue"),
    (f"{QUEUES}history/?kind={KIND}", {"pause_group": "a"}, "view_message", "pause_queue"),
    (f"{QUEUES}history/?kind={KIND}", {"clear_limits": ""}, "view_message", "pause_queue"),
    (f"{LETTERS}failures/", {"redrive": f"a:{KIND}"}, "view_deadletter", "redrive_deadletter"),
    (f"{LETTERS}failures/", {"drop": f"a:{KIND}"}, "view_deadletter", "drop_deadletter"),
]


@pytest.mark.parametrize(("url", "pressed", "view", "permission"), BUTTONS)
def test_w12_a_button_of_a_page_needs_its_permission_the_view_and_the_token(
    url: str, pressed: dict[str, str], view: str, permission: str
):
    MessageFactory.create()
    DeadLetterFactory.create(fingerprint="a")
    shown = f'name="{next(iter(pressed))}"'
    viewer, allowed, blind = operator(view), operator(view, permission), operator(permission)
    assert shown not in page(viewer, url)
    assert shown in page(allowed, url)
    forged = operator(view, permission, enforce_csrf_checks=True)
    for data in (pressed, {**pressed, "confirmed": "yes", "reason": ""}):
        for client in (viewer, blind, forged):
            assert client.post(url, data).status_code == 403
    assert not LogEntry.objects.exists()
    assert allowed.post(url, data).status_code == 302


@pytest.mark.parametrize(
    "data",
    [
        {}, {"stop": KIND}, {"pause": ""}, {"pause": "x" * 101}, {"pause": "\x00"},
        {"resume": ""},
    ],
)  # fmt: skip
def test_w12_nonsense_is_refused(admin_client: Client, data: dict[str, str]):
    assert admin_client.post(QUEUES, {**data, "confirmed": "yes"}).status_code == 400
    assert not Limit.objects.exists()


@pytest.mark.parametrize("value", ["x", "-1", str(2**63), "9" * 30])
def test_w12_a_pause_that_cannot_be_is_no_longer_there(admin_client: Client, value: str):
    asked = admin_client.post(QUEUES, {"resume": value}).content.decode()
    assert "Back: all of them have changed since you saw them" in asked
    response = switch(admin_client, "resume", value)
    assert response.status_code == 302


@pytest.mark.django_db(transaction=True)
def test_w12_resuming_wakes_sleeping_workers(admin_client: Client, queue: DelayedQueue):
    queue.pause()
    with raw_connection() as other:
        other.execute(f"LISTEN {channel_of(KIND)}")
        switch(admin_client, "resume", paused_id())
        assert [each.channel for each in _notifications(other)] == [channel_of(KIND)]


def _notifications(other: psycopg.Connection[Any]) -> list[psycopg.Notify]:
    found: list[psycopg.Notify] = []

    def has_come() -> bool:
        found.extend(other.notifies(timeout=0))
        return bool(found)

    wait_until(has_come)
    return found
