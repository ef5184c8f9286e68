"""A running campaign with the provider as witness (N9).

Urgent messages overtake it, and expired ones are not sent. The benchmark covers the million rows.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, LiteralString

import pytest
from django.db import connection
from psycopg import sql

from delayed_queue.models import Message
from delayed_queue.notifications.models import Channel, Notification, Priority, Status
from tests.notifications.dispatchers import SENT
from tests.notifications.dispatching.test_processes import dispatchers
from tests.notifications.factories import enqueue
from tests.notifications.fakes import FakeSms
from tests.support.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

CAMPAIGN: Final = 20_000
SMS: Final = {"channel": Channel.SMS, "recipient": "+40721234567"}
# A one-time code overtakes a campaign, which takes many times as long. The promise is two seconds;
# this leaves room for a busy machine.
SOON: Final = timedelta(seconds=8)


COPY: Final[LiteralString] = """
WITH stored AS (
    INSERT INTO delayed_queue_notification (id, {columns})
    SELECT gen_random_uuid(), {columns}
    FROM delayed_queue_notification, generate_series(1, %(count)s)
    RETURNING id
)
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT stored.id::text, "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
FROM stored, delayed_queue
"""


def begin_campaign() -> None:
    """Store one, as the intake does, and copies of it."""
    enqueue(**SMS, priority=Priority.BULK)
    names = [str(field.column) for field in Notification._meta.concrete_fields]
    columns = sql.SQL(", ").join(sql.Identifier(name) for name in names if name != "id")
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL(COPY).format(columns=columns), {"count": CAMPAIGN - 1})


def let_some_expire(soon: datetime) -> None:
    """Expire the next messages of the campaign, most of them before their turn."""
    waiting = Message.objects.filter(lease_id=None).order_by("scheduled_at", "id")
    some = list(waiting.values_list("key", flat=True)[:2000])
    Notification.objects.filter(pk__in=some, status=Status.ENQUEUED).update(expires_at=soon)


def seconds_to_send_a_code(sms: FakeSms) -> float:
    began_at = time.monotonic()
    expires_at = datetime.now(UTC) + SOON
    code = enqueue(**SMS, priority=Priority.URGENT, body="Code 7.", expires_at=expires_at)
    wait_until(lambda: sms.accepted[str(code.id)] == 1)
    return time.monotonic() - began_at


def test_n9_under_a_campaign_codes_are_prompt_and_what_has_expired_is_not_sent(smtp, sms):
    sms.latency = 0.05
    begin_campaign()
    with dispatchers(smtp, sms, "--processes", "2", "--async-concurrency", "20"):
        wait_until(lambda: sms.total > 200)
        expiry = datetime.now(UTC) + timedelta(seconds=1)
        let_some_expire(expiry)
        took = [seconds_to_send_a_code(sms) for _ in range(8)]
        wait_until(lambda: Notification.objects.filter(status=Status.EXPIRED).count() > 100)
        waiting = Notification.objects.filter(priority=Priority.BULK, status=Status.ENQUEUED)
        assert waiting.count() > 1000  # it was running all the time

    assert max(took) < SOON.total_seconds()
    codes = Notification.objects.filter(priority=Priority.URGENT)
    assert {(code.status, sms.accepted[str(code.id)]) for code in codes} <= {
        (SENT, 1), (Status.PROCESSING, 1)
    }  # fmt: skip
    expiring = Notification.objects.filter(expires_at=expiry)
    ends = {str(code.id): code.status for code in expiring}
    assert Status.EXPIRED in ends.values()
    assert not [key for key, end in ends.items() if end == Status.EXPIRED and key in sms.seen]
    # Checked just before the call.
    late = [sms.began_at[key] - expiry.timestamp() for key in ends if key in sms.accepted]
    assert max(late, default=0.0) < SOON.total_seconds()
    assert set(sms.accepted.values()) == {1}
