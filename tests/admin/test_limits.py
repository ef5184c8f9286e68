"""Limits of groups on the page of a queue: confirmed, permitted, recorded (G6, G9)."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.test import Client

from delayed_queue import DelayedQueue, Envelope, Groups, ScheduledMessage
from delayed_queue.declaring import handler
from delayed_queue.handlers import registry
from delayed_queue.models import DeadLetter, Limit
from tests.admin.support import QUEUES, operator, page, told
from tests.support.factories import DeadLetterFactory

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
KIND = "orders|json"
URL = f"{QUEUES}history/?kind=orders%7Cjson"
ALL = {"order": "any", "on_dead": "pass", "fair": "on"}
BUTTON = re.compile(r'form="dq-groups" name="(\w+)" value="([^"]*)"')
ERROR = re.compile(r'<ul class="errorlist[^>]*?id="id_(\w+)_error"[^>]*>(.*?)</ul>', re.DOTALL)


@pytest.fixture
def queue() -> DelayedQueue:
    return DelayedQueue("orders")


def buttons(client: Client) -> list[tuple[str, str]]:
    return [(name, unescape(value)) for name, value in BUTTON.findall(page(client, URL))]


def ask(client: Client, name: str, group: str = "") -> str:
    """Press a button of the page; return the page of its confirmation."""
    response = client.post(URL, {name: group})
    assert response.status_code == 200, response
    return str(response.content.decode())


def change(client: Client, change_name: str, target: str = "", **data: str) -> Any:
    """Press a button of the page, and confirm the change."""
    ask(client, change_name, target)
    return client.post(URL, {change_name: target, "confirmed": "yes", **data})


def stored(group: str = "") -> Limit:
    return Limit.objects.get(kind=KIND, group=group)


def test_g6_setting_limits_asks_first_with_those_that_are_there(admin_client, queue):
    queue.groups.set(Groups(concurrency=7, rate="600/m", queue_rate="5/h", fair=False))

    html = ask(admin_client, "limit_all")

    assert "Set limits of all groups: orders" in html
    for name, value in (("concurrency", "7"), ("rate", "10/s"), ("queue_rate", "5/h")):
        assert re.search(rf'name="{name}" value="{value}"', html)
    assert "checked" not in html
    assert stored().concurrency == 7


def test_g6_confirmed_they_hold_and_the_page_says_so(admin_client: Client, queue: DelayedQueue):
    queue.offer_batch([ScheduledMessage(f"k{n}", None, group="a") for n in range(5)])
    given = {"concurrency": "2", "rate": "", "queue_rate": "600/h", "queue_burst": "20"}

    response = change(admin_client, "limit_all", **{**ALL, **given})

    assert response.url == URL
    assert told(response) == ["Limited 1 queue: orders."]
    assert len(queue.try_poll_many(10)) == 2
    html = page(admin_client, URL)
    assert "All groups: 2 at a time, 10/m of all together, burst 20 of all together" in html


def test_g6_all_that_a_handler_can_declare_can_be_set(admin_client: Client, queue: DelayedQueue):
    given = {"order": "fifo", "on_dead": "block", "rate": "1/s", "burst": "3"}
    change(admin_client, "limit_all", **given)
    set_by_admin = Limit.objects.values().get(kind=KIND)
    queue.groups.set(Groups(order="fifo", on_dead="block", rate="1/s", burst=3, fair=False))
    assert Limit.objects.values().get(kind=KIND) == set_by_admin


def test_g6_of_one_group(admin_client: Client, queue: DelayedQueue):
    given = {"group": "customer-42", "concurrency": "20", "weight": "3", "rate": "1/d"}

    assert told(change(admin_client, "limit_group", **given)) == ["Limited 1 group: customer-42."]

    row = stored("customer-42")
    assert (row.concurrency, row.weight, row.interval, row.burst) == (20, 3, 86_400_000, None)
    assert "20 at a time, weight 3, 1/d of a group" in page(admin_client, URL)
    html = ask(admin_client, "limit_group", "customer-42")
    assert 'name="rate" value="1/d"' in html
    assert 'name="group"' not in html


def test_g6_a_group_that_is_to_be_named_has_nothing_filled_in(admin_client, queue):
    queue.groups.set(Groups(concurrency=7, rate="1/d"))
    html = ask(admin_client, "limit_group")
    assert not re.search(r'name="(concurrency|rate)" value', html)
    assert told(change(admin_client, "limit_group", group="a", weight="2")) == [
        "Limited 1 group: a."
    ]


def test_g6_emptied_a_group_has_none_of_its_own(admin_client: Client, queue: DelayedQueue):
    queue.groups.limit("a", concurrency=3)
    change(admin_client, "limit_group", "a")
    assert not Limit.objects.exists()
    assert told(change(admin_client, "limit_group", "b")) == [
        "Skipped 1 group, without limits of its own already: b."
    ]


def test_g6_taken_back_nothing_holds_the_groups(admin_client: Client, queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=1))
    assert told(change(admin_client, "clear_limits")) == ["Removed the limits of 1 queue: orders."]
    assert not Limit.objects.exists()
    assert told(change(admin_client, "clear_limits")) == [
        "Skipped 1 queue, without limits already: orders."
    ]


def test_g9_a_group_is_paused_and_resumed(admin_client: Client, queue: DelayedQueue):
    queue.offer_or_update("k", None, group="a")

    given = {"group": "a", "reason": "moving <house>"}
    assert told(change(admin_client, "pause_group", **given)) == ["Paused 1 group: a."]

    assert queue.try_poll() is None
    assert "paused: admin, moving &lt;house&gt;" in page(admin_client, URL)
    assert ("resume_group", "a") in buttons(admin_client)
    assert told(change(admin_client, "resume_group", "a")) == ["Resumed 1 group: a."]
    assert queue.try_poll() is not None


def test_g9_a_group_behind_a_dead_letter_is_resumed(admin_client: Client, queue: DelayedQueue):
    queue.groups.set(Groups(order="fifo", on_dead="block"))
    DeadLetterFactory.create(kind=KIND)
    DeadLetter.objects.update(group="a")
    queue.offer_or_update("k", None, group="a")
    assert queue.try_poll() is None
    assert ("resume_group", "a") in buttons(admin_client)
    change(admin_client, "resume_group", "a")
    assert queue.try_poll() is not None


def test_g9_the_first_pause_of_a_group_stands(admin_client: Client, queue: DelayedQueue):
    queue.groups.pause("a", "first", by="ana")
    assert told(change(admin_client, "pause_group", "a", reason="second")) == [
        "Skipped 1 group, paused already: a."
    ]
    assert stored("a").reason == "first"
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("name", "field", "value", "reason"),
    [
        ("limit_all", "concurrency", "0", "greater than or equal to 1"),
        ("limit_all", "concurrency", "10001", "less than or equal to 10000"),
        ("limit_all", "concurrency", "two", "whole number"),
        ("limit_all", "rate", "0/s", "is not a rate"),
        ("limit_all", "rate", "ten a second", "is not a rate"),
        ("limit_all", "queue_rate", "10/y", "is not a rate"),
        ("limit_all", "rate", "9" * 50 + "/s", "at most 12 characters"),
        ("limit_all", "burst", "5", "burst needs a rate"),
        ("limit_all", "queue_burst", "5", "queue_burst needs a queue_rate"),
        ("limit_all", "concurrency", "2", "one at a time"),
        ("limit_all", "order", "lifo", "is not one of the available choices"),
        ("limit_group", "group", "", "required"),
        ("limit_group", "group", "g" * 101, "at most 100 characters"),
        ("limit_group", "group", "a\x00", "Null characters"),
        ("limit_group", "weight", "-1", "greater than or equal to 1"),
        ("pause_group", "group", "", "required"),
    ],
)
def test_g11_a_refusal_stands_at_its_field_with_what_was_typed(
    admin_client: Client, name: str, field: str, value: str, reason: str
):
    order = {"order": "fifo"} if value == "2" else {}
    given = {**ALL, **order, "group": "a", "reason": "typed <before>", field: value}
    response = admin_client.post(URL, {name: "", "confirmed": "yes", **given})
    html = response.content.decode()
    (found,) = ERROR.findall(html)
    assert found[0] == field
    assert reason in unescape(found[1])
    if field != "order":
        assert not value or f'name="{field}" value="{value}"' in html
    assert not Limit.objects.exists()


@pytest.mark.parametrize("data", [{}, {"stop": ""}, {"pause_group": "x" * 101}])
def test_g11_nonsense_is_refused(admin_client: Client, data: dict[str, str]):
    assert admin_client.post(URL, {**data, "confirmed": "yes"}).status_code == 400
    assert not Limit.objects.exists()


def test_g6_changes_are_recorded(admin_client: Client, admin_user: Any, queue: DelayedQueue):
    change(admin_client, "limit_all", **{**ALL, "concurrency": "2"})
    change(admin_client, "pause_group", group="a", reason="moving")
    change(admin_client, "resume_group", "a")

    entries = LogEntry.objects.order_by("id")
    assert {(each.user, each.action_flag) for each in entries} == {(admin_user, CHANGE)}
    assert entries[0].object_id == str(stored().pk)
    assert [each.change_message for each in entries] == [
        f"Limited. Queue {KIND}. Concurrency 2, order any, on_dead pass, fair True.",
        f"Paused. Queue {KIND}, group a. Reason moving.",
        f"Resumed. Queue {KIND}, group a.",
    ]


def test_g6_a_transactional_queue_gets_no_limits(admin_client: Client):
    @handler("orders", transactional=True)
    def handle(envelope: Envelope) -> None: ...

    try:
        response = change(admin_client, "limit_all", **{**ALL, "concurrency": "2"})
    finally:
        registry.remove("orders")
    assert "is transactional and uses no leases" in unescape(response.content.decode())
    assert not Limit.objects.exists()


NAMES = ("limit_all", "limit_group", "pause_group", "resume_group", "clear_limits")


def test_g6_viewers_see_what_holds_and_can_change_nothing(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=2))
    queue.groups.pause("a")
    viewer = operator("view_message")
    assert "All groups: 2 at a time" in page(viewer, URL)
    assert buttons(viewer) == []
    for name in NAMES:
        for data in ({}, {"confirmed": "yes", "group": "a"}):
            assert viewer.post(URL, {name: "", **data}).status_code == 403
    assert stored().concurrency == 2
    assert stored("a").paused_at is not None
