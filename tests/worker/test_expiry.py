"""Messages that expire before a worker starts them (Q37)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from delayed_queue import DelayedQueue, Envelope, RetryPolicy
from delayed_queue.declaring import handler
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import DeadLetter, Message, Sample
from delayed_queue.observe import signals
from delayed_queue.worker.engine.settling import Counts
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]


def offer_expired(*keys: str) -> None:
    """Offer messages, and let them expire by the database's clock."""
    queue = DelayedQueue("mail")
    for key in keys:
        queue.offer_or_update(key, None, expires_in=timedelta(hours=1))
    let_expire(*keys)


def let_expire(*keys: str) -> None:
    past = 'UPDATE delayed_queue SET "expiresAt" = "createdAt" - 1 WHERE "pKey" = ANY (%s)'
    with connection.cursor() as cursor:
        cursor.execute(past, [list(keys)])


def unwanted(envelope: Envelope) -> None:
    raise AssertionError(f"{envelope.key} was started after its expiry")


async def unwanted_too(envelope: Envelope) -> None:
    unwanted(envelope)


@pytest.mark.parametrize("function", [unwanted, unwanted_too])
def test_q37_an_expired_message_is_deleted_counted_and_announced(function: Any):
    announced: list[str] = []

    def note(*, envelopes: list[Envelope], **kwargs: Any) -> None:
        announced.extend(each.key for each in envelopes)

    signals.expired.connect(note)
    offer_expired("a", "b")
    DelayedQueue("mail").offer_or_update("later", None, delay=timedelta(hours=1))
    worker = worker_with(handler_of("mail", function), burst=True)
    assert worker.run() == Counts(expired=2)
    assert "2 expired" in str(worker.counts)
    assert sorted(announced) == ["a", "b"]
    assert [each.key for each in Message.objects.all()] == ["later"]
    assert not DeadLetter.objects.exists()
    assert [each.expired for each in Sample.objects.filter(kind="mail|json")] == [2]


def test_q37_a_transactional_handler_is_not_called_either():
    seen: list[str] = []
    offer_expired("a", "b")
    DelayedQueue("mail").offer_or_update("c", None)

    def handle(envelope: Envelope) -> None:
        seen.append(envelope.key)

    worker = worker_with(handler_of("mail", handle, transactional=True), burst=True)
    assert worker.run() == Counts(done=1, expired=2)
    assert seen == ["c"]
    assert not Message.objects.exists()


def test_q37_an_expired_message_can_become_a_dead_letter():
    offer_expired("a")
    worker = worker_with(handler_of("mail", unwanted, on_expired="dead"), burst=True)
    assert worker.run() == Counts(dead=1)
    assert DeadLetter.objects.get().reason == "expired"


def test_q37_what_expires_while_it_waits_for_a_thread_is_not_started():
    """The only thread has handled quick messages, so the worker leases more ahead."""
    queue = DelayedQueue("mail")

    def handle(envelope: Envelope) -> None:
        assert envelope.key != "late"
        if envelope.key == "slow":
            wait_until(lambda: is_past("late"))

    for number in range(60):
        queue.offer_or_update(f"quick-{number}", None)
    queue.offer_or_update("slow", None)
    queue.offer_or_update("late", None, expires_in=timedelta(seconds=2))
    worker = worker_with(handler_of("mail", handle), concurrency=1, burst=True)
    assert worker.run() == Counts(done=61, expired=1)


def is_past(key: str) -> bool:
    """Return whether the message has expired, also when it is not stored any more."""
    statement = """
        SELECT "expiresAt" < floor(extract(epoch FROM statement_timestamp()) * 1000)
        FROM delayed_queue
        WHERE "pKey" = %s"""
    with connection.cursor() as cursor:
        cursor.execute(statement, [key])
        row = cursor.fetchone()
    connection.close()
    return row is None or bool(row[0])


def test_q37_a_retry_after_the_expiry_is_not_started():
    calls: list[str] = []

    def fail(envelope: Envelope) -> None:
        calls.append(envelope.key)
        let_expire(envelope.key)
        raise LookupError

    DelayedQueue("mail").offer_or_update("a", None, expires_in=timedelta(hours=1))
    worker = worker_with(handler_of("mail", fail, retry=RetryPolicy.ladder("1ms")))
    with running(worker):
        wait_until(lambda: not Message.objects.exists())
    assert calls == ["a"]
    assert worker.counts == Counts(failed=1, expired=1)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"on_expired": "keep"}, "on_expired must be one of delete, dead"),
        ({"on_expired": "dead", "transactional": True}, "deletes messages that have expired"),
    ],
)
def test_q37_a_wrong_option_is_refused(options: dict[str, Any], refusal: str):
    with pytest.raises(InvalidConfiguration, match=refusal):
        handler("mail", **options)(unwanted)
