"""Transactional handlers of many messages: a call and the removal commit together (B5)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from delayed_queue import Batch, DelayedQueue, RetryPolicy, ScheduledMessage, Snooze
from delayed_queue.models import DeadLetter, Message
from delayed_queue.worker.engine import batch_runs
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from tests.support.ledger import effects
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]

HOUR = RetryPolicy.ladder("1h 1h")


class Stored:
    """A handler that stores its batches, and the sizes of its calls."""

    def __init__(self, *poison: str) -> None:
        self._poison = set(poison)
        self.calls: list[list[str]] = []

    def handle(self, batch: Batch) -> None:
        keys = [each.key for each in batch]
        self.calls.append(keys)
        Effect.objects.bulk_create(
            Effect(queue=each.queue, key=each.key, attempt=each.attempt, pid=0) for each in batch
        )
        if self._poison.intersection(keys):
            raise ValueError("poison")


def offer(*keys: str) -> None:
    DelayedQueue("events").offer_batch([ScheduledMessage(key, key) for key in keys])


def burst_of(function: Any, **options: Any) -> Worker:
    options = {"retry": HOUR, "batch_size": 10_000, **options}
    handler = handler_of("events", function, many=True, transactional=True, **options)
    return worker_with(handler, burst=True, concurrency=1)


def numbered(count: int) -> list[str]:
    return [f"m{n:05}" for n in range(count)]


def test_b5_a_batch_is_stored_and_removed_in_one_transaction() -> None:
    stored = Stored()
    offer(*numbered(300))
    assert burst_of(stored.handle).run() == Counts(done=300)
    assert stored.calls == [numbered(300)]
    assert effects() == dict.fromkeys(numbered(300), 1)


def test_b5_a_split_batch_commits_its_good_halves_each_once() -> None:
    stored = Stored("m00300")
    offer(*numbered(1000))
    assert burst_of(stored.handle).run() == Counts(done=999, failed=1)
    assert len(stored.calls) - 1 <= 20
    assert effects() == dict.fromkeys(set(numbered(1000)) - {"m00300"}, 1)
    (left,) = Message.objects.all()
    assert (left.key, left.attempts) == ("m00300", 1)
    assert "ValueError: poison" in (left.last_error or "")


def test_b3_a_message_that_failed_alone_is_retried_alone() -> None:
    stored = Stored("bad")
    offer("a", "bad", "b")
    assert burst_of(stored.handle).run() == Counts(done=2, failed=1)
    Message.objects.update(scheduled_at=timezone.now())
    offer("c", "d", "e")
    before = len(stored.calls)
    assert burst_of(stored.handle).run() == Counts(done=3, failed=1)
    assert stored.calls[before:] == [["bad"], ["c", "d", "e"]]


def test_b2_single_messages_are_settled_in_the_transaction_of_the_others() -> None:
    def handle(batch: Batch) -> None:
        fine, failed, snoozed, rejected = batch
        Effect.objects.create(queue=fine.queue, key=fine.key, attempt=1, pid=0)
        batch.fail(failed, "no")
        batch.snooze(snoozed, timedelta(hours=1))
        batch.reject(rejected, "useless")

    offer("fine", "failed", "snoozed", "rejected")
    assert burst_of(handle).run() == Counts(done=1, failed=1, snoozed=1, dead=1)
    assert dict(Message.objects.values_list("key", "attempts")) == {"failed": 1, "snoozed": 0}
    assert DeadLetter.objects.get().reason == "useless"
    assert effects() == {"fine": 1}


def test_b3_a_batch_that_is_not_split_fails_whole() -> None:
    stored = Stored("b")
    offer("a", "b", "c")
    assert burst_of(stored.handle, split=False).run() == Counts(failed=3)
    assert stored.calls == [["a", "b", "c"]]
    assert not effects()
    assert set(Message.objects.values_list("attempts", flat=True)) == {1}


def test_a_snooze_defers_the_whole_call() -> None:
    calls: list[int] = []

    def handle(batch: Batch) -> None:
        calls.append(len(batch))
        raise Snooze("1h")

    offer("a", "b")
    assert burst_of(handle).run() == Counts(snoozed=2)
    assert calls == [2]


def test_b6_a_call_has_a_limited_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runs, "MOST_BYTES", 30)
    stored = Stored()
    offer(*numbered(8))  # 8 bytes each
    assert burst_of(stored.handle).run() == Counts(done=8)
    assert [len(each) for each in stored.calls] == [2] * 4


def test_b6_linger_waits_for_more() -> None:
    stored = Stored()
    handler = handler_of(
        "events", stored.handle, many=True, transactional=True, linger=timedelta(seconds=1)
    )
    with running(worker_with(handler)):
        offer("a")
        offer("b")
        wait_until(lambda: not Message.objects.exists())
    assert stored.calls == [["a", "b"]]


def test_a_poison_message_alone_in_a_batch_is_called_once() -> None:
    stored = Stored("bad")
    offer("bad")
    assert burst_of(stored.handle).run() == Counts(failed=1)
    assert stored.calls == [["bad"]]
