"""drain(): deliver the due messages to a handler, and settle them as a worker does (R7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection

from delayed_queue import (
    Batch,
    DelayedQueue,
    Envelope,
    Reject,
    Retry,
    RetryPolicy,
    ScheduledMessage,
    Snooze,
)
from delayed_queue.declaring import handler
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration
from delayed_queue.handlers import registry
from delayed_queue.testing import (
    Drained,
    ManualClock,
    assert_dead,
    assert_not_offered,
    assert_offered,
    drain,
)
from tests.queue.contract.support import HOUR, MINUTE, MakeQueue


def test_delivers_what_is_due_in_order(queue: DelayedQueue, manual_clock: ManualClock):
    queue.offer_batch([ScheduledMessage(key, key.upper()) for key in "ba"])
    queue.offer_or_update("later", 1, delay=HOUR)
    seen: list[Any] = []
    assert drain(queue, lambda envelope: seen.append(envelope.payload)) == Drained(handled=2)
    assert seen == ["B", "A"]
    assert_offered(queue, "later", state="scheduled")
    assert drain(queue, lambda envelope: None) == Drained()
    manual_clock.advance(HOUR)
    assert drain(queue, lambda envelope: None).delivered == 1


def test_settles_each_answer_as_a_worker_does(make_queue: MakeQueue, manual_clock: ManualClock):
    policy = RetryPolicy.ladder("1m")
    queue = make_queue("orders", clock=manual_clock, retry_policy=policy)
    error = ValueError("it broke")
    busy = Retry(MINUTE, "busy")
    answers: dict[str, Exception | None] = {
        "good": None,
        "broken": error,
        "busy": busy,
        "early": Snooze(MINUTE),
        "hopeless": Reject("no such customer"),
    }

    def answer(envelope: Envelope) -> None:
        if found := answers[envelope.key]:
            raise found

    queue.offer_batch([ScheduledMessage(key, 1) for key in answers])
    drained = drain(queue, answer)
    assert drained == Drained(handled=1, failed=2, snoozed=1, rejected=1, errors=(error, busy))
    assert_not_offered(queue, "good")
    assert assert_offered(queue, "broken", state="scheduled").attempts == 1
    assert assert_offered(queue, "early", state="scheduled").attempts == 0
    assert_dead(queue, "hopeless", reason="no such customer")

    manual_clock.advance(MINUTE)
    drained = drain(queue, answer)
    assert (drained.failed, drained.snoozed) == (2, 1)
    assert_dead(queue, "busy", reason="attempts exhausted: Retry")
    assert_dead(queue, "broken", reason="attempts exhausted: ValueError")


def test_a_lease_that_the_handler_ended_is_lost(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    assert drain(queue, lambda envelope: envelope.acknowledge()) == Drained(lost=1)
    queue.offer_or_update("b", 1)
    assert drain(queue, lambda envelope: envelope.release(HOUR)) == Drained(lost=1)
    assert_offered(queue, "b", state="scheduled")


def test_a_handler_may_offer_to_its_own_queue(queue: DelayedQueue):
    def count_down(envelope: Envelope) -> None:
        if envelope.payload:
            queue.offer_or_update(f"n{envelope.payload - 1}", envelope.payload - 1)

    queue.offer_or_update("n3", 3)
    assert drain(queue, count_down).handled == 4


def test_the_limit_ends_what_would_not_end(make_queue: MakeQueue):
    queue = make_queue("orders", retry_policy=RetryPolicy.ladder("0s " * 100))
    queue.offer_or_update("a", 1)
    drained = drain(queue, lambda envelope: 1 // 0, limit=7)
    assert (drained.failed, drained.delivered) == (7, 7)
    assert [type(error) for error in drained.errors] == [ZeroDivisionError] * 7


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_the_limit_is_a_count(queue: DelayedQueue, limit: Any):
    with pytest.raises(InvalidConfiguration, match="limit"):
        drain(queue, lambda envelope: None, limit=limit)


def test_an_async_handler_is_awaited(queue: DelayedQueue):
    async def handle(envelope: Envelope) -> None:
        await queue.aoffer_or_update("seen", envelope.payload, delay=HOUR)

    queue.offer_or_update("a", 7)
    assert drain(queue, handle) == Drained(handled=1)
    assert_offered(queue, "seen", 7)


class TestRegisteredHandlers:
    @pytest.fixture
    def seen(self) -> Iterator[list[Any]]:
        """The messages that the handler of the queue "orders" received."""
        seen: list[Any] = []

        @handler("orders", retry=RetryPolicy.never())
        def handle(envelope: Envelope) -> None:
            seen.append(envelope.payload)
            if envelope.payload == "bad":
                raise ValueError(envelope.payload)

        yield seen
        registry.remove("orders")

    def test_the_registered_handler_serves(self, queue: DelayedQueue, seen: list[Any]):
        queue.offer_or_update("a", 1)
        assert drain(queue) == Drained(handled=1)
        assert seen == [1]

    def test_by_its_own_retry_policy(self, queue: DelayedQueue, seen: list[Any]):
        queue.offer_or_update("a", "bad")
        assert drain(queue).failed == 1
        assert_dead(queue, "a", reason="attempts exhausted")

    def test_without_one_there_is_an_error(self, make_queue: MakeQueue):
        with pytest.raises(HandlerNotFound, match="nobody"):
            drain(make_queue("nobody"))


@pytest.mark.django_db
class TestInsideATransaction:
    """Django's TestCase opens one around each test, and so does this mark."""

    def test_effects_of_a_failed_handler_stay_as_with_a_worker(self):
        queue = DelayedQueue("orders")

        def handle(envelope: Envelope) -> None:
            Group.objects.create(name="written")
            raise ValueError("then broken")

        queue.offer_or_update("a", 1)
        assert drain(queue, handle).failed == 1
        assert Group.objects.filter(name="written").exists()

    def test_a_broken_transaction_is_mended(self):
        queue = DelayedQueue("orders")
        Group.objects.create(name="taken")

        def handle(envelope: Envelope) -> None:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO auth_group (name) VALUES ('taken')")

        queue.offer_or_update("a", 1)
        drained = drain(queue, handle)
        assert [type(error) for error in drained.errors] == [IntegrityError]
        assert assert_offered(queue, "a").attempts == 1
        assert Group.objects.count() == 1

    def test_an_atomic_block_that_asked_for_rollback_is_mended(self):
        queue = DelayedQueue("orders")
        Group.objects.create(name="taken")
        queue.offer_or_update("a", 1)
        # Model.save() runs in an atomic block without a savepoint, which breaks the transaction.
        drained = drain(queue, lambda envelope: Group.objects.create(name="taken"))
        assert [type(error) for error in drained.errors] == [IntegrityError]
        assert queue.read("a") is not None


def test_delivers_batches_to_a_handler_of_many(queue: DelayedQueue, manual_clock: ManualClock):
    """B1 to B3: as a worker does, on PostgreSQL and in memory."""
    calls: list[list[str]] = []

    def store(batch: Batch) -> None:
        calls.append([each.key for each in batch])
        if "poison" in calls[-1]:
            raise ValueError("poison")
        if batch[0].key == "a":
            batch.snooze(batch[0], MINUTE)
            batch.reject(batch[1], "useless")

    handler(queue.name, many=True, batch_size=4, retry=RetryPolicy.ladder("1m"))(store)
    try:
        queue.offer_batch([ScheduledMessage(key, 1) for key in ("a", "b", "poison", "c", "d")])
        drained = drain(queue)
        assert calls == [
            ["a", "b", "poison", "c"], ["a", "b"], ["poison", "c"], ["poison"], ["c"], ["d"],
        ]  # fmt: skip
        assert (drained.handled, drained.snoozed, drained.rejected, drained.failed) == (2, 1, 1, 1)
        assert [str(each) for each in drained.errors] == ["poison"]
        assert_dead(queue, "b", reason="useless")
        manual_clock.advance(MINUTE)
        assert drain(queue, store).delivered == 2
        assert sorted(calls[6:]) == [["a"], ["poison"]]
        assert_dead(queue, "poison", reason="attempts exhausted")
    finally:
        registry.remove(queue.name)
