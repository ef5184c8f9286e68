"""Events of providers during an outage (N15): applied once, and answered 200."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from delayed_queue.notifications.models import Notification, SoftBounce, Suppression
from tests.notifications.configured import configure
from tests.notifications.factories import enqueue
from tests.notifications.test_events import EVENTS
from tests.support.aiming import COMMIT, Stage
from tests.support.concurrency import calling

pytestmark = pytest.mark.usefixtures("proxied")


@pytest.fixture
def notification(proxied: None, settings: Any) -> Notification:
    configure(settings, {"EVENTS": EVENTS})
    return enqueue()


def post(notification: Notification, kind: str) -> dict[str, int]:
    # As Django does between two requests.
    connection.close_if_unusable_or_obsolete()
    body = json.dumps([[kind, f"{notification.pk}@example.org"]])
    url, headers = "/v1/events/own", {"x-key": "k"}
    answer = Client().post(url, body, content_type="application/json", headers=headers)
    assert answer.status_code == 200
    counts: dict[str, int] = answer.json()
    return counts


def stored() -> tuple[str, int, int]:
    connection.close_if_unusable_or_obsolete()
    delivery = Notification.objects.get().delivery
    return delivery, Suppression.objects.count(), SoftBounce.objects.count()


@pytest.mark.parametrize(
    ("kind", "statement", "end"),
    [
        ("bounced", 'UPDATE "delayed_queue_notification"', ("bounced", 1, 0)),
        ("bounced", 'INSERT INTO "delayed_queue_notification_suppression"', ("bounced", 1, 0)),
        ("deferred", "SELECT pg_advisory_xact_lock", ("unknown", 0, 1)),
        ("deferred", 'INSERT INTO "delayed_queue_notification_soft_bounce"', ("unknown", 0, 1)),
        ("bounced", COMMIT, ("bounced", 1, 0)),
        ("deferred", COMMIT, ("unknown", 0, 1)),
    ],
)  # fmt: skip
def test_n15_a_connection_lost_on_the_way_is_replaced(notification, proxy, kind, statement, end):
    aim = proxy.aim_at(statement, Stage.UNSENT)
    with calling(lambda: post(notification, kind)) as call:
        aim.wait()
        proxy.cut()
        assert call.answer() == {"applied": 1, "unchanged": 0, "unknown": 0}
    assert stored() == end


@pytest.mark.parametrize(
    ("kind", "end"), [("bounced", ("bounced", 1, 0)), ("deferred", ("unknown", 0, 1))]
)
def test_n15_an_answer_lost_after_the_commit_changes_nothing_twice(notification, proxy, kind, end):
    proxy.swallow_answer("COMMIT")
    assert post(notification, kind)["unchanged"] == 1
    assert stored() == end
    assert post(notification, kind)["unchanged"] == 1
