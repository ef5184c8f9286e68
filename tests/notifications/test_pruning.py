"""Pruning deletes old notifications with all rows that belong to them, and nothing else."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
import time_machine
from django.core.management import CommandError, call_command

from delayed_queue.notifications import sweeping
from delayed_queue.notifications.models import (
    DedupeClaim,
    Delivery,
    Notification,
    ParkedRequest,
    Status,
    first_id_at,
    new_ids,
    time_of,
)
from tests.notifications.factories import enqueue

pytestmark = pytest.mark.django_db


def made(days: int, **values: object) -> Notification:
    """A notification of that age, with a delivery."""
    at = datetime.now(UTC) - timedelta(days=days)
    id_ = uuid.UUID(int=first_id_at(at).int + Notification.objects.count())
    notification = enqueue(id=id_, **values)
    Delivery.objects.create(notification=notification, attempt=1, outcome="sent")
    return notification


def ended(days: int, ago: int) -> Notification:
    at = datetime.now(UTC) - timedelta(days=ago)
    return made(days, status=Status.SUCCESSFULLY_PROCESSED, ended_at=at)


def test_what_ended_before_the_age_goes_with_its_deliveries(monkeypatch):
    monkeypatch.setattr(sweeping, "BATCH", 3)
    for _ in range(10):
        ended(100, ago=99)
    kept = [ended(100, ago=2), ended(2, ago=1), made(100), made(1)]
    told = StringIO()
    call_command("prunenotifications", "--older-than", "90d", stdout=told)
    assert told.getvalue() == "notifications deleted: 10\n"
    assert set(Notification.objects.values_list("pk", flat=True)) == {each.pk for each in kept}
    assert Delivery.objects.count() == len(kept)
    assert sweeping.prune(timedelta(days=90)) == 0


def test_a_host_whose_clock_is_wrong_forgets_nothing_early():
    kept = ended(2, ago=1)
    with time_machine.travel(datetime.now(UTC) + timedelta(days=365)):
        assert sweeping.prune(timedelta(days=90)) == 0
    assert Notification.objects.get() == kept


@pytest.mark.parametrize("age", ["0", "1h"])
def test_nothing_is_forgotten_that_a_dedupe_key_still_stands_for(age):
    kept = ended(0, ago=0)
    with pytest.raises(CommandError, match="DEDUPE_WINDOW"):
        call_command("prunenotifications", "--older-than", age)
    assert Notification.objects.get() == kept


def test_keys_go_with_their_window_and_parked_requests_by_age():
    now = datetime.now(UTC)
    for hours in (-1, 1):
        until = now + timedelta(hours=hours)
        DedupeClaim.objects.create(
            tenant="shop", key=str(hours), notification_id=uuid.uuid4(), until=until
        )
        ParkedRequest.objects.create(
            digest=b"%d" % hours, body=b"{", parked_at=now + timedelta(days=90 * hours)
        )
    sweeping.prune(timedelta(days=30))
    assert DedupeClaim.objects.get().key == "1"
    assert bytes(ParkedRequest.objects.get().digest) == b"1"


def test_ids_are_in_order_tell_their_time_and_are_of_version_7():
    before = datetime.now(UTC) - timedelta(seconds=1)
    ids = new_ids(10_000)
    assert ids == sorted(set(ids))
    assert before <= time_of(ids[0]) <= time_of(ids[-1]) <= datetime.now(UTC) + timedelta(seconds=1)
    assert {(each.version, each.variant) for each in ids} == {(7, uuid.RFC_4122)}
    assert first_id_at(time_of(ids[0])) <= ids[0]
