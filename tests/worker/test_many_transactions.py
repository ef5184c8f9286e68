"""Transactional handlers of many messages: a call and the removal commit together (B5).

`test_many` has what holds for all handlers of many messages.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import Batch, DelayedQueue, RetryPolicy, ScheduledMessage
from delayed_queue.models import Message
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
