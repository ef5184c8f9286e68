"""Capped counts are reported as capped, in every mix of states (Q32)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayed_queue import DelayedQueue, ScheduledMessage

CAP = 10
PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def queue(db: None) -> DelayedQueue:
    return DelayedQueue("counted", lease_duration=timedelta(minutes=5))


def offer(queue: DelayedQueue, prefix: str, count: int, at: datetime) -> None:
    queue.offer_batch([ScheduledMessage(f"{prefix}-{each}", None, at) for each in range(count)])


def lease(queue: DelayedQueue, count: int) -> None:
    offer(queue, "leased", count, PAST)
    assert len(queue.try_poll_many(count)) == count


def schedule(queue: DelayedQueue, count: int, *, after: timedelta) -> None:
    offer(queue, "scheduled", count, datetime.now(UTC) + after)


def fill_with_half_of_each(queue: DelayedQueue) -> None:
    """The first ten not yet due are five of each state, with more behind them."""
    lease(queue, 5)
    schedule(queue, 100, after=timedelta(hours=1))


def fill_behind_the_leases_of_another_queue(queue: DelayedQueue) -> None:
    """The first ten not yet due, and the first ten leases, belong to other queues."""
    for each in range(20):
        lease(DelayedQueue(f"other {each}"), 1)
    schedule(queue, 20, after=timedelta(minutes=1))
    lease(queue, 5)


@pytest.mark.parametrize("fill", [fill_with_half_of_each, fill_behind_the_leases_of_another_queue])
def test_a_count_that_was_cut_short_is_called_capped(queue, fill):
    fill(queue)

    stats = queue.stats(cap=CAP)

    assert stats.is_capped
    assert stats.scheduled <= CAP
    assert stats.leased <= CAP


def test_leases_are_counted_in_full_behind_those_of_other_queues(queue: DelayedQueue):
    for each in range(20):
        lease(DelayedQueue(f"other {each}"), 1)
    lease(queue, 5)
    schedule(queue, 3, after=timedelta(hours=1))

    stats = queue.stats(cap=CAP)

    assert (stats.leased, stats.scheduled, stats.is_capped) == (5, 3, False)
