"""Providers that refuse calls for lack of capacity (N19)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delayed_queue.notifications.models import Delivery, Notification
from tests.notifications.dispatchers import SENT, dispatch_all, email_entry
from tests.notifications.factories import enqueue
from tests.notifications.fakes import FakeSms, FakeSmtp

pytestmark = pytest.mark.django_db(transaction=True)
SMS: dict[str, Any] = {"channel": "sms", "recipient": "+40721234567"}


def attempts() -> set[int]:
    return set(Notification.objects.values_list("attempts", flat=True))


def test_n19_a_relay_with_room_for_five_connections_takes_all_mail(dispatch: dict[str, Any]):
    with FakeSmtp(latency=0.01, room=5) as relay:
        dispatch["PROVIDERS"]["email"] = [email_entry(relay, threads=50)]
        for number in range(500):
            enqueue(recipient=f"ada{number}@example.org")
        assert dispatch_all(500) == {SENT: 500}
        # At first one for each thread, then one for each growth of the room.
        assert 0 < relay.refused < 150
        assert set(relay.accepted.values()) == {1}
        assert len(relay.accepted) == 500
    assert attempts() == {1}
    assert Delivery.objects.filter(outcome="sent").count() == Delivery.objects.count() == 500


def test_n19_the_next_provider_takes_what_the_first_has_no_room_for(dispatch: dict[str, Any]):
    with FakeSmtp(latency=0.2, room=1) as full, FakeSmtp() as free:
        entries = [email_entry(full, "full", threads=20), email_entry(free, "free", threads=20)]
        dispatch["PROVIDERS"]["email"] = entries
        dispatch["WAIT"] = timedelta(0)
        for number in range(20):
            enqueue(recipient=f"ada{number}@example.org")
        assert dispatch_all(20) == {SENT: 20}
        assert full.accepted.total() + free.accepted.total() == 20
        assert free.accepted.total() > 10
    assert attempts() == {1}


@pytest.mark.parametrize("status", ["429,1", "429,3"])
def test_n19_a_429_counts_no_attempt(dispatch: dict[str, Any], sms: FakeSms, status: str):
    dispatch["CIRCUIT_PAUSE"] = timedelta(milliseconds=100)
    for _ in range(10):
        enqueue(**SMS, body=f"[{status}] Your code is 7.")
    assert dispatch_all(10) == {SENT: 10}
    assert attempts() == {1}
