"""Messages that a worker leases ahead for a pool, on a clock that the test moves."""

from __future__ import annotations

import pytest

from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.executor import AHEAD_SECONDS, Executor, Pool
from tests.worker.conftest import Clock


def pool_of(slots: int) -> Pool:
    return Executor(slots, WakeChannel(), Board.new(slots))


def end(pool: Pool, clock: Clock, count: int, seconds: float) -> None:
    """End ``count`` messages one after the other, each after ``seconds``."""
    for _ in range(count):
        clock.now += seconds
        pool.ended(clock.now - seconds)


def test_before_one_has_ended_no_more_is_leased_than_there_are_slots(clock: Clock):
    assert pool_of(2).room(2, 0) == 2
    assert pool_of(2).room(2, 2) == 0
    assert pool_of(8).room(100, 0) == 8
    assert pool_of(8).room(100, 8) == 0


@pytest.mark.parametrize(
    ("slots", "seconds", "ahead"),
    [(8, 0.0001, 400), (8, 0.0099, 80), (2, 0.3, 0), (8, 0.3, 2), (1, 0.04, 2), (400, 0.09, 400)],
)
def test_what_will_begin_within_a_tenth_of_a_second_is_leased_ahead(clock, slots, seconds, ahead):
    """Four batches at most, and none if messages are claimed one by one."""
    pool = pool_of(slots)
    end(pool, clock, 1, seconds)
    assert pool.ahead(100, slots) == ahead
    assert pool.ahead(1, slots) == 0


@pytest.mark.parametrize("seconds", [0.001, 0.0099, 0.09, 0.25])
def test_the_next_are_leased_before_a_seat_has_to_wait_and_not_one_by_one(clock, seconds):
    pool = pool_of(8)
    end(pool, clock, 1, seconds)
    ahead = pool.ahead(100, 8)
    unhandled = next(each for each in range(8 + ahead, 0, -1) if pool.room(100, each))
    assert unhandled > 8
    assert pool.room(100, unhandled) >= min(ahead, 100) / 2


def test_behind_handlers_that_take_longer_than_those_before_nothing_is_leased(clock: Clock):
    pool = pool_of(8)
    end(pool, clock, 20, 0.001)
    assert pool.room(100, 8) == 100
    clock.now += AHEAD_SECONDS
    assert pool.room(100, 8) == 0
    # With all its slots free it is merely idle.
    assert pool.room(100, 0) == 100
    end(pool, clock, 1, 0.001)
    assert pool.room(100, 7) == 100
