"""Sessions that finish, join, close and cancel one batch at the same moment (B7, B9)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
import pytest
from django.db import connection, transaction

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import BatchClosed
from delayed_queue.models import Message, StoredBatch
from delayed_queue.queue.batches import MessageBatch
from tests.support.answers import polled
from tests.support.concurrency import calling, together, wait_until_blocked

THEN = ScheduledMessage("then", 1)
ROUNDS: Final = 15
T = TypeVar("T")


@pytest.fixture
def reports(queue: DelayedQueue) -> DelayedQueue:
    return DelayedQueue("reports")


@pytest.fixture
def batch(queue: DelayedQueue, reports: DelayedQueue) -> MessageBatch:
    """An open batch."""
    opened = queue.batch(THEN, then_queue=reports)
    assert opened.id > 0
    return opened


def then_counts(reports: DelayedQueue) -> dict[str, int]:
    stored = reports.read("then")
    assert stored is not None, "then was not offered"
    assert not StoredBatch.objects.exists()
    return {name: value for name, value in stored.headers["batch"].items() if value}


def total(reports: DelayedQueue) -> int:
    return then_counts(reports).get("total", 0)


def behind(admin: psycopg.Connection[Any], hold: Callable[[], Any], call: Callable[[], T]) -> T:
    """Return the result of a call that waits until the transaction of ``hold`` commits."""
    with ExitStack() as stack:
        with transaction.atomic():
            assert hold()
            started = stack.enter_context(calling(call))
            wait_until_blocked(admin, started)
        return started.answer()


def acknowledge_by_sql(lease_id: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT delayed_queue_acknowledge(%s)", [lease_id])
        return bool(cursor.fetchone() == (1,))


class TestTwoLastMembers:
    def test_b7_the_second_waits_and_offers_then(
        self,
        queue: DelayedQueue,
        reports: DelayedQueue,
        batch: MessageBatch,
        admin: psycopg.Connection[Any],
    ):
        batch.offer_batch([ScheduledMessage("a", 1), ScheduledMessage("b", 1)])
        batch.close()
        first, second = polled(queue), polled(queue)
        assert behind(admin, first.acknowledge, second.acknowledge)
        assert total(reports) == 2

    @pytest.mark.parametrize("by_function", [(True, True), (True, False), (False, True)])
    def test_b7_one_that_is_handled_by_sql_waits_and_offers_then(
        self,
        queue: DelayedQueue,
        reports: DelayedQueue,
        batch: MessageBatch,
        admin: psycopg.Connection[Any],
        by_function: tuple[bool, bool],
    ):
        batch.offer_batch([ScheduledMessage("a", 1), ScheduledMessage("b", 1)])
        batch.close()
        first, second = [
            partial(acknowledge_by_sql, polled(queue).lease_id) if is_sql
            else polled(queue).acknowledge
            for is_sql in by_function
        ]  # fmt: skip
        assert behind(admin, first, second)
        assert total(reports) == 2

    @pytest.mark.parametrize("ends", [("acknowledge", "acknowledge"), ("acknowledge", "reject")])
    def test_b7_together_they_offer_one_then(
        self, queue: DelayedQueue, reports: DelayedQueue, ends: tuple[str, str]
    ):
        for turn in range(ROUNDS):
            with queue.batch(THEN, then_queue=reports) as batch:
                batch.offer_batch([ScheduledMessage("a", turn), ScheduledMessage("b", turn)])
            calls: list[Callable[[], Any]] = [partial(_end, polled(queue), each) for each in ends]
            assert together(calls) == [True, True]
            assert total(reports) == 2
            assert reports.drop_message("then")


def _end(envelope: Any, how: str) -> bool:
    return bool(envelope.acknowledge() if how == "acknowledge" else envelope.reject("bad"))


class TestClosing:
    def test_b9_close_waits_for_a_producer(
        self,
        queue: DelayedQueue,
        reports: DelayedQueue,
        batch: MessageBatch,
        admin: psycopg.Connection[Any],
    ):
        assert behind(admin, partial(batch.offer_or_update, "a", 1), batch.close)
        assert not reports.contains_message("then")
        assert polled(queue).acknowledge()
        assert total(reports) == 1

    def test_b7_close_and_the_last_member_offer_one_then(
        self, queue: DelayedQueue, reports: DelayedQueue
    ):
        for turn in range(ROUNDS):
            batch = queue.batch(THEN, then_queue=reports)
            batch.offer_or_update("a", turn)
            calls: list[Callable[[], Any]] = [batch.close, polled(queue).acknowledge]
            assert together(calls) == [True, True]
            assert total(reports) == 1
            assert reports.drop_message("then")

    def test_b9_a_producer_and_close_lose_no_member(
        self, queue: DelayedQueue, reports: DelayedQueue
    ):
        for turn in range(ROUNDS):
            batch = queue.batch(THEN, then_queue=reports)
            assert batch.id

            def join(batch: MessageBatch = batch, turn: int = turn) -> bool:
                try:
                    batch.offer_or_update("a", turn)
                except BatchClosed:
                    return False
                return True

            calls: list[Callable[[], Any]] = [batch.close, join]
            _, has_joined = together(calls)
            if has_joined:
                assert not reports.contains_message("then")
                assert polled(queue).acknowledge()
            assert total(reports) == int(has_joined)
            assert reports.drop_message("then")

    def test_b11_several_producers_fill_one_batch(
        self, queue: DelayedQueue, reports: DelayedQueue, batch: MessageBatch
    ):
        def fill(producer: int) -> None:
            with transaction.atomic():
                for n in range(20):
                    queue.join_batch(batch.id).offer_or_update(f"{producer}-{n}", n)

        together([partial(fill, each) for each in range(4)])
        batch.close()
        assert queue.try_poll_many(100).acknowledge() == 80
        assert total(reports) == 80


class TestMembersThatAdd:
    def test_b9_a_finish_does_not_pass_a_member_that_adds_others(
        self,
        queue: DelayedQueue,
        reports: DelayedQueue,
        batch: MessageBatch,
        admin: psycopg.Connection[Any],
    ):
        batch.offer_or_update("a", 1)
        batch.close()
        envelope = polled(queue)
        assert behind(admin, partial(envelope.batch.offer_or_update, "b", 1), envelope.acknowledge)
        assert not reports.contains_message("then")
        assert polled(queue).acknowledge()
        assert total(reports) == 2

    def test_b9_a_move_waits_for_a_member_that_adds_others(
        self,
        queue: DelayedQueue,
        reports: DelayedQueue,
        batch: MessageBatch,
        admin: psycopg.Connection[Any],
    ):
        batch.offer_or_update("a", 1)
        batch.close()
        envelope = polled(queue)
        other = queue.batch(ScheduledMessage("other", 1), then_queue=reports)
        assert other.id
        assert behind(
            admin, partial(envelope.batch.offer_or_update, "b", 1),
            partial(other.offer_or_update, "a", 2),
        )  # fmt: skip
        assert not reports.contains_message("then")
        assert queue.drop_message("b")
        stored = reports.read("then")
        assert stored is not None
        assert stored.headers["batch"]["dropped"] == 2


class TestCancelling:
    def test_b9_cancel_and_the_last_member_agree(self, queue: DelayedQueue, reports: DelayedQueue):
        for turn in range(ROUNDS):
            with queue.batch(THEN, then_queue=reports) as batch:
                batch.offer_or_update("a", turn)
            calls: list[Callable[[], Any]] = [batch.cancel, polled(queue).acknowledge]
            was_cancelled, was_acknowledged = together(calls)
            assert was_acknowledged
            assert reports.drop_message("then") is not was_cancelled
            assert not StoredBatch.objects.exists()


class TestMoves:
    def test_b10_two_batches_that_exchange_members_finish(
        self, queue: DelayedQueue, reports: DelayedQueue
    ):
        for turn in range(ROUNDS):
            first, second = (
                queue.batch(ScheduledMessage(name, 1), then_queue=reports) for name in "xy"
            )
            first.offer_or_update("a", [turn, 0])
            second.offer_or_update("b", [turn, 0])
            calls: list[Callable[[], Any]] = [
                partial(first.offer_or_update, "b", [turn, 1]),
                partial(second.offer_or_update, "a", [turn, 1]),
            ]
            together(calls)
            together([first.close, second.close])
            assert queue.try_poll_many(10).acknowledge() == 2
            for name in "xy":
                stored = reports.read(name)
                assert stored is not None
                header = stored.headers["batch"]
                assert (header["done"], header["dropped"]) == (1, 1)
                reports.drop_message(name)
        assert not Message.objects.exists()
