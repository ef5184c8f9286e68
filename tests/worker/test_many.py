"""Handlers that receive many messages: called with batches, settled, split (B1, B2, B3, B6).

Tests of the fixture `transactional` run for both kinds of handlers.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from delayed_queue import Batch, DelayedQueue, Groups, RetryPolicy, ScheduledMessage, Snooze
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.models import DeadLetter, Message
from delayed_queue.worker.engine import calls
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]

NEVER = RetryPolicy.ladder("1h 1h")


def offer(*keys: str, **more: Any) -> None:
    DelayedQueue("events").offer_batch([ScheduledMessage(key, key, **more) for key in keys])


def numbered(count: int) -> list[str]:
    return [f"m{n:05}" for n in range(count)]


@pytest.fixture(params=[False, True], ids=["leased", "in a transaction"])
def transactional(request: pytest.FixtureRequest) -> dict[str, bool]:
    return {"transactional": request.param}


def make_due() -> None:
    Message.objects.update(scheduled_at=timezone.now())


class Calls:
    """The keys of each call, and how often each message was handled without an error."""

    def __init__(self, *poison: str) -> None:
        self._poison = set(poison)
        self.keys: list[list[str]] = []
        self.handled: Counter[str] = Counter()

    def handle(self, batch: Batch) -> None:
        keys = [each.key for each in batch]
        self.keys.append(keys)
        if self._poison.intersection(keys):
            raise ValueError("poison")
        self.handled.update(keys)

    async def ahandle(self, batch: Batch) -> None:
        await asyncio.sleep(0)
        self.handle(batch)


def burst_of(function: Any, **options: Any) -> Worker:
    options = {"retry": NEVER, "batch_size": 10_000, **options}
    handler = handler_of("events", function, many=True, **options)
    # Several threads would share the messages of transactions between them.
    threads = {"concurrency": 1} if handler.transactional else {}
    return worker_with(handler, burst=True, **threads)


@pytest.mark.parametrize("name", ["handle", "ahandle"])
def test_b1_a_batch_is_handled_in_one_call_and_acknowledged_in_one_statement(name: str) -> None:
    """The order is that of the claim, for functions and coroutines."""
    seen = Calls()
    offer(*numbered(100))
    assert burst_of(getattr(seen, name)).run() == Counts(done=100)
    assert seen.keys == [numbered(100)]
    assert not Message.objects.exists()


def test_b6_a_call_has_at_most_the_batch_size() -> None:
    seen = Calls()
    offer(*numbered(25))
    assert burst_of(seen.handle, batch_size=10).run() == Counts(done=25)
    assert sorted(map(len, seen.keys)) == [5, 10, 10]


@pytest.mark.parametrize("name", ["handle", "ahandle"])
def test_b3_one_poison_message_in_10_000_fails_alone(name: str) -> None:
    """The others are handled once, with at most 2·⌈log2 10,000⌉ = 28 further calls."""
    seen = Calls("m06123")
    offer(*numbered(10_000))
    assert burst_of(getattr(seen, name)).run() == Counts(done=9_999, failed=1)
    assert len(seen.keys) - 1 <= 28
    assert set(seen.handled.values()) == {1}
    assert len(seen.handled) == 9_999
    (left,) = Message.objects.all()
    assert (left.key, left.attempts) == ("m06123", 1)
    assert "ValueError: poison" in (left.last_error or "")


def test_b3_a_message_that_failed_alone_is_retried_alone(transactional: dict[str, bool]) -> None:
    seen = Calls("bad")
    offer("a", "bad", "b")
    assert burst_of(seen.handle, **transactional).run() == Counts(done=2, failed=1)
    make_due()
    offer("c", "d")
    assert burst_of(seen.handle, **transactional).run() == Counts(done=2, failed=1)
    assert sorted(seen.keys[-2:]) == [["bad"], ["c", "d"]]


def test_b3_a_batch_that_is_not_split_fails_whole_and_is_retried_together(transactional):
    seen = Calls("bad")
    offer("a", "bad", "b")
    options = {"retry": RetryPolicy.ladder("1h"), "split": False, **transactional}
    assert burst_of(seen.handle, **options).run() == Counts(failed=3)
    make_due()
    assert burst_of(seen.handle, **options).run() == Counts(dead=3)
    assert [sorted(each) for each in seen.keys] == [["a", "b", "bad"]] * 2
    assert DeadLetter.objects.count() == 3


def test_b2_single_messages_are_settled_by_the_handler(transactional: dict[str, bool]) -> None:

    def handle(batch: Batch) -> None:
        fine, failed, snoozed, rejected = batch
        batch.fail(failed, ValueError("no"))
        batch.snooze(snoozed, "1h")
        batch.reject(rejected, "useless")
        assert fine.key == "fine"

    offer("fine", "failed", "snoozed", "rejected")
    counts = burst_of(handle, **transactional).run()
    assert counts == Counts(done=1, failed=1, snoozed=1, dead=1)
    attempts = dict(Message.objects.values_list("key", "attempts"))
    assert attempts == {"failed": 1, "snoozed": 0}
    assert DeadLetter.objects.get().reason == "useless"


def test_b2_settlements_of_a_call_that_raises_count_for_nothing() -> None:
    sizes: list[int] = []

    def handle(batch: Batch) -> None:
        sizes.append(len(batch))
        if len(batch) > 1:
            batch.reject(batch[0], "too early")
            raise ValueError

    offer("a", "b")
    assert burst_of(handle).run() == Counts(done=2)
    assert sorted(sizes) == [1, 1, 2]
    assert not DeadLetter.objects.exists()


def test_b13_a_message_of_another_batch_cannot_be_settled() -> None:
    """The error names the message."""
    errors: list[str] = []

    def handle(batch: Batch) -> None:
        for kept in (DelayedQueue("other").try_poll(), None):
            if kept is not None:
                with pytest.raises(InvalidMessage, match="other/x") as caught:
                    batch.fail(kept, "no")
                errors.append(str(caught.value))
        with pytest.raises(InvalidConfiguration, match="when the handler returns"):
            batch.acknowledge()

    DelayedQueue("other").offer_or_update("x", 1)
    offer("a")
    assert burst_of(handle).run() == Counts(done=1)
    assert errors == ["<Envelope other/x attempt 1> is not in this batch, which cannot settle it."]
    offer("b")
    polled = DelayedQueue("events").try_poll_many(5)
    with pytest.raises(InvalidConfiguration, match="many=True"):
        polled.fail(polled[0], "no")
    with pytest.raises(InvalidConfiguration, match="error must be"):
        polled.fail(polled[0], 7)  # type: ignore[arg-type]


def test_a_snooze_defers_the_whole_call(transactional: dict[str, bool]) -> None:
    calls: list[int] = []

    def handle(batch: Batch) -> None:
        calls.append(len(batch))
        raise Snooze("1h")

    offer("a", "b")
    assert burst_of(handle, **transactional).run() == Counts(snoozed=2)
    assert calls == [2]


@pytest.mark.parametrize("name", ["handle", "ahandle"])
def test_b3_a_call_that_takes_too_long_is_split(name: str) -> None:
    """Only the slow message loses an attempt."""

    class Slow:
        def __init__(self) -> None:
            self.may_end = threading.Event()
            self.cancelled: list[bool] = []

        def handle(self, batch: Batch) -> None:
            if any(each.key == "slow" for each in batch):
                self.may_end.wait(20)
                self.cancelled.append(batch.is_cancelled)

        async def ahandle(self, batch: Batch) -> None:
            if any(each.key == "slow" for each in batch):
                await asyncio.sleep(20)

    slow = Slow()
    offer("a", "slow", "b", "c")
    worker = burst_of(getattr(slow, name), timeout=timedelta(milliseconds=50))
    assert worker.run() == Counts(done=3, failed=1)
    slow.may_end.set()
    (left,) = Message.objects.all()
    assert (left.key, left.attempts) == ("slow", 1)
    assert "HandlerTimeout" in (left.last_error or "")
    if name == "handle":
        wait_until(lambda: len(slow.cancelled) == 3)
        assert slow.cancelled == [True] * 3


def test_b6_linger_waits_for_a_fuller_batch_and_not_for_more_than_a_full_one() -> None:
    """The batch is called for when it is full, long before the time is over."""
    seen = Calls()
    handler = handler_of(
        "events", seen.handle, many=True, batch_size=4, linger=timedelta(seconds=25)
    )
    with running(worker_with(handler)):
        for n in range(4):
            offer(f"m{n}")
            wait_until(lambda: not Message.objects.filter(attempts=0).exists())
        wait_until(lambda: bool(seen.handled))
    assert seen.keys == [["m0", "m1", "m2", "m3"]]


def test_b6_linger_ends_with_its_time() -> None:
    seen = Calls()
    offer("a", "b")
    worker = burst_of(seen.handle, linger=timedelta(milliseconds=50))
    assert worker.run() == Counts(done=2)
    assert seen.keys == [["a", "b"]]


def test_b6_messages_that_linger_are_released_uncounted_at_a_stop() -> None:
    seen = Calls()
    handler = handler_of("events", seen.handle, many=True, linger=timedelta(seconds=20))
    with running(worker_with(handler)):
        offer("a")
        wait_until(lambda: Message.objects.filter(attempts=1).exists())
    assert Message.objects.get().attempts == 0
    assert seen.keys == []


def test_b6_the_wait_is_at_most_a_tenth_of_the_lease() -> None:
    handler = handler_of("events", Calls().handle, many=True, linger=timedelta(seconds=31))
    with pytest.raises(InvalidConfiguration, match="linger must be at most a tenth"):
        worker_with(handler)


def test_b6_a_call_has_a_limited_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_BYTES", 100)
    seen = Calls()
    queue = DelayedQueue("events")
    queue.offer_batch([ScheduledMessage(key, "x" * 28) for key in numbered(7)])  # 30 as JSON
    queue.offer_or_update("n", "x" * 500)
    assert burst_of(seen.handle).run() == Counts(done=8)
    assert sorted(map(len, seen.keys)) == [1, 1, 3, 3]


def test_b3_a_stop_during_a_split_uses_up_no_attempt() -> None:
    """Messages that were not called are released; the running call is finished."""
    begun, may_end = threading.Event(), threading.Event()

    def handle(batch: Batch) -> None:
        if len(batch) > 1:
            raise ValueError("split")
        begun.set()
        may_end.wait(20)

    handler = handler_of("events", handle, many=True, retry=NEVER)
    offer(*numbered(4))
    worker = worker_with(handler, concurrency=1)
    with running(worker):
        wait_until(begun.is_set)
        worker.stop()
        wait_until(lambda: Message.objects.filter(attempts=0, lease_id=None).count() == 3)
        may_end.set()
    assert worker.counts.done == 1
    assert Message.objects.filter(attempts=0, lease_id=None).count() == 3


def test_b6_groups_hold() -> None:
    """A batch has no more messages of a group than may run at a time."""
    seen = Calls()
    offer(*numbered(6), group="g")
    groups = Groups(concurrency=2)
    assert burst_of(seen.handle, groups=groups).run() == Counts(done=6)
    assert max(map(len, seen.keys)) <= 2


def test_b6_pauses_hold() -> None:
    seen = Calls()
    offer("a")
    DelayedQueue("events").pause()
    assert burst_of(seen.handle).run() == Counts()
    DelayedQueue("events").resume()
    assert burst_of(seen.handle).run() == Counts(done=1)


def test_b6_a_message_that_is_dropped_meanwhile_stops_no_other() -> None:
    """The message is marked, and the others are acknowledged."""
    is_cancelled: list[bool] = []

    async def handle(batch: Batch) -> None:
        await DelayedQueue("events").adrop_message("a")
        while not batch[0].is_cancelled:
            await asyncio.sleep(0.005)
        is_cancelled.extend(each.is_cancelled for each in batch)

    offer("a", "b")
    assert burst_of(handle).run() == Counts(done=1, lost=1)
    assert is_cancelled == [True, False]


def test_b6_a_call_is_cancelled_when_all_its_messages_are_gone() -> None:
    was_cancelled = threading.Event()

    async def handle(batch: Batch) -> None:
        try:
            for each in batch:
                await DelayedQueue("events").adrop_message(each.key)
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    offer("a", "b")
    assert burst_of(handle).run().lost == 2
    assert was_cancelled.is_set()


def test_ticks_and_other_queues_beside_a_batch() -> None:
    """Handlers of one message are called as ever."""
    seen = Calls()
    keys: list[str] = []
    offer(*numbered(50))
    DelayedQueue("plain").offer_batch([ScheduledMessage(key, key) for key in numbered(50)])
    worker = worker_with(
        handler_of("events", seen.handle, many=True, batch_size=20),
        handler_of("plain", lambda envelope: keys.append(envelope.key)),
        burst=True,
    )
    assert worker.run() == Counts(done=100)
    assert sorted(keys) == numbered(50)
    assert sum(map(len, seen.keys)) == 50
