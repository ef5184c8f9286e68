"""Claims one at a time (N6), with the guarantees of fast claims."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.queue.store.claim import CLAIM, CLAIM_STRICT, NO_FLOOR, TRY_LOCK
from delayed_queue.worker.engine.worker import Worker
from tests.support.concurrency import TIMEOUT, calling, raw_connection, together, wait_until_blocked
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

ROUNDS: Final = 200
KIND: Final = "races|json"


@pytest.fixture
def strict(queue: DelayedQueue) -> DelayedQueue:
    return DelayedQueue(queue.name, claim="strict")


def offer(queue: DelayedQueue, count: int) -> list[str]:
    keys = [f"key-{each}" for each in range(count)]
    queue.offer_batch([ScheduledMessage(key, None) for key in keys])
    return keys


def claim(
    connection: psycopg.Connection[Any], limit: int, *, statement: str = CLAIM_STRICT
) -> list[str]:
    params = {
        "kind": KIND, "limit": limit, "floor": NO_FLOOR, "floor_id": 0, "now": None,
        "lease_id": "lease", "retaken_id": "again", "lease": 60_000, "waits": False,
    }  # fmt: skip
    return sorted(row[1] for row in connection.execute(statement, params))


def take_turn(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute(TRY_LOCK, {"kind": KIND}).fetchone()
    return row is not None and row[0]


class Rounds:
    """Two pollers that start each round at the same moment."""

    def __init__(self, queue: DelayedQueue, messages: int, batch: int) -> None:
        self._queue = queue
        self._messages = messages
        self._batch = batch
        self._barrier = threading.Barrier(2, timeout=TIMEOUT)
        self.splits: Counter[tuple[int, ...]] = Counter()
        self._found = [0, 0]

    def run(self) -> Counter[tuple[int, ...]]:
        together([partial(self._poll, 0), partial(self._poll, 1)])
        return self.splits

    def _poll(self, number: int) -> None:
        for _ in range(ROUNDS):
            if number == 0:
                offer(self._queue, self._messages)
            self._barrier.wait()
            batch = self._queue.try_poll_many(self._batch)
            self._found[number] = len(batch)
            self._barrier.wait()
            batch.acknowledge()
            if number == 0:
                self.splits[tuple(sorted(self._found))] += 1
            self._barrier.wait()


def test_n6_of_two_pollers_with_batch_two_one_gets_both_messages(strict: DelayedQueue):
    """2/0 in 200 of 200 rounds."""
    assert Rounds(strict, messages=2, batch=2).run() == {(0, 2): ROUNDS}


def test_a_strict_poll_waits_for_one_that_is_being_made(strict, other, admin):
    keys = offer(strict, 2)
    other.execute("BEGIN")
    assert claim(other, 2) == keys
    with calling(lambda: [each.key for each in strict.try_poll_many(2)]) as polling:
        wait_until_blocked(admin, polling)
        other.execute("COMMIT")
        assert polling.answer() == []


def test_what_was_leased_while_it_waited_does_not_count_for_its_limit(strict, other, admin):
    """Its snapshot still shows the first two as due."""
    keys = offer(strict, 3)
    other.execute("BEGIN")
    assert take_turn(other)
    with calling(lambda: [each.key for each in strict.try_poll_many(2)]) as polling:
        wait_until_blocked(admin, polling)
        assert claim(other, 2) == keys[:2]
        other.execute("COMMIT")
        assert polling.answer() == keys[2:]


def test_a_fast_poll_does_not_wait_and_takes_what_is_left(queue, other):
    """SKIP LOCKED alone may split two messages: the reason for the strict claim."""
    first, second = offer(queue, 2)
    with other.transaction():
        assert claim(other, 1, statement=CLAIM) == [first]
        assert [each.key for each in queue.try_poll_many(2)] == [second]


def test_a_claim_that_may_not_wait_finds_nothing_when_it_is_not_its_turn(strict, other):
    keys = offer(strict, 2)
    with raw_connection() as holder:
        with holder.transaction():
            assert take_turn(holder)
            assert not take_turn(other)
            assert claim(other, 2) == []
        assert claim(other, 2) == keys


def test_the_queues_have_their_turns_apart(strict: DelayedQueue, other: psycopg.Connection[Any]):
    another = DelayedQueue("another", claim="strict")
    another.offer_or_update("key", 1)
    with other.transaction():
        assert take_turn(other)
        assert another.try_poll() is not None


def test_a_killed_holder_gives_up_its_turn_and_its_messages(strict, admin):
    """Faults: neither the lock nor the claim outlives the session."""
    keys = offer(strict, 2)
    with raw_connection() as holder:
        holder.execute("BEGIN")
        assert claim(holder, 2) == keys
        with calling(lambda: [each.key for each in strict.try_poll_many(2)]) as polling:
            wait_until_blocked(admin, polling)
            admin.execute("SELECT pg_terminate_backend(%s)", [holder.info.backend_pid])
            assert polling.answer() == keys


@pytest.mark.parametrize("mode", ["fast", "strict"])
def test_two_threads_with_batch_two_process_three_messages_in_parallel(queue, mode):
    """N5, the test of the original design: each handler returns only once both have started."""
    pollers = DelayedQueue(queue.name, claim=mode)
    offer(queue, 3)
    both = threading.Barrier(2, timeout=TIMEOUT)

    def poll() -> list[str]:
        batch = pollers.try_poll_many(2)
        while not batch:  # a fast claim may find all locked
            batch = pollers.try_poll_many(2)
        both.wait()
        assert batch.acknowledge() == len(batch)
        return [envelope.key for envelope in batch]

    found = together([poll, poll])

    assert sorted(key for keys in found for key in keys) == ["key-0", "key-1", "key-2"]
    assert not queue.stats().due


# The worker


def worker_of(function: Callable[[Envelope], Any], **options: Any) -> Worker:
    handler = handler_of("races", function, claim="strict", batch_size=2)
    return worker_with(handler, poll_interval=timedelta(hours=1), **options)


def test_strict_workers_handle_everything_once_and_their_handlers_overlap(queue: DelayedQueue):
    keys = offer(queue, 40)
    handled: list[str] = []
    four = threading.Barrier(4, timeout=TIMEOUT)
    places = iter(range(4))

    def handle(envelope: Envelope) -> None:
        # The first four; each worker has threads for two of them.
        if next(places, None) is not None:
            four.wait()
        handled.append(envelope.key)

    workers = [worker_of(handle, concurrency=2) for _ in range(2)]
    with running(workers[0]), running(workers[1]):
        wait_until(lambda: len(handled) == len(keys))
    assert Counter(handled) == Counter(keys)


def test_a_worker_that_is_refused_looks_again_soon_and_goes_on_with_its_other_queues(strict, other):
    """It neither waits for the lock nor sleeps for its interval, an hour."""
    handled: list[str] = []
    note = handler_of("races", lambda each: handled.append(each.key), claim="strict")
    aside = handler_of("aside", lambda each: handled.append(each.key))
    worker = worker_with(note, aside, poll_interval=timedelta(hours=1))
    other.execute("BEGIN")
    assert take_turn(other)
    with running(worker):
        keys = offer(strict, 2)
        DelayedQueue("aside").offer_or_update("aside", 1)
        wait_until(lambda: handled == ["aside"])
        wait_until(lambda: worker.counts.done == 1)
        other.execute("COMMIT")
        wait_until(lambda: sorted(handled) == ["aside", *keys])
