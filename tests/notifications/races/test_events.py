"""Events of providers that arrive at the same time (N15); locks fix their order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from delayed_queue.notifications import services
from delayed_queue.notifications.events import Event, Kind, apply
from delayed_queue.notifications.models import Notification, SoftBounce, Suppression
from tests.notifications.factories import enqueue
from tests.support.concurrency import calling, together, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
HELD = (
    "UPDATE delayed_queue_notification SET delivery = 'delivered', delivery_at = %s WHERE id = %s"
)


def event_of(notification: Notification, kind: Kind, at: datetime = NOW) -> Event:
    return Event(kind, at, f"<{notification.pk}@example.org>")


@pytest.mark.parametrize(
    ("end", "counts", "delivery"),
    [("COMMIT", {"unchanged": 1}, "delivered"), ("ROLLBACK", {"applied": 1}, "bounced")],
)
def test_n15_an_event_waits_for_another_and_the_later_one_stays(
    other, admin, end: str, counts: dict[str, int], delivery: str
):
    notification = enqueue()
    other.execute("BEGIN")
    other.execute(HELD, [NOW + timedelta(seconds=1), notification.pk])
    with calling(partial(apply, [event_of(notification, Kind.BOUNCED)])) as applied:
        wait_until_blocked(admin, applied)
        other.execute(end)
        assert applied.answer() == counts
    notification.refresh_from_db()
    assert notification.delivery == delivery
    assert Suppression.objects.count() == (delivery == "bounced")


def test_n15_soft_bounces_at_the_same_time_see_each_other(other, admin):
    """The fifth waits for the fourth, whose row it would not see otherwise."""
    notification = enqueue()
    hashed = bytes(notification.recipient_hash)
    for number in range(3):
        SoftBounce.objects.create(recipient_hash=hashed, at=NOW - timedelta(hours=number + 1))
    other.execute("BEGIN")
    other.execute(services.LOCK, {"name": f"notifications.soft-bounces:{hashed.hex()}"})
    other.execute(
        "INSERT INTO delayed_queue_notification_soft_bounce (recipient_hash, at) VALUES (%s, %s)",
        [hashed, NOW - timedelta(minutes=1)],
    )
    with calling(partial(apply, [event_of(notification, Kind.DEFERRED)])) as applied:
        wait_until_blocked(admin, applied)
        assert not Suppression.objects.exists()
        other.execute("COMMIT")
        assert applied.answer() == {"applied": 1}
    assert Suppression.objects.get().reason == "bounce"


def test_n15_the_same_events_at_once_are_applied_once():
    rows = [enqueue() for _ in range(5)]
    batch = [event_of(each, Kind.COMPLAINED) for each in rows]
    answers = together([partial(apply, batch), partial(apply, batch[::-1])] * 3)
    assert sum(each["applied"] for each in answers) == 5
    assert Suppression.objects.count() == 1
