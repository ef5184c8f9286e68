"""The PostgreSQL and the in-memory queue, through the same random histories.

``HYPOTHESIS_PROFILE=thorough`` runs longer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from delayed_queue import (
    Batch,
    DelayedQueue,
    Envelope,
    Groups,
    Reject,
    RetryPolicy,
    ScheduledMessage,
    Snooze,
)
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.facade import DROP_ALL_CONFIRMATION
from delayed_queue.testing import InMemoryQueue, InMemoryStore, ManualClock, dead_letters
from tests.queue.contract.support import DAY, HOUR, MILLISECOND, MINUTE, SECOND

T = TypeVar("T")
KEYS: Final = ("a", "b", "é", "\N{PILE OF POO}")
LEASE: Final = 30 * SECOND
numbers: Final = itertools.count()

keys = st.sampled_from(KEYS)
payloads = st.integers(0, 1)
groups = st.sampled_from([None, "g", "h"])
headers = st.sampled_from([None, {}, {"trace": "x", "n": [1.5, None]}])
delays = st.none() | st.sampled_from([timedelta(0), -SECOND, SECOND, MINUTE])
# Counted from the start, not from now, so that the same instant is offered again.
offsets = st.none() | st.sampled_from([-HOUR, timedelta(0), SECOND, MINUTE, HOUR])
failures = st.sampled_from(
    [
        lambda: ValueError("it broke"),
        lambda: KeyError("missing"),
        lambda: Snooze(MINUTE),
        lambda: Reject("no such customer"),
    ]
)


class Pair(NamedTuple):
    """The same delivery, or batch, of both queues."""

    real: Any
    memory: Any


class Queues(RuleBasedStateMachine):
    """Call both queues; their answers and visible states must be equal."""

    held = Bundle("held")  # envelopes, with live or expired leases
    batches = Bundle("batches")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.start = self.clock()
        # A name per example: the transaction of the test is never rolled back between them.
        name = f"machine-{next(numbers)}"
        options: dict[str, Any] = {
            "clock": self.clock,
            "lease_duration": LEASE,
            "poll_interval": DAY,
            "retry_policy": RetryPolicy.ladder("1s 1m"),
        }
        self.real = DelayedQueue(name, **options)
        self.memory = InMemoryQueue(name, store=InMemoryStore(), **options)
        raw: dict[str, Any] = {"kind": self.real.kind, "codec": "bytes", "clock": self.clock}
        self.raw_real = DelayedQueue("raw", **raw)
        self.raw_memory = InMemoryQueue("raw", store=self.memory.store, **raw)
        self.lease_ids: dict[str | None, str | None] = {None: None}

    def both(self, call: Callable[[DelayedQueue], T]) -> T:
        """Return the answer that both queues give."""
        real, memory = call(self.real), call(self.memory)
        assert real == memory
        return real

    def on_both(self, pair: Pair, call: Callable[[Any], T]) -> T:
        real, memory = call(pair.real), call(pair.memory)
        assert real == memory
        return real

    # Offering

    @rule(
        key=keys, payload=payloads, offset=offsets, headers=headers, group=groups,
        can_update=st.booleans(),
    )  # fmt: skip
    def offer_at(self, key, payload, offset, headers, group, can_update):
        at, said = self.instant(offset), {"headers": headers, "group": group}
        if can_update:
            self.both(lambda queue: queue.offer_or_update(key, payload, at, **said))
        else:
            self.both(lambda queue: queue.offer_if_not_exists(key, payload, at, **said))

    @rule(key=keys, payload=payloads, delay=delays)
    def offer_after(self, key, payload, delay):
        self.both(lambda queue: queue.offer_or_update(key, payload, delay=delay))

    @rule(
        offers=st.lists(
            st.tuples(keys, payloads, offsets, st.booleans(), headers, groups), max_size=8
        ),
        streamed=st.booleans(),
    )
    def offer_batch(self, offers, streamed):
        messages = [
            ScheduledMessage(key, payload, self.instant(offset), can_update, headers, group)
            for key, payload, offset, can_update, headers, group in offers
        ]
        self.both(lambda queue: queue.offer_batch(iter(messages) if streamed else messages))

    @rule(key=keys)
    def offer_undecodable(self, key):
        outcome = self.raw_real.offer_or_update(key, b"\xff")
        assert outcome == self.raw_memory.offer_or_update(key, b"\xff")

    def instant(self, offset: timedelta | None) -> datetime | None:
        return None if offset is None else self.start + offset

    # Leasing

    @rule(step=st.sampled_from([MILLISECOND, SECOND, LEASE, MINUTE, HOUR]))
    def advance(self, step):
        self.clock.advance(step)

    @rule(target=held)
    def poll(self):
        pair = self.polled()
        return multiple() if pair is None else pair

    def polled(self) -> Pair | None:
        pair = Pair(self.real.try_poll(), self.memory.try_poll())
        if pair.real is None or pair.memory is None:
            assert pair.real is pair.memory
            return None
        self.on_both(pair, self.seen)
        self.lease_ids[pair.real.lease_id] = pair.memory.lease_id
        return pair

    @rule(target=held, key=keys, payload=payloads)
    def offer_and_poll(self, key, payload):
        """Use a live lease: most random ones are stale."""
        self.both(lambda queue: queue.offer_or_update(key, payload, self.start))
        return self.poll()

    @rule(target=batches, limit=st.integers(0, 3))
    def poll_many(self, limit):
        pair = Pair(self.real.try_poll_many(limit), self.memory.try_poll_many(limit))
        assert len(pair.real) == len(pair.memory)
        for real, memory in zip(*pair, strict=True):
            self.on_both(Pair(real, memory), self.seen)
        self.lease_ids[pair.real.lease_id] = pair.memory.lease_id
        return pair

    @rule(target=held, batch=batches, index=st.integers(0, 2))
    def member(self, batch: Pair, index: int):
        return (
            Pair(batch.real[index], batch.memory[index]) if index < len(batch.real) else multiple()
        )

    @staticmethod
    def seen(envelope: Envelope) -> tuple[Any, ...]:
        return (
            envelope.key, envelope.payload, envelope.queue, envelope.attempt, envelope.headers,
            envelope.delivery_type, envelope.scheduled_at, envelope.due_at, envelope.leased_until,
            envelope.group,
        )  # fmt: skip

    @rule(pair=held)
    def acknowledge(self, pair):
        self.on_both(pair, Envelope.acknowledge)

    @rule(pair=batches)
    def acknowledge_batch(self, pair):
        self.on_both(pair, Batch.acknowledge)

    @rule(pair=held, delay=delays, error=st.sampled_from(["", "busy"]))
    def release(self, pair, delay, error):
        self.on_both(pair, lambda envelope: envelope.release(delay, error))

    @rule(pair=held, duration=st.none() | st.sampled_from([MILLISECOND, MINUTE]))
    def extend(self, pair, duration):
        self.on_both(pair, lambda envelope: (envelope.extend(duration), envelope.leased_until))

    @rule(pair=held)
    def reject(self, pair):
        self.on_both(pair, lambda envelope: envelope.reject("no"))

    @rule(pair=held, failure=failures)
    def fail(self, pair, failure):
        error = failure()
        answers = self.real.fail(pair.real, error), self.memory.fail(pair.memory, error)
        assert answers[0] == answers[1]

    @rule(failures=st.lists(failures, min_size=1, max_size=4))
    def fail_again_and_again(self, failures):
        """Fail the next delivered message that often, which few random histories do."""
        for failure in failures:
            pair = self.polled()
            if pair is not None:
                self.fail(pair, failure)
                self.clock.advance(MINUTE)

    @rule(reasons=st.lists(st.sampled_from(["no", "never"]), min_size=1, max_size=4))
    def reject_all(self, reasons):
        self.both(
            lambda queue: queue.offer_batch([ScheduledMessage(key, key) for key in KEYS[::-1]])
        )
        for reason in reasons:
            pair = self.polled()
            if pair is not None:
                self.on_both(pair, partial(Envelope.reject, reason=reason))

    @rule(pair=held, refund=st.integers(0, 1))
    def give_back(self, pair, refund):
        answers = [
            queue._release_unacknowledged(envelope.lease_id, [envelope.message_id], refund=refund)
            for queue, envelope in zip((self.real, self.memory), pair, strict=True)
        ]
        assert answers[0] == answers[1]

    # Consuming

    @rule()
    def consume(self):
        self.both(lambda queue: self.consumed(queue, lambda: None))

    @rule(failure=failures | st.just(KeyboardInterrupt), key=keys)
    def consume_and_fail(self, failure, key):
        def handle(queue: DelayedQueue) -> None:
            queue.offer_or_update(key, "written by a handler that fails")
            raise failure()

        self.both(lambda queue: self.consumed(queue, lambda: handle(queue)))

    def consumed(self, queue: DelayedQueue, handle: Callable[[], None]) -> tuple[Any, ...]:
        seen: list[Any] = []
        try:
            with queue.consume() as envelope:
                seen.append(envelope and self.seen(envelope))
                handle()
        except (ValueError, KeyError, KeyboardInterrupt, InvalidConfiguration) as error:
            seen.append(repr(error))
        return tuple(seen)

    # Operating

    @rule(key=keys)
    def drop(self, key):
        self.both(lambda queue: queue.drop_message(key))

    @rule()
    def drop_all(self):
        self.both(lambda queue: queue.drop_all_messages(DROP_ALL_CONFIRMATION))

    @rule(indexes=st.lists(st.integers(0, 5), max_size=4), overwrite=st.booleans())
    def redrive(self, indexes, overwrite):
        self.both(lambda queue: self.redriven(queue, indexes, overwrite))

    @staticmethod
    def redriven(queue: DelayedQueue, indexes: list[int], overwrite: bool) -> dict[int, str]:
        """Redrive by position among the dead letters: their ids differ."""
        ids = [letter.id for letter in dead_letters(queue)]
        chosen = [ids[index] if index < len(ids) else -index for index in indexes]
        outcomes = queue.redrive(chosen, overwrite=overwrite)
        return {ids.index(letter_id): outcome for letter_id, outcome in outcomes.items()}

    @rule(reason=st.sampled_from([None, "attempts", "no", "none of them"]), overwrite=st.booleans())
    def redrive_all(self, reason, overwrite):
        self.both(lambda queue: queue.redrive_all(reason=reason, overwrite=overwrite))

    @rule(age=st.sampled_from([timedelta(0), MINUTE]))
    def prune(self, age):
        self.both(lambda queue: queue.prune_dead_letters(age))

    @rule(reason=st.sampled_from(["", "maintenance"]))
    def pause(self, reason):
        self.both(lambda queue: queue.pause(reason))

    @rule()
    def resume(self):
        self.both(lambda queue: queue.resume())

    @rule(key=keys)
    def pause_while_something_is_due(self, key):
        """In most random histories no message is due while the queue is paused."""
        self.both(lambda queue: queue.offer_or_update(key, "due", self.start))
        self.both(lambda queue: queue.pause())
        assert self.polled() is None
        self.consume()
        self.both(lambda queue: queue.resume())

    # Groups

    @rule(
        rules=st.sampled_from(
            [
                Groups(concurrency=1), Groups(concurrency=2, fair=False), Groups(rate="1/m"),
                Groups(order="fifo"), Groups(order="fifo", on_dead="block"),
                Groups(queue_rate="2/m", queue_burst=2),
            ]
        )
    )  # fmt: skip
    def limit_groups(self, rules):
        self.both(lambda queue: queue.groups.set(rules))

    @rule()
    def clear_limits(self):
        self.both(lambda queue: queue.groups.clear())

    @rule(concurrency=st.sampled_from([None, 1, 3]), weight=st.sampled_from([None, 2]))
    def limit_group(self, concurrency, weight):
        self.both(lambda queue: queue.groups.limit("g", concurrency=concurrency, weight=weight))

    @rule(group=st.sampled_from(["g", "h"]))
    def pause_group(self, group):
        self.both(lambda queue: queue.groups.pause(group))

    @rule(group=st.sampled_from(["g", "h"]))
    def resume_group(self, group):
        self.both(lambda queue: queue.groups.resume(group))

    # Observing

    @invariant()
    def agree(self):
        self.both(lambda queue: queue.stats())
        self.both(lambda queue: queue.is_paused())
        self.both(lambda queue: queue.groups.held())
        self.both(lambda queue: queue.seconds_to_next_look())
        self.both(lambda queue: [self.dead_lettered(each) for each in dead_letters(queue)])
        for key in KEYS:
            self.agree_on(key)

    def agree_on(self, key: str) -> None:
        real, memory = self.real.read(key), self.memory.read(key)
        if real is None or memory is None:
            assert real is memory
            return
        assert self.lease_ids[real.lease_id] == memory.lease_id
        for name in (
            "state", "attempts", "scheduled_at", "scheduled_at_initially", "created_at",
            "leased_until", "headers", "last_error", "data", "group",
        ):  # fmt: skip
            assert getattr(real, name) == getattr(memory, name), name

    @staticmethod
    def dead_lettered(letter: Any) -> tuple[Any, ...]:
        return (
            letter.key, bytes(letter.payload), letter.headers, letter.attempts, letter.reason,
            letter.first_error, letter.last_error, letter.scheduled_at_initially,
            letter.created_at, letter.died_at, letter.group,
        )  # fmt: skip


@pytest.mark.django_db
def test_both_queues_live_through_the_same_histories():
    run_state_machine_as_test(
        Queues,
        settings=settings(
            # Each is forty steps in a database.
            max_examples=settings().max_examples // 5,
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
