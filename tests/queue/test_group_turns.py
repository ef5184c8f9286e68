"""The turns of groups: both stores find and lease alike."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Final, NamedTuple

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayed_queue import DelayedQueue, Groups, ScheduledMessage
from delayed_queue.queue.dealing import deal, deal_out
from delayed_queue.queue.store.groups import Ahead, GroupRow, Look, UngroupedRow
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.testing import InMemoryQueue, ManualClock

pytestmark = pytest.mark.django_db
NAMES: Final = [*"abcdefgh", None]
LEASE: Final = timedelta(minutes=5)
# Their rates space permits by whole milliseconds: the stores round fractions in another order.
RULES: Final = [
    Groups(), Groups(concurrency=1), Groups(concurrency=4), Groups(fair=False),
    Groups(concurrency=3, fair=False), Groups(order="fifo"), Groups(order="fifo", fair=False),
    Groups(rate="1/s", burst=3), Groups(rate="8/s", burst=4),
    Groups(concurrency=2, queue_rate="1/s", queue_burst=9), Groups(queue_rate="8/s", queue_burst=3),
]  # fmt: skip

# Messages per group, and the seconds between their due times.
backlogs = st.dictionaries(
    st.sampled_from(NAMES), st.tuples(st.integers(1, 20), st.sampled_from([0, 0, 1])), min_size=1
)
weights = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 9), max_size=3)


class Step(NamedTuple):
    """A poll of ``limit`` messages, its handled slice, and the changes after it.

    Time passes, messages are offered, weights are changed.
    """

    limit: int
    handled: slice
    pause: timedelta
    offered: dict[str | None, tuple[int, int]]
    weights: dict[str, int]


steps = st.builds(
    Step,
    limit=st.integers(1, 3) | st.integers(1, 40),
    handled=st.sampled_from([slice(0), slice(None), slice(None, None, 2)]),
    pause=st.sampled_from([timedelta(0), timedelta(milliseconds=125), timedelta(seconds=1), LEASE]),
    offered=st.just({}) | backlogs,
    weights=st.just({}) | weights,
)


def both(clock: ManualClock) -> tuple[DelayedQueue, DelayedQueue]:
    return (
        DelayedQueue("turns", clock=clock, lease_duration=LEASE),
        InMemoryQueue("turns", clock=clock, lease_duration=LEASE),
    )


def fill(
    queue: DelayedQueue, clock: ManualClock, counts: dict[str | None, tuple[int, int]], number: int
) -> None:
    queue.offer_batch(
        [
            ScheduledMessage(
                f"{name}{number}-{each:03}", None, clock() + timedelta(seconds=gap * each),
                group=name,
            )
            for name, (count, gap) in counts.items()
            for each in range(count)
        ]
    )  # fmt: skip


def weigh(queue: DelayedQueue, weights: dict[str, int]) -> None:
    for name, weight in weights.items():
        queue.groups.limit(name, weight=weight)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    rules=st.sampled_from(RULES),
    first=backlogs,
    weights=weights,
    steps=st.lists(steps, min_size=1, max_size=12),
)
def test_both_stores_deal_out_the_same_turns(rules, first, weights, steps):
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE delayed_queue, delayed_queue_limit")
    clock = ManualClock()
    queues = both(clock)
    for queue in queues:
        queue.groups.set(rules)
        fill(queue, clock, first, 0)
        weigh(queue, weights)
    for number, step in enumerate(steps, 1):
        real, memory = (queue.try_poll_many(step.limit) for queue in queues)
        assert [each.key for each in real] == [each.key for each in memory]
        assert len(real) <= step.limit
        for envelope in itertools.chain(real[step.handled], memory[step.handled]):
            assert envelope.acknowledge()
        clock.advance(step.pause)
        for queue in queues:
            fill(queue, clock, step.offered, number)
            weigh(queue, step.weights)


@given(
    limit=st.integers(1, 200),
    asked=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 60)), min_size=1, max_size=8),
    first=st.integers(0, 9),
)
def test_turns_are_dealt_out_one_after_the_other(limit, asked, first):
    first = min(first, asked[0][0])
    left = [room for _, room in asked]
    turns: list[tuple[int, int]] = []
    while limit > sum(number for _, number in turns) and any(left):
        for at, (weight, _) in enumerate(asked):
            is_first = first and at == 0 and len(turns) == 0
            number = min(first if is_first else weight, left[at])
            left[at] -= number
            turns += [(at, number)] if number else []
    given = [0] * len(asked)
    last, rest = len(asked) - 1, 0
    for at, number in turns:
        if limit:
            given[at] += min(number, limit)
            last, rest = at, number - min(number, limit)
            limit -= min(number, limit)
    assert deal(sum(given) + limit, asked, first) == (given, last, rest)


class Spell(NamedTuple):
    """A rule that replaces the one before, and the polls under it.

    A pause in milliseconds precedes each poll. First the clock is set back or forward by some
    seconds, as a server's is.
    """

    rate: int
    burst: int
    is_of_queue: bool
    jump: int
    pauses: list[int]

    @property
    def rules(self) -> Groups:
        rate = f"{self.rate}/s"
        if self.is_of_queue:
            return Groups(queue_rate=rate, queue_burst=self.burst)
        return Groups(rate=rate, burst=self.burst)


spells = st.builds(
    Spell,
    # The permits are whole milliseconds apart.
    rate=st.sampled_from([1, 2, 8, 100]),
    burst=st.sampled_from([1, 3, 20]),
    is_of_queue=st.booleans(),
    jump=st.sampled_from([0, 0, -3600, -10, 3600]),
    pauses=st.lists(st.sampled_from([0, 1, 125, 1000, 5000]), max_size=4),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(spells=st.lists(spells, min_size=1, max_size=4))
def test_g6_whatever_was_spent_before_a_rule_gives_its_rate_from_now_on(spells: list[Spell]):
    """At most burst and rate x time, and a permit after an interval at the latest."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE delayed_queue, delayed_queue_limit")
    clock, offered_at = ManualClock(), ManualClock()
    clock.advance(timedelta(days=1))
    queues = both(clock)
    for number, spell in enumerate(spells):
        for queue in queues:
            fill(queue, offered_at, {"a": (120, 0)}, number)
            queue.groups.set(spell.rules)
        clock.set(clock() + timedelta(seconds=spell.jump))
        started = [(0, started_now(queues))]
        interval = 1000 // spell.rate
        for pause in [*spell.pauses, interval]:
            clock.advance(timedelta(milliseconds=pause))
            started.append((started[-1][0] + pause, started_now(queues)))
        assert sum(count for _, count in started) >= 1
        for first, (begun, _) in enumerate(started):
            for last in range(first, len(started)):
                count = sum(each for _, each in started[first : last + 1])
                assert count <= spell.burst + (started[last][0] - begun) / interval


def started_now(queues: tuple[DelayedQueue, DelayedQueue]) -> int:
    """Poll and acknowledge all allowed messages on both; return their number."""
    real, memory = (queue.try_poll_many(20) for queue in queues)
    assert [each.key for each in real] == [each.key for each in memory]
    for batch in (real, memory):
        batch.acknowledge()
    return len(real)


def test_g5_permits_are_counted_at_the_instant_that_the_leases_bear():
    """The read of the groups sees a later time; a permit that is free only then is not taken."""
    rules = RulesRow(1_000, False, False, True, None, 1, None)
    group = GroupRow(
        "a", 0, True, False, None, 1, 50.0, 1, 1_001.0, False, False, 0, 0, True, 1, None, None,
        1_001,
    )  # fmt: skip
    look = Look("read committed", rules, [group], UngroupedRow([], 0, 0, 0))
    dealt = deal_out(Ahead("sync|json", 1, "", 0, 32, 0, 0, 100), look, rules)
    assert (dealt.shares, dealt.permit_at) == ([], 1_001.0)
