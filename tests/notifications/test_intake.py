"""Intake (N1, N9): a row and its message together, once for each dedupe key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.db import DatabaseError, connection, transaction

from delayed_queue.notifications import intake, managing, services
from delayed_queue.notifications.catalogue import add_version
from delayed_queue.notifications.intake import Accepted, Refused
from delayed_queue.notifications.models import Notification, Status, Suppression
from delayed_queue.notifications.recipients import recipient_hash
from tests.notifications.configured import configure
from tests.notifications.requests import email, sms, template

pytestmark = pytest.mark.django_db


def accept(*raws, tenant="shop", keys=()):
    return intake.accept(raws, tenant=tenant, fallback_keys=keys)


def accepted(raw, **values) -> Accepted:
    (answer,) = accept(raw, **values)
    assert isinstance(answer, Accepted), answer
    return answer


@pytest.mark.parametrize("days", [-40, 40])
def test_n5_expiry_is_judged_by_the_database_s_clock(days: int):
    soon, past = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, -1))
    with time_machine.travel(datetime.now(UTC) + timedelta(days=days)):
        answers = accept(sms(expiresAt=soon.isoformat()), sms(expiresAt=past.isoformat()))
    assert [type(each) for each in answers] == [Accepted, Refused]


def test_n4_messages_come_in_the_order_of_the_requests():
    answers = accept(*[email() for _ in range(300)])
    batch = services.queue_of("normal", "email").try_poll_many(300)
    assert [each.key for each in batch] == [str(each.id) for each in answers]
    assert sorted(each.key for each in batch) == [each.key for each in batch]


def test_n1_row_and_message_are_one_transaction():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE delayed_queue ADD CHECK (false) NOT VALID")
    with pytest.raises(DatabaseError), transaction.atomic():
        accept(email())
    assert not Notification.objects.exists()


def test_n9_a_scheduled_one_waits():
    send_at = datetime.now(UTC) + timedelta(hours=1)
    accepted(email(sendAt=send_at.isoformat()))
    assert Notification.objects.get().send_at == send_at
    assert services.queue_of("normal", "email").try_poll() is None


def test_n9_a_past_time_is_now_and_overtakes_nobody():
    first = accepted(email())
    accepted(email(sendAt="2001-01-01T00:00:00Z"))
    envelope = services.queue_of("normal", "email").try_poll()
    assert envelope is not None
    assert envelope.key == str(first.id)


def test_n9_a_dedupe_key_stands_for_its_first_request():
    first = accepted(email(dedupeKey="order-1"))
    again = accepted(email(dedupeKey="order-1", subject="Hello again"))
    assert (again.id, again.is_duplicate) == (first.id, True)
    managing.cancel(first.id)
    assert accepted(email(dedupeKey="order-1")).status == Status.CANCELLED
    assert Notification.objects.count() == 1


def test_n9_keys_of_two_tenants_are_two():
    first = accepted(email(dedupeKey="order-1"))
    assert accepted(email(dedupeKey="order-1"), tenant="bank").id != first.id


def test_n9_duplicates_within_one_call_are_one():
    answers = accept(email(dedupeKey="a"), email(dedupeKey="b"), email(dedupeKey="a"))
    assert [each.is_duplicate for each in answers] == [False, False, True]
    assert answers[2].id == answers[0].id


def test_n9_the_key_is_free_again_after_the_window(settings):
    configure(settings, {"DEDUPE_WINDOW": timedelta(0)})
    first = accepted(email(dedupeKey="order-1"))
    # All statements of a transaction share one time, so the window has ended by the next.
    assert accepted(email(dedupeKey="order-1")).id != first.id


def test_n9_a_suppressed_recipient_is_stored_and_not_offered():
    hash_ = recipient_hash("email", "ada@example.org")
    Suppression.objects.create(channel="email", recipient_hash=hash_, category="offers")
    answers = accept(email(to="Ada@example.org", category="offers"), email(category="receipts"))
    assert [each.status for each in answers] == [Status.CANCELLED, Status.ENQUEUED]
    assert services.queue_of("normal", "email").stats().due == 1


def test_n9_the_last_version_of_a_template_counts_unless_one_is_named():
    add_version(template(body="one"))
    add_version(template(body="two"))
    raw = {"channel": "email", "to": "a@example.org", "template": "welcome",
           "context": {"name": "Ada"}}  # fmt: skip
    accept(raw, raw | {"templateVersion": 1})
    assert list(Notification.objects.order_by("id").values_list("body", "template_version")) == [
        ("two", 2), ("one", 1),
    ]  # fmt: skip
