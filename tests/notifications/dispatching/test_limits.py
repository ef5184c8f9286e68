"""Limits that hold a message back when it is sent (N9): expiry, opt-outs, throttles, rates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delayed_queue import RetryPolicy
from delayed_queue.notifications.models import Notification, Status
from tests.notifications.dispatchers import SENT, dispatch_all, dispatcher, statuses
from tests.notifications.factories import enqueue
from tests.notifications.fakes import FakeSms, FakeSmtp
from tests.support.processes import wait_until
from tests.support.running import running

pytestmark = pytest.mark.django_db(transaction=True)


def enqueue_sms(text: str = "", **values: Any) -> Notification:
    return enqueue(channel="sms", recipient="+40721234567", body=f"{text} Code 7.", **values)


def end_of(notification: Notification) -> tuple[str, str]:
    notification.refresh_from_db()
    return notification.status, notification.outcome


def test_n9_what_is_too_late_is_not_sent(dispatch: dict[str, Any], smtp: FakeSmtp):
    notification = enqueue(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    dispatch_all(1)
    assert end_of(notification) == (Status.EXPIRED, "expired")
    assert smtp.seen == {}


def test_n9_what_became_too_late_while_a_provider_failed_goes_to_no_other(dispatch, sms, two):
    sms.delay_of_failures = 0.6
    sms.is_down = True
    notification = enqueue_sms(expires_at=datetime.now(UTC) + timedelta(seconds=0.5))
    dispatch_all(1)
    assert end_of(notification) == (Status.EXPIRED, "expired")
    assert two.seen == {}


def test_n9_what_became_too_late_while_it_waited_for_a_thread_is_not_sent(dispatch, smtp):
    dispatch["PROVIDERS"]["email"][0] |= {"threads": 1, "timeout": 20.0}
    enqueue(recipient="hang+ada@example.org")
    late = enqueue(expires_at=datetime.now(UTC) + timedelta(seconds=0.5))
    with running(dispatcher()):
        wait_until(lambda: smtp.hanging == 1)
        wait_until(lambda: datetime.now(UTC) > expiry_of(late))
        smtp.release()
        wait_until(lambda: end_of(late)[0] in (SENT, Status.EXPIRED))
    assert end_of(late) == (Status.EXPIRED, "expired")
    assert str(late.id) not in smtp.seen


def expiry_of(notification: Notification) -> datetime:
    assert notification.expires_at is not None
    return notification.expires_at


def test_n9_a_retry_that_would_be_too_late_is_not_made(dispatch: dict[str, Any], sms: FakeSms):
    dispatch["RETRY"] = RetryPolicy.ladder("1h")
    notification = enqueue_sms("[503]", expires_at=datetime.now(UTC) + timedelta(minutes=5))
    dispatch_all(1)
    assert end_of(notification)[0] == Status.EXPIRED
    assert notification.deliveries.count() == 1


def test_n9_a_recipient_gets_no_more_than_the_throttle_allows_and_others_do(dispatch, smtp):
    dispatch["THROTTLE"] = {"email": (1 / 3600, 2)}
    for number in range(5):
        enqueue(recipient_hash=b"\x01" * 16, recipient=f"one{number}@example.org")
    others = [enqueue(recipient_hash=bytes([number]) * 16) for number in range(2, 8)]
    with running(dispatcher()):
        wait_until(lambda: statuses()[SENT] == 2 + len(others))
        wait_until(lambda: statuses()[Status.ENQUEUED] == 3)
    assert len(smtp.accepted) == 2 + len(others)


def test_n9_a_provider_is_asked_no_more_often_than_its_rate_by_all_dispatchers(dispatch, sms):
    dispatch["PROVIDERS"]["sms"][0]["rate"] = (1 / 3600, 5)
    for _ in range(12):
        enqueue_sms()
    with running(dispatcher()), running(dispatcher()):
        wait_until(lambda: statuses()[SENT] == 5)
        wait_until(lambda: statuses()[Status.ENQUEUED] == 7)
    assert len(sms.accepted) == 5


def test_n9_a_provider_that_is_left_alone_uses_up_no_permit_of_a_recipient(dispatch, sms):
    """The test makes three calls in all; the recipient's limit is three per hour."""
    dispatch["THROTTLE"] = {"sms": (1 / 3600, 3)}
    dispatch |= {"CIRCUIT_FAILURES": 1, "CIRCUIT_PAUSE": timedelta(seconds=0.2)}
    notification = enqueue_sms("[503,2]")
    dispatch_all(1)
    assert end_of(notification)[0] == SENT
    assert sms.seen == {str(notification.id): 3}
