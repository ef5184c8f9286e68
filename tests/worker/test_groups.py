"""Workers of queues with limits (G2-G6)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from delayed_queue import DelayedQueue, Envelope, Groups, RetryPolicy, ScheduledMessage
from delayed_queue.declaring import handler
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import Limit, Message
from delayed_queue.queue.group_claims import by_turns
from delayed_queue.queue.store.claim import LeasedRow
from delayed_queue.queue.store.groups import TAKE_TURN
from tests.support.operations import PAST
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

HOUR = timedelta(hours=1)
pytestmark = pytest.mark.usefixtures("both_paths")


@pytest.fixture
def queue(transactional_db: None) -> DelayedQueue:
    return DelayedQueue("sync")


def offer(queue: DelayedQueue, group: str | None, count: int) -> list[str]:
    keys = [f"{group}{number:05}" for number in range(count)]
    queue.offer_batch([ScheduledMessage(key, None, group=group) for key in keys])
    return keys


class Handling:
    """Records the handled messages, and the concurrency of each group."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self.now: Counter[str | None] = Counter()
        self.most: Counter[str | None] = Counter()
        self.done: list[str] = []
        self.leased_until: list[int] = []

    def __call__(self, envelope: Envelope) -> None:
        with self._lock:
            self.leased_until.append(envelope.leased_until_ms)
            self.now[envelope.group] += 1
            self.most[envelope.group] = max(self.most[envelope.group], self.now[envelope.group])
        threading.Event().wait(self._seconds)
        with self._lock:
            self.now[envelope.group] -= 1
            self.done.append(envelope.key)


def test_g2_two_workers_hold_the_limit_of_each_group_and_handle_everything(queue: DelayedQueue):
    handling = Handling(0.005)
    keys = [key for group in "abc" for key in offer(queue, group, 30)] + offer(queue, None, 10)
    declared = handler_of("sync", handling, groups=Groups(concurrency=2))
    workers = [worker_with(declared, concurrency=8, poll_interval=HOUR) for _ in range(2)]
    with running(workers[0]), running(workers[1]):
        wait_until(lambda: len(handling.done) == len(keys))
    assert sorted(handling.done) == sorted(keys)
    assert {handling.most[group] for group in "abc"} <= {1, 2}
    assert not Message.objects.exists()


def test_g2_a_batch_of_many_groups_of_one_at_a_time_is_filled(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=1))
    keys = [f"{number:05}" for number in range(900)]
    queue.offer_batch([ScheduledMessage(key, None, group=key) for key in keys])
    assert [len(queue.try_poll_many(400)) for _ in range(3)] == [256, 400, 244]


def test_a_batch_of_groups_that_have_more_is_of_half_as_many(queue: DelayedQueue):
    """Checking a group costs a claim nearly as much as leasing a message."""
    queue.groups.set(Groups(concurrency=2))
    queue.offer_batch(
        [ScheduledMessage(f"{each:04}", None, group=f"{each % 600:03}") for each in range(1200)]
    )
    batches = [queue.try_poll_many(200) for _ in range(5)]
    assert [len(batch) for batch in batches] == [200] * 5
    assert [len({each.group for each in batch}) for batch in batches] == [200, *[100] * 4]


def test_g3_a_group_is_handled_in_order_also_through_failures(queue: DelayedQueue):
    failed: set[str] = set()
    done: list[str] = []

    def fail_once(envelope: Envelope) -> None:
        if envelope.key not in failed and envelope.key.endswith("3"):
            failed.add(envelope.key)
            raise ValueError("once")
        done.append(envelope.key)

    keys = [key for group in "ab" for key in offer(queue, group, 15)]
    declared = handler_of(
        "sync", fail_once, groups=Groups(order="fifo"), retry=RetryPolicy.ladder("20ms 20ms")
    )
    with running(worker_with(declared, concurrency=8)):
        wait_until(lambda: len(done) == len(keys))
    for group in "ab":
        assert [key for key in done if key[0] == group] == [key for key in keys if key[0] == group]


def test_g4_one_message_behind_many_of_another_group_starts_at_once(queue: DelayedQueue):
    handling = Handling(0.002)
    offer(queue, "a", 2000)
    declared = handler_of("sync", handling, groups=Groups())
    with running(worker_with(declared, concurrency=4)):
        wait_until(lambda: len(handling.done) > 100)
        (key,) = offer(queue, "b", 1)
        before = len(handling.done)
        wait_until(lambda: key in handling.done)
        assert handling.done.index(key) - before < 500


def test_g4_of_a_batch_each_group_begins_before_the_second_message_of_any():
    rows = [
        LeasedRow(number, f"{group}{number}", b"", 0, due_at, 0, 1, None, group=group)
        for number, (group, due_at) in enumerate([("a", 1), ("a", 2), ("b", 9), (None, 5)])
    ]
    assert [row.key for row in by_turns(rows)] == ["a0", "None3", "b2", "a1"]


def test_g5_the_rate_is_held_and_nothing_is_leased_before_its_permit(queue: DelayedQueue):
    handling = Handling()
    offer(queue, "a", 6)
    declared = handler_of("sync", handling, groups=Groups(rate="20/s"))
    with running(worker_with(declared, concurrency=4, poll_interval=HOUR)):
        wait_until(lambda: len(handling.done) == 6)
    # By the database's clock, which permits follow.
    assert all(after - before >= 50 for before, after in pairwise(handling.leased_until))


def test_g6_a_change_reaches_a_worker_that_sleeps(queue: DelayedQueue):
    handling = Handling()
    offer(queue, "a", 3)
    queue.groups.pause("a")
    plain = handler_of("sync", handling)
    with running(worker_with(plain, poll_interval=HOUR)):
        (key,) = offer(queue, "b", 1)
        wait_until(lambda: handling.done == [key])
        queue.groups.resume("a")
        wait_until(lambda: len(handling.done) == 4)
        queue.groups.set(Groups(concurrency=1))
        offer(queue, "c", 2)
        wait_until(lambda: len(handling.done) == 6)
        queue.groups.clear()
        offer(queue, "d", 2)
        wait_until(lambda: len(handling.done) == 8)


def test_what_is_declared_is_written_and_taken_back(queue: DelayedQueue):
    declared = handler_of("sync", Handling(), groups=Groups(concurrency=2))
    with running(worker_with(declared)):
        wait_until(lambda: Limit.objects.filter(concurrency=2).exists())
    with running(worker_with(handler_of("sync", Handling()))):
        wait_until(lambda: not Limit.objects.exists())


def test_g7_a_worker_of_what_is_held_back_sleeps(queue: DelayedQueue):
    """No poll while nothing changes: claims are one poll interval apart."""
    handling = Handling()
    offer(queue, "a", 50)
    queue.groups.pause("a")
    worker = worker_with(handler_of("sync", handling), poll_interval=HOUR)
    with running(worker):
        consumer = worker.consumers[0]
        wait_until(lambda: consumer.schedule.next_at > time.monotonic() + 60)
        stored = Message.objects.values_list("attempts", "lease_id").distinct()
        assert list(stored) == [(0, None)]


def test_a_queue_that_is_paused_as_a_whole_is_paused_for_a_worker_of_its_groups(queue):
    handling = Handling()
    queue.pause()
    offer(queue, "a", 1)
    worker = worker_with(
        handler_of("sync", handling, groups=Groups(concurrency=1)), poll_interval=HOUR
    )
    with running(worker):
        consumer = worker.consumers[0]
        wait_until(lambda: consumer.schedule.next_at > time.monotonic() + 60)
        assert handling.done == []
        queue.resume()
        wait_until(lambda: len(handling.done) == 1)


def test_a_worker_that_waits_for_its_turn_goes_on_with_its_other_queues(queue, other):
    """A poll in another transaction keeps the turn until it ends: the worker polls again later."""
    limited, aside = Handling(), Handling()
    offer(queue, "a", 3)
    worker = worker_with(
        handler_of("sync", limited, groups=Groups(concurrency=1)), handler_of("aside", aside),
        poll_interval=HOUR,
    )  # fmt: skip
    with other.transaction():
        other.execute(TAKE_TURN, {"kind": queue.kind, "idle": None})
        with running(worker):
            DelayedQueue("aside").offer_or_update("key", None)
            wait_until(lambda: aside.done == ["key"])
            assert limited.done == []
            other.execute("COMMIT; BEGIN")
            wait_until(lambda: len(limited.done) == 3)


def test_what_was_handled_is_written_while_somebody_keeps_the_turn(queue, other):
    """In the claiming transaction it would wait as long, and be rolled back."""
    begun, goes_on = threading.Event(), threading.Event()

    def handle(envelope: Envelope) -> None:
        begun.set()
        assert goes_on.wait(10)

    offer(queue, "a", 2)
    worker = worker_with(handler_of("sync", handle, groups=Groups(concurrency=1)))
    with running(worker):
        assert begun.wait(10)
        with other.transaction():
            other.execute(TAKE_TURN, {"kind": queue.kind, "idle": None})
            goes_on.set()
            wait_until(lambda: worker.counts.done == 1)
            assert Message.objects.count() == 1
        wait_until(lambda: not Message.objects.exists())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"groups": 3}, "must be a Groups"),
        ({"groups": Groups(), "transactional": True}, "uses no leases"),
    ],
)
def test_g11_handlers_that_cannot_have_groups(options: dict[str, Any], says: str):
    with pytest.raises(InvalidConfiguration, match=says):
        handler("sync", **options)(lambda envelope: None)


def test_what_another_process_gives_back_without_a_group_is_found_at_the_next_poll(queue):
    """It has its old position, before the worker's scan position."""
    handling = Handling()
    queue.groups.set(Groups(concurrency=1))
    queue.offer_or_update("early", None, PAST)
    held = queue.try_poll()
    assert held is not None
    offer(queue, None, 1)
    worker = worker_with(handler_of("sync", handling), poll_interval=timedelta(seconds=1))
    with running(worker):
        wait_until(lambda: handling.done == ["None00000"])
        wait_until(lambda: worker.consumers[0].schedule.next_at > time.monotonic())
        queue._release_unacknowledged(held.lease_id, [held.message_id], refund=1)
        wait_until(lambda: handling.done[1:] == ["early"])


def test_what_a_worker_gives_back_without_a_group_it_finds_itself(queue: DelayedQueue):
    """It returns messages that it leased ahead, since earlier ones take longer than expected."""
    handling, goes_on = Handling(), threading.Event()

    def handle(envelope: Envelope) -> None:
        if envelope.key in ("250", "251"):
            goes_on.wait(30)
        handling(envelope)

    queue.offer_batch(
        [ScheduledMessage(f"{each:03}", None, PAST + each * HOUR) for each in range(600)]
    )
    declared = handler_of("sync", handle, groups=Groups(concurrency=1))
    with running(worker_with(declared, concurrency=2, batch_size=100, poll_interval=HOUR)):
        wait_until(lambda: len(handling.done) >= 250)
        wait_until(lambda: not Message.objects.exclude(lease_id=None)[2:].exists())
        goes_on.set()
        wait_until(lambda: len(handling.done) == 600)
