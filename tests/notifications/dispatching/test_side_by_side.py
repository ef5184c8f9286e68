"""Concurrent dispatchers, and the order of notifications (N5, N6, N9)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from delayed_queue import DelayedQueue
from delayed_queue.notifications.handlers import QUEUES, dispatcher_of
from delayed_queue.notifications.models import Notification, Priority, Status
from delayed_queue.worker.engine.worker import Worker
from tests.notifications.dispatchers import SENT, dispatch_all, dispatcher, ended, statuses
from tests.notifications.factories import enqueue
from tests.notifications.fakes import FakeSms
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)


def enqueue_sms(text: str = "", **values: Any) -> Notification:
    return enqueue(channel="sms", recipient="+40721234567", body=f"{text} Code 7.", **values)


def warm(dispatchers: list[Worker]) -> int:
    """Make each of the dispatchers send some; return the total."""
    sent = 0

    def have_all() -> bool:
        nonlocal sent
        with transaction.atomic():
            for _ in range(20):
                enqueue_sms()
        sent += 20
        wait_until(lambda: ended() == sent)
        return all(each.counts.done >= 4 for each in dispatchers)

    wait_until(have_all)
    return sent


@pytest.mark.parametrize("claim", ["fast", "strict"])
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_n5_two_dispatchers_with_batch_two_process_three_events_in_parallel(
    dispatch: dict[str, Any], sms: FakeSms, claim: str, is_warm: bool
):
    """The test of the original design. The provider answers only once it has all three."""
    options: dict[str, Any] = {"claim": claim, "batch_size": 2, "async_concurrency": 2}
    dispatchers = [dispatcher(**options) for _ in range(2)]
    with running(dispatchers[0]), running(dispatchers[1]):
        sent = warm(dispatchers) if is_warm else 0
        events = [enqueue_sms("[wait]") for _ in range(3)]
        wait_until(lambda: sms.hanging == 3)
        assert ended() == sent
        sms.release()
        wait_until(lambda: statuses() == {SENT: sent + 3})
    assert all(sms.seen[str(event.id)] == 1 for event in events)


def test_n7_a_locked_notification_holds_up_no_other_queue(dispatch, sms, other):
    notification = enqueue_sms("[wait]")
    handlers = [dispatcher_of(name) for name in QUEUES]
    worker = worker_with(*handlers, handler_of("orders", lambda envelope: None))
    with running(worker):
        wait_until(lambda: sms.hanging == 1)
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM delayed_queue_notification FOR UPDATE")
        sms.release()
        wait_until(lambda: sms.accepted[str(notification.id)] == 1)
        for done in (1, 2):
            DelayedQueue("orders").offer_or_update("order", None)
            wait_until(lambda: worker.counts.done == done)  # noqa: B023 # within the iteration
        assert statuses() == {Status.PROCESSING: 1}
        other.execute("ROLLBACK")
        wait_until(lambda: statuses() == {SENT: 1})


def test_n9_an_urgent_one_overtakes_a_campaign(dispatch: dict[str, Any], sms: FakeSms):
    """One at a time, so that their order shows; it is enqueued after the campaign has started."""
    first = enqueue_sms("[wait]", priority=Priority.BULK)
    for _ in range(200):
        enqueue_sms(priority=Priority.BULK)
    with running(dispatcher(async_concurrency=1, batch_size=1)):
        wait_until(lambda: sms.hanging == 1)
        urgent = enqueue_sms(priority=Priority.URGENT)
        sms.release()
        wait_until(lambda: sms.accepted[str(urgent.id)] == 1)
        # Counters keep the order of arrival.
        order = list(sms.accepted)
        wait_until(lambda: ended() == 202)
    assert order.index(str(first.id)) == 0
    assert order.index(str(urgent.id)) <= 2


def test_n4_one_dispatcher_sends_in_the_order_of_the_intake(dispatch: dict[str, Any], sms: FakeSms):
    events = [enqueue_sms() for _ in range(30)]
    dispatch_all(30, async_concurrency=1)
    assert list(sms.accepted) == [str(event.id) for event in events]
