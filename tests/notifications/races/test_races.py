"""Races for one notification, key or template; locks fix their order."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import connection, transaction

from delayed_queue.notifications import intake, managing, parking, services, sweeping
from delayed_queue.notifications.catalogue import add_version
from delayed_queue.notifications.intake import Accepted
from delayed_queue.notifications.models import (
    Delivery,
    Notification,
    ParkedRequest,
    Status,
    Template,
)
from delayed_queue.notifications.parking import Incoming
from delayed_queue.notifications.services import Outgoing
from delayed_queue.notifications.settling import Call
from tests.notifications.factories import begin, enqueue, fail, lease, lose_lease, started
from tests.notifications.requests import email, template
from tests.support.concurrency import calling, together, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

SENT = Call("smtp", Delivery.Outcome.SENT)


def accept(*raws) -> list[Accepted]:
    answers = intake.accept(raws, tenant="shop")
    assert all(isinstance(each, Accepted) for each in answers)
    return answers  # type: ignore[return-value]


def claim_params(id_: uuid.UUID) -> dict[str, object]:
    return {"tenant": "shop", "keys": ["key:a"], "ids": [id_], "window": timedelta(hours=1)}


def begin_params(notification: Notification) -> dict[str, object]:
    """Lease its message, and return a function that starts it under that lease."""
    envelope = lease(notification)
    kind = services.queue_of(notification.priority, notification.channel).kind
    ids, leases = [notification.pk], [envelope.lease_id]
    return {"ids": ids, "kinds": [kind], "leases": leases, "providers": [""]}


def status_of(notification: Notification) -> str:
    notification.refresh_from_db()
    return notification.status


def test_n9_of_two_requests_with_one_key_the_second_waits_and_is_a_duplicate(other, admin):
    first = enqueue()
    with other.transaction():
        other.execute(intake.CLAIM_KEYS, claim_params(first.pk))
        with calling(partial(accept, email(dedupeKey="a"))) as second:
            wait_until_blocked(admin, second)
            other.execute("COMMIT")
            (answer,) = second.answer()
    assert (answer.id, answer.is_duplicate) == (first.pk, True)
    assert Notification.objects.count() == 1


def test_n9_if_the_first_is_undone_the_second_is_the_first(other, admin):
    other.execute("BEGIN")
    other.execute(intake.CLAIM_KEYS, claim_params(uuid.uuid4()))
    with calling(partial(accept, email(dedupeKey="a"))) as second:
        wait_until_blocked(admin, second)
        other.execute("ROLLBACK")
        (answer,) = second.answer()
    assert not answer.is_duplicate
    assert Notification.objects.get().pk == answer.id


def test_n9_batches_with_the_same_keys_in_another_order_never_deadlock():
    keys = [str(each) for each in range(50)]
    raws = [email(dedupeKey=each) for each in keys]
    answers = together([partial(accept, *raws), partial(accept, *reversed(raws))] * 3)
    assert Notification.objects.count() == 50
    assert sum(not each.is_duplicate for batch in answers for each in batch) == 50


@pytest.mark.parametrize(("end", "is_begun"), [("COMMIT", False), ("ROLLBACK", True)])
def test_n3_begin_waits_for_a_cancel(other, admin, end, is_begun):
    notification = enqueue()
    envelope = lease(notification)
    other.execute("BEGIN")
    other.execute(managing.CANCEL, {"id": notification.pk, "reason": "cancelled"})
    with calling(partial(begin, envelope)) as begun:
        wait_until_blocked(admin, begun)
        other.execute(end)
        assert (begun.answer() is not None) == is_begun


@pytest.mark.parametrize(("end", "is_cancelled"), [("COMMIT", False), ("ROLLBACK", True)])
def test_n1_cancel_waits_for_a_begin_and_answers_409_after_it(other, admin, end, is_cancelled):
    notification = enqueue()
    params = begin_params(notification)
    other.execute("BEGIN")
    other.execute(services.START, params)
    with calling(partial(managing.cancel, notification.pk)) as cancelled:
        wait_until_blocked(admin, cancelled)
        other.execute(end)
        assert cancelled.answer() == is_cancelled
    queue = services.queue_of("normal", "email")
    assert queue.contains_message(str(notification.pk)) == (not is_cancelled)


def begun_and_lost() -> tuple[Notification, Outgoing]:
    notification, envelope, begun = started()
    lose_lease(envelope)
    return notification, begun


def test_n3_a_stale_end_waits_for_the_takeover_and_changes_nothing(other, admin):
    notification, stale = begun_and_lost()
    params = begin_params(notification)
    other.execute("BEGIN")
    other.execute(services.START, params)
    with calling(partial(fail, stale, [SENT], "too late")) as settled:
        wait_until_blocked(admin, settled)
        other.execute("COMMIT")
        assert settled.answer() is None
    assert status_of(notification) == Status.PROCESSING


def test_n3_a_takeover_waits_for_the_end_and_finds_nothing_to_do(other, admin):
    notification, begun = begun_and_lost()
    envelope = lease(notification)
    other.execute("BEGIN")
    other.execute(
        "UPDATE delayed_queue_notification SET status = 'SUCCESSFULLY_PROCESSED', lease_id = NULL, "
        "ended_at = now() WHERE id = %s AND lease_id = %s",
        [begun.id, begun.lease_id],
    )
    with calling(partial(begin, envelope)) as taken:
        wait_until_blocked(admin, taken)
        other.execute("COMMIT")
        assert taken.answer() is None
    assert not notification.deliveries.exists()


def test_n3_overlapping_batches_wait_in_one_order(other, admin):
    """With the higher id locked, both wait; the first in line holds no other lock."""
    rows = [enqueue(channel=each) for each in ("email", "sms")]
    envelopes = [lease(each) for each in rows]
    other.execute("BEGIN")
    other.execute("SELECT 1 FROM delayed_queue_notification WHERE id = %s FOR UPDATE", [rows[1].pk])
    with calling(partial(services.start_many, envelopes, {})) as first:
        wait_until_blocked(admin, first)
        with calling(partial(services.start_many, envelopes[::-1], {})) as second:
            wait_until_blocked(admin, second)
            other.execute("COMMIT")
            assert len(first.answer()) == len(second.answer()) == 2


def test_n3_looking_for_lost_ones_waits_for_a_cancel_and_leaves_what_it_ended(other, admin):
    notification = enqueue()
    services.queue_of("normal", "email").drop_message(str(notification.pk))
    other.execute("BEGIN")
    other.execute(managing.CANCEL, {"id": notification.pk, "reason": "cancelled"})
    with calling(sweeping.fail_lost) as failed:
        wait_until_blocked(admin, failed)
        other.execute("COMMIT")
        assert failed.answer() == 0
    assert status_of(notification) == Status.CANCELLED


def test_n1_of_two_retries_one_counts():
    notification, envelope, begun = started()
    fail(begun, [], "refused")
    envelope.acknowledge()
    answers = together([partial(managing.retry, notification.pk)] * 5)
    assert sorted(answers) == [False] * 4 + [True]
    assert services.queue_of("normal", "email").stats().due == 1


def test_n9_the_sweep_passes_over_what_another_holds(other):
    past = datetime.now(UTC) - timedelta(seconds=1)
    held, free = enqueue(expires_at=past), enqueue(expires_at=past)
    with other.transaction(), transaction.atomic():
        other.execute(
            "SELECT 1 FROM delayed_queue_notification WHERE id = %s FOR UPDATE", [held.pk]
        )
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '200ms'")
        assert sweeping.expire_overdue() == 1
    assert (status_of(held), status_of(free)) == (Status.ENQUEUED, Status.EXPIRED)


def test_n2_consumers_that_park_the_same_messages_wait_and_count_both(other, admin):
    messages = [Incoming(b"{"), Incoming(b"[")]
    take = partial(parking.take, tenant="shop", origin="q")
    together([partial(take, messages), partial(take, messages[::-1])] * 4)
    assert list(ParkedRequest.objects.values_list("times", flat=True)) == [8, 8]


def test_n9_versions_added_at_once_get_numbers_of_their_own():
    together([lambda: add_version(template())] * 5)
    assert sorted(Template.objects.values_list("version", flat=True)) == [1, 2, 3, 4, 5]
