"""Why a queue is late: each reason, in order, in the admin, commands and metrics (O17)."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils.translation import override
from pytest_django import Settings

from delayed_queue import DelayedQueue, Groups
from delayed_queue.models import DeadLetter, Message
from delayed_queue.observe.lateness import Reason, reasons_of
from delayed_queue.observe.metrics import QueueCollector
from delayed_queue.observe.overview import measure
from delayed_queue.observe.snapshots import Snapshot
from tests.admin.support import operator, page
from tests.support.factories import MessageFactory, from_now, worker_row

pytestmark = pytest.mark.django_db

OVERVIEW = "/admin/delayed_queue/queueoverview/"
FULL = {"busy": {"mail": 6, "orders": 2}, "threads": 8}


def queue() -> DelayedQueue:
    return DelayedQueue("orders")


def serve(**fields: Any) -> None:
    worker_row("web-1", queues=["orders"], **fields)


def pause() -> None:
    queue().pause("moving", by="anna")


def block() -> None:
    queue().groups.set(Groups(order="fifo", on_dead="block"))
    queue().offer_or_update("poison", 1, group="acme")
    (envelope,) = queue().try_poll_many(1)
    assert envelope.reject("no address")
    queue().offer_or_update("next", 1, group="acme")
    age_all()


def throttle() -> None:
    queue().groups.set(Groups(rate="1/d"))
    for key in ("first", "second"):
        queue().offer_or_update(key, 1, group="acme")
    assert len(queue().try_poll_many(2)) == 1
    age_all()


def hold_back() -> None:
    queue().groups.pause("acme", "unpaid")
    queue().offer_or_update("k", 1, group="acme")
    age_all()


def fill_up() -> None:
    queue().groups.set(Groups(concurrency=1))
    for key in ("first", "second"):
        queue().offer_or_update(key, 1, group="acme")
    assert len(queue().try_poll_many(2)) == 1
    age_all()


def age_all() -> None:
    """Make every message without a lease ten minutes late."""
    Message.objects.filter(lease_id=None).update(scheduled_at=from_now(minutes=-10))


def reasons() -> list[Reason]:
    MessageFactory.create(kind="orders|json", scheduled_at=from_now(minutes=-10))
    found = reasons_of(measure(["orders"])[0])
    return found["orders|json"]


CASES: list[tuple[str, Callable[[], object], str]] = [
    ("unserved", lambda: None, "no worker serves it"),
    ("unserved", lambda: serve(silent_for=60), "no worker serves it"),
    ("paused", pause, "paused (anna: moving) for 0:00:0"),
    ("paused", hold_back, "groups are paused: acme"),
    ("busy", lambda: serve(**FULL), "all 8 threads of its workers are busy: mail (6), orders (2)"),
    ("blocked", block, "groups are blocked by a dead letter: acme"),
    ("limited", throttle, "groups are at their rate limit: acme"),
    ("limited", fill_up, "groups have their maximum of messages in progress: acme"),
    ("backlog", lambda: None, "more is due than its workers have handled so far"),
]


@pytest.mark.parametrize(
    ("name", "provoke", "text"), CASES, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(CASES)]
)
def test_o17_each_reason(name: str, provoke: Callable[[], object], text: str) -> None:
    provoke()
    if name not in ("unserved", "busy"):
        serve(busy={"orders": 1}, threads=8)
    (found,) = reasons()
    assert found.name == name
    assert str(found).startswith(text)


def test_o17_several_reasons_come_in_the_order_of_the_contract(monkeypatch):
    block()
    pause()
    serve(**FULL)
    held = Snapshot("session", "7", "psql", "anna", "idle", "", 900.0, 5, 9_000, "", 0.0, 0)
    monkeypatch.setattr("delayed_queue.observe.lateness.oldest_snapshot", lambda using: held)
    assert [each.name for each in reasons()] == ["paused", "busy", "blocked", "snapshot"]


def test_o17_a_worker_with_a_free_thread_is_not_busy() -> None:
    serve(**FULL)
    serve(busy={}, threads=8)
    assert [each.name for each in reasons()] == ["backlog"]


def test_o17_a_blocked_group_names_the_dead_letter() -> None:
    block()
    serve()
    (found,) = reasons()
    assert found.letter == DeadLetter.objects.get().pk


def test_o17_a_late_queue_is_one_that_exceeds_the_setting(settings: Settings) -> None:
    MessageFactory.create(scheduled_at=from_now(minutes=-10))
    assert stats()["late"]
    settings.DELAYED_QUEUE = {**settings.DELAYED_QUEUE, "QUEUE_LATE": timedelta(hours=1)}
    assert stats()["late"] == []


def stats() -> Any:
    out = StringIO()
    call_command("queuestats", "--queue", "orders", "--format", "json", stdout=out)
    return json.loads(out.getvalue())["queues"][0]


# The same reasons everywhere


@pytest.fixture
def blocked() -> str:
    """A late queue without a worker, with a blocked group; returns the page of the dead letter."""
    block()
    return f"/admin/delayed_queue/deadletter/{DeadLetter.objects.get().pk}/change/"


BOTH = "no worker serves it; groups are blocked by a dead letter: acme"


@pytest.mark.usefixtures("blocked")
def test_o17_the_commands_give_them() -> None:
    out = StringIO()
    call_command("queuestats", stdout=out)
    assert f"orders is late: {BOTH}" in out.getvalue()
    late = stats()["late"]
    assert [each["reason"] for each in late] == ["unserved", "blocked"]
    assert late[1]["dead_letter"] == DeadLetter.objects.get().pk


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("blocked")
def test_o17_the_probe_gives_them() -> None:
    out = StringIO()
    with suppress(SystemExit):
        call_command("queuehealth", "--max-age", "60", stdout=out)
    assert f" late; at most 0:01:00 is allowed: {BOTH}" in out.getvalue()


@pytest.mark.usefixtures("blocked")
def test_o17_a_metric_has_them() -> None:
    found = {each.name: each.samples for each in QueueCollector(["orders"]).collect()}
    assert [each.labels for each in found["delayed_queue_late"]] == [
        {"queue": "orders", "kind": "orders|json", "reason": name}
        for name in ("unserved", "blocked")
    ]


def test_o17_the_overview_links_the_dead_letter(admin_client: Client, blocked: str) -> None:
    html = page(admin_client, OVERVIEW)
    assert "no worker serves it" in html
    assert f'<a href="{blocked}">groups are blocked by a dead letter: acme</a>' in html
    with override("de"):
        assert "kein Worker bedient sie" in [each.described(str) for each in reasons()]


def test_o17_only_those_who_may_see_dead_letters_get_the_link(blocked: str) -> None:
    html = page(operator("view_message"), OVERVIEW)
    assert "groups are blocked by a dead letter: acme" in html
    assert blocked not in html
