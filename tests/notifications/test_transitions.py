"""The states of a notification (N3), and the fence of each transition from PROCESSING."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction

from delayed_queue import DelayedQueue
from delayed_queue.notifications import managing, services, sweeping
from delayed_queue.notifications.models import Delivery, Notification, Status
from delayed_queue.notifications.settling import CALLBACK_QUEUE, IN_DOUBT, Call, Settlement
from tests.notifications.factories import (
    begin,
    defer,
    enqueue,
    fail,
    finish,
    lease,
    lose_lease,
    settle,
    started,
)

pytestmark = pytest.mark.django_db

SENT = Call("smtp", Delivery.Outcome.SENT, "<id@example.org>", duration=timedelta(seconds=0.2))
REFUSED = Call("smtp", Delivery.Outcome.REFUSED, error_class="550", detail="no such user")


def outcomes(notification: Notification) -> list[str]:
    return list(notification.deliveries.order_by("id").values_list("outcome", flat=True))


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def test_n3_beginning_twice_under_one_lease_counts_one_attempt():
    notification = enqueue()
    envelope = lease(notification)
    first, again = begin(envelope), begin(envelope)
    assert first == again
    assert outcomes(notification) == []


def test_n3_a_takeover_whose_answer_was_lost_keeps_its_doubt():
    notification = enqueue()
    dead = lease(notification)
    begin(dead)
    lose_lease(dead)
    envelope = lease(notification)
    begin(envelope)
    again = begin(envelope)
    assert again is not None
    assert again.in_doubt


def test_n3_one_that_was_begun_without_an_answer_is_no_call():
    notification, envelope, begun = started()
    assert settle(begun, Settlement(Status.ENQUEUED)) == Status.ENQUEUED
    lose_lease(envelope)
    again = begin(lease(notification))
    assert again is not None
    assert (again.attempt, again.in_doubt) == (1, False)


def test_n3_a_crash_in_processing_is_taken_over_and_told():
    notification = enqueue()
    dead = lease(notification)
    begin(dead)
    lose_lease(dead)
    begun = begin(lease(notification))
    assert begun is not None
    assert (begun.attempt, begun.was_interrupted) == (2, True)
    assert outcomes(notification) == ["unfinished"]


def test_n3_a_stale_dispatcher_changes_no_state_but_its_calls_are_kept():
    notification = enqueue()
    old = lease(notification)
    stale = begin(old)
    lose_lease(old)
    current = begin(lease(notification))
    assert stale is not None
    assert current is not None

    assert fail(stale, [REFUSED], "no such user") is None
    notification.refresh_from_db()
    assert notification.status == Status.PROCESSING
    assert outcomes(notification) == ["unfinished", "refused"]
    assert finish(current, [SENT]) == Status.SUCCESSFULLY_PROCESSED


@pytest.mark.parametrize("has_begun", [True, False])
def test_n3_one_whose_lease_is_over_does_not_take_over_from_who_holds_it(has_begun):
    """It was stopped, or cut off from the database, before it could start."""
    notification = enqueue()
    old = lease(notification)
    lose_lease(old)
    current = lease(notification)
    begun = begin(current) if has_begun else None
    assert begin(old) is None
    begun = begun or begin(current)
    assert begun is not None
    assert not begun.in_doubt
    assert finish(begun, [SENT]) == Status.SUCCESSFULLY_PROCESSED


def test_n3_what_is_written_twice_is_told_once():
    notification, _, begun = started()
    defer(begun, [REFUSED])
    assert defer(begun, [REFUSED]) is None
    assert outcomes(notification) == ["refused"]


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_n8_what_ends_unsent_though_it_may_have_been_sent_says_so(end):
    notification, _, begun = started(expires_at=in_an_hour())
    defer(begun, [SENT], IN_DOUBT)
    if end == "cancelled":
        assert managing.cancel(notification.id)
    else:
        Notification.objects.update(expires_at=datetime.now(UTC))
        assert sweeping.expire_overdue() == 1
    notification.refresh_from_db()
    assert notification.outcome == f"{end}, in doubt"


def test_n3_what_waits_without_a_message_is_failed_and_can_be_retried():
    """An operator dropped it on the page of its queue."""
    lost = [enqueue() for _ in range(3)]
    for each in lost:
        services.queue_of("normal", "email").drop_message(str(each.pk))
    kept = [enqueue() for _ in range(3)] + [enqueue(channel="sms", send_at=in_an_hour())]
    assert sweeping.fail_lost(limit=2) == 3
    found = dict(Notification.objects.values_list("pk", "status"))
    assert {found[each.pk] for each in lost} == {Status.FAILED}
    assert {found[each.pk] for each in kept} == {Status.ENQUEUED}
    assert Notification.objects.filter(outcome="its message is gone").count() == 3
    assert sweeping.fail_lost() == 0
    assert managing.retry(lost[0].pk)
    assert sweeping.fail_lost() == 0


def test_n3_one_in_hand_whose_message_is_gone_is_failed_in_doubt():
    notification = enqueue()
    begin(lease(notification))
    services.queue_of("normal", "email").drop_message(str(notification.pk))
    assert sweeping.fail_lost() == 1
    notification.refresh_from_db()
    assert notification.outcome == "its message is gone, in doubt"
    assert outcomes(notification) == ["unfinished"]


def test_n3_what_has_a_message_again_when_it_is_looked_at_anew_is_left():
    notification = enqueue()
    assert sweeping.fail_lost_of([notification.pk]) == 0


@pytest.mark.parametrize("end", ["sent", "expired", "cancelled"])
def test_n3_each_end_offers_its_callback(end):
    hour = timedelta(hours=1)
    expires_at = datetime.now(UTC) + (-hour if end == "expired" else hour)
    notification = enqueue(callback_url="https://shop.example/told", expires_at=expires_at)
    if end == "cancelled":
        managing.cancel(notification.id)
    else:
        begun = begin(lease(notification))
        if begun is not None:
            finish(begun, [SENT])
    notification.refresh_from_db()
    callback = DelayedQueue(CALLBACK_QUEUE).try_poll()
    assert callback is not None
    assert callback.payload == {"id": str(notification.id), "status": notification.status}


@pytest.mark.parametrize(
    "values",
    [
        {"status": "LOST"},
        {"status": "PROCESSING"},
        {"status": "FAILED"},
        {"channel": "pigeon"},
        {"priority": "low"},
    ],
)
def test_n3_the_database_refuses_what_is_no_state(values):
    row = Notification.objects.filter(pk=enqueue().pk)
    with pytest.raises(IntegrityError), transaction.atomic():
        row.update(**values)


def test_n12_neither_repr_tells_the_recipient():
    notification = enqueue()
    begun = begin(lease(notification))
    told = repr(notification) + str(notification) + repr(begun)
    # Not "ada", which an id may contain in its hexadecimal digits.
    assert "example" not in told
    assert "Hello" not in told
