"""The PostgreSQL part of the contract: transactions, row locks, notifications, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Group, Permission
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from delayed_queue import DelayedQueue, OfferOutcome, RetryPolicy, ScheduledMessage
from delayed_queue.db.wakeups import channel_of
from delayed_queue.models import DeadLetter, Message
from delayed_queue.queue.offering import CHUNK
from delayed_queue.testing import assert_dead, assert_not_offered, assert_offered, dead_letters
from tests.queue.contract.support import (
    HOUR,
    MINUTE,
    SECOND,
    TIMEOUT,
    in_thread,
    leased,
    polled_keys,
    watched_stop,
)
from tests.support.concurrency import calling, wait_until_blocked

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED
commits = pytest.mark.django_db(transaction=True)


@pytest.fixture
def queue() -> DelayedQueue:
    return DelayedQueue("orders")


@commits
class TestTransactions:
    def test_q9_an_offer_is_invisible_until_the_commit(self, queue: DelayedQueue):
        with transaction.atomic():
            queue.offer_or_update("a", 1)
            queue.offer_batch([ScheduledMessage("b", 1)])
            elsewhere = in_thread(lambda: (queue.read("a"), list(queue.try_poll_many(9))))
            assert elsewhere.result(TIMEOUT) == (None, [])
        assert in_thread(lambda: polled_keys(queue)).result(TIMEOUT) == ["a", "b"]

    def test_q9_an_offer_is_gone_with_the_rollback(self, queue: DelayedQueue):
        queue.offer_or_update("old", 1)
        with transaction.atomic():
            queue.offer_or_update("new", 1)
            queue.offer_or_update("old", 2)
            transaction.set_rollback(True)
        assert_not_offered(queue, "new")
        assert_offered(queue, "old", 1)

    def test_q9_an_offer_commits_with_the_callers_rows(self, queue: DelayedQueue):
        with transaction.atomic():
            group = Group.objects.create(name="customers")
            queue.offer_or_update(f"group-{group.pk}", group.name)
        assert_offered(queue, f"group-{group.pk}", "customers")

    def test_q9_a_wake_up_comes_with_the_commit(self, queue, other):
        other.execute(f"LISTEN {channel_of(queue.kind)}")
        with transaction.atomic():
            queue.offer_or_update("a", 1)
            assert list(other.notifies(timeout=0)) == []
        assert len(list(other.notifies(timeout=TIMEOUT, stop_after=1))) == 1

    @pytest.mark.parametrize("delay", [timedelta(0), HOUR])
    def test_only_what_is_due_soon_is_announced(self, queue, other, delay):
        other.execute(f"LISTEN {channel_of(queue.kind)}")
        queue.offer_or_update("a", 1, delay=delay)
        assert len(list(other.notifies(timeout=0.05))) == (delay < HOUR)

    def test_q13_an_insertion_that_is_undone_meanwhile_costs_nothing(self, queue, other):
        messages = [ScheduledMessage(key, 1) for key in ("a", "b", "c")]
        other.execute("BEGIN")
        _insert(other, queue.kind, "b")
        with calling(lambda: queue.offer_batch(messages)) as offering:
            wait_until_blocked(other, offering)
            other.execute("ROLLBACK")
            assert offering.answer() == [CREATED] * 3


@pytest.mark.django_db
class TestConsume:
    def test_q30_callbacks_of_a_failed_handler_do_not_run(
        self, queue: DelayedQueue, django_capture_on_commit_callbacks: Any
    ):
        called: list[str] = []
        queue.offer_or_update("a", 1)
        with django_capture_on_commit_callbacks(execute=True):
            with pytest.raises(ValueError, match="it broke"):
                self.consume_and_fail(queue, lambda: called.append("failed"))
            queue.offer_or_update("b", 1)
            with queue.consume():
                transaction.on_commit(lambda: called.append("handled"))
        assert called == ["handled"]

    def consume_and_fail(self, queue: DelayedQueue, callback: Callable[[], None]) -> None:
        with queue.consume():
            transaction.on_commit(callback)
            raise ValueError("it broke")

    def test_q30_refused_inside_a_transaction(self, queue: DelayedQueue):
        queue.offer_or_update("a", 1)
        with transaction.atomic(), pytest.raises(RuntimeError, match="durable"), queue.consume():
            raise AssertionError("a consume within a transaction")
        assert assert_offered(queue, "a").attempts == 0

    def test_q30_effects_that_are_rolled_back_in_silence_are_a_failure(self, queue: DelayedQueue):
        queue.offer_or_update("a", 1)
        # As after a handler that caught the error of a save(), which breaks the atomic block.
        with pytest.raises(TransactionManagementError):
            self.consume_and_doom(queue)
        assert assert_offered(queue, "a").attempts == 1
        assert not Group.objects.filter(name="lost").exists()

    def consume_and_doom(self, queue: DelayedQueue) -> None:
        with queue.consume():
            Group.objects.create(name="lost")
            transaction.set_rollback(True)

    def test_q30_a_broken_statement_of_the_handler_is_rolled_back(self, queue: DelayedQueue):
        Group.objects.create(name="taken")
        queue.offer_or_update("a", 1)
        with pytest.raises(IntegrityError), queue.consume():
            Group.objects.create(name="taken")
        assert assert_offered(queue, "a").attempts == 1
        assert "IntegrityError" in assert_offered(queue, "a").last_error


@commits
def test_q30_a_constraint_that_is_checked_at_commit_counts_as_a_failure(queue: DelayedQueue):
    queue = DelayedQueue("orders", retry_policy=RetryPolicy.never())
    queue.offer_or_update("a", 1)
    # Django's foreign keys are deferred: the insertion succeeds, the commit would not.
    with pytest.raises(IntegrityError), queue.consume():
        Permission.objects.create(name="x", codename="x", content_type_id=999_999_999)
    assert_dead(queue, "a", reason="attempts exhausted: IntegrityError")
    assert not Permission.objects.filter(codename="x").exists()


@commits
class TestWaiting:
    def test_q21_wakes_for_an_offer_of_another_session(self, other: psycopg.Connection[Any]):
        queue = DelayedQueue("orders", poll_interval=MINUTE)
        with watched_stop() as stop:
            future = in_thread(lambda: queue.poll(timeout=TIMEOUT, stop=stop))
            stop.await_sleep()
            with other.transaction():
                _insert(other, queue.kind, "a")
                other.execute("SELECT pg_notify(%s, '')", [channel_of(queue.kind)])
            envelope = future.result(TIMEOUT / 2)
        assert envelope is not None

    def test_q21_without_notifications_it_looks_at_its_interval(self, other):
        queue = DelayedQueue("orders", poll_interval=SECOND / 20)
        with watched_stop() as stop:
            future = in_thread(lambda: queue.poll(timeout=TIMEOUT, stop=stop))
            stop.await_sleep()
            _insert(other, queue.kind, "a")
            envelope = future.result(TIMEOUT)
        assert envelope is not None

    def test_q21_it_listens_no_more_afterwards(self, queue: DelayedQueue):
        assert queue.poll(timeout=0) is None
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_listening_channels()")
            assert cursor.fetchone() == (0,)

    def test_q21_can_be_stopped_while_in_sql(self, queue, other):
        with watched_stop() as stop, other.transaction():
            other.execute("LOCK TABLE delayed_queue IN ACCESS EXCLUSIVE MODE")
            with calling(lambda: queue.poll(stop=stop)) as polling:
                wait_until_blocked(other, polling)
                stop.set()
                assert polling.answer() is None

    def test_q21_a_statement_cancelled_by_others_is_an_error(self, queue, other):
        with watched_stop() as stop, other.transaction():
            other.execute("LOCK TABLE delayed_queue IN ACCESS EXCLUSIVE MODE")
            with calling(lambda: queue.poll(stop=stop)) as polling:
                wait_until_blocked(other, polling)
                other.execute("SELECT pg_cancel_backend(%s)", [polling.pid])
                with pytest.raises(OperationalError, match="canceling statement"):
                    polling.answer()


@pytest.mark.django_db
class TestStatements:
    def test_q11_one_statement_for_a_thousand(self, queue: DelayedQueue):
        messages = [ScheduledMessage(f"k{n}", 1, delayed) for n, delayed in _hours(2 * CHUNK + 1)]
        with CaptureQueriesContext(connection) as captured:
            queue.offer_batch(messages)
        assert len(captured) == 3

    def test_q18_the_rows_leased_are_the_rows_returned(self, queue: DelayedQueue):
        queue.offer_batch([ScheduledMessage(f"k{n}", 1) for n in range(50)])
        batch = queue.try_poll_many(3)
        assert Message.objects.filter(lease_id=batch.lease_id).count() == len(batch) == 3

    def test_q29_dead_letters_are_pruned_in_batches(self, queue: DelayedQueue):
        _dead_letter_many(queue, 2 * CHUNK + 1)
        with CaptureQueriesContext(connection) as captured:
            assert queue.prune_dead_letters(timedelta(0)) == 2 * CHUNK + 1
        deletes = "DELETE FROM delayed_queue_dead_letter"
        assert len([each for each in captured if deletes in each["sql"]]) == 4
        assert dead_letters(queue) == []

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_q29_of_a_key_in_two_batches_the_newest_comes_back(self, queue, overwrite):
        _dead_letter_many(queue, CHUNK + 1)
        _dead_letter_many(queue, 1, b"2")
        outcomes = queue.redrive_all(overwrite=overwrite)
        assert outcomes == {CREATED: CHUNK + 1, IGNORED: 1}
        assert_offered(queue, "k0", 2)
        assert [bytes(letter.payload) for letter in dead_letters(queue)] == [b"1"]

    @pytest.mark.parametrize(
        ("overwrite", "outcome", "payload"), [(False, IGNORED, 3), (True, UPDATED, 2)]
    )
    def test_q29_of_a_key_in_two_batches_that_lives_the_newest_may_replace_it(
        self, queue: DelayedQueue, overwrite: bool, outcome: OfferOutcome, payload: int
    ):
        _dead_letter_many(queue, CHUNK + 1)
        _dead_letter_many(queue, 1, b"2")
        queue.offer_or_update("k0", 3)
        expected = Counter({CREATED: CHUNK}) + Counter([outcome, IGNORED])
        assert queue.redrive_all(overwrite=overwrite) == expected
        assert_offered(queue, "k0", payload)

    @pytest.mark.parametrize("prepare", [True, False])
    def test_statements_are_the_same_prepared_or_not(self, queue, settings, prepare):
        settings.DELAYED_QUEUE = {"PREPARE": prepare}
        for number in range(8):
            assert queue.offer_or_update("a", {"n": number}, headers={"h": number}) != IGNORED
            envelope = leased(queue)
            assert (envelope.payload, envelope.headers) == ({"n": number}, {"h": number})
        assert envelope.acknowledge()

    def test_a_broken_transaction_is_refused(self, queue: DelayedQueue):
        with transaction.atomic():
            transaction.set_rollback(True)
            with pytest.raises(DatabaseError, match="atomic"):
                queue.offer_or_update("a", 1)


def _hours(count: int) -> list[tuple[int, Any]]:
    start = timezone.now() + HOUR
    return [(number, start + number * SECOND) for number in range(count)]


def _dead_letter_many(queue: DelayedQueue, count: int, payload: bytes = b"1") -> None:
    at = timezone.now() - HOUR
    DeadLetter.objects.bulk_create(
        DeadLetter(
            kind=queue.kind,
            key=f"k{number}",
            payload=payload,
            attempts=1,
            reason="bad",
            scheduled_at_initially=at,
            created_at=at,
            died_at=at,
        )
        for number in range(count)
    )


def _insert(other: psycopg.Connection[Any], kind: str, key: str) -> None:
    """Insert as a program that uses only the eight shared columns."""
    other.execute(
        """
        INSERT INTO delayed_queue (
            "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
        )
        VALUES (%s, %s, '1', 0, 0, 0)
        """,
        [key, kind],
    )
