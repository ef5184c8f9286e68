"""Times and positions of a consumer's polls, on a clock that the test moves."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayed_queue import DelayedQueue, Snooze
from delayed_queue.messages import Envelope
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.scanning import (
    DEEP_POLL_SHARE,
    FULL_SCAN_INTERVALS,
    MARGIN_MS,
    MOST_DEEP_POLLS,
    REWIND_MS,
    TRIAL,
    Poll,
    PollResult,
)
from delayed_queue.worker.engine.serving import consumers_of
from delayed_queue.worker.options import WorkerOptions
from tests.support.processes import wait_until
from tests.support.running import handler_of, registry_with, running, worker_with
from tests.worker.conftest import Clock

POLL = 3.0
LIMIT = 10
DUE = 1_800_000_000_000


@pytest.fixture
def consumer(clock: Clock) -> Consumer:
    def handle(envelope: Envelope) -> None: ...

    (consumer,) = consumers_of(WorkerOptions(), registry_with(handler_of("looked at", handle)))
    assert consumer.schedule.longest_sleep == POLL
    return consumer


def poll(
    consumer: Consumer,
    clock: Clock,
    found: int = 0,
    *,
    latest: int | None = None,
    last_id: int = 0,
    wait_ms: int | None = None,
    seconds: float = 0.001,
) -> Poll:
    begun = consumer.schedule.begin(LIMIT)
    clock.now += seconds
    consumer.end_poll(begun, PollResult(found, latest, wait_ms, last_id=last_id))
    return begun


def test_two_polls_come_before_a_sleep_and_the_second_asks_ahead(consumer: Consumer, clock: Clock):
    assert not poll(consumer, clock).asks_ahead
    assert consumer.schedule.next_at <= clock.now
    second = poll(consumer, clock)
    assert second.asks_ahead
    assert consumer.schedule.next_at == second.began_at + POLL


def test_what_was_announced_during_the_second_poll_is_not_slept_over(consumer, clock):
    poll(consumer, clock)
    second = consumer.schedule.begin(LIMIT)
    consumer.schedule.wake()
    consumer.end_poll(second, PollResult(0))
    assert consumer.schedule.next_at <= clock.now


def test_after_a_full_scan_others_begin_below_the_latest_due_time(consumer: Consumer, clock: Clock):
    assert poll(consumer, clock, 3, latest=DUE).is_full_scan
    assert poll(consumer, clock, 3, latest=DUE - 5000).position == DUE - MARGIN_MS
    # The mark only rises.
    assert poll(consumer, clock, 3, latest=DUE + 70).position == DUE - MARGIN_MS
    assert poll(consumer, clock, 3).position == DUE + 70 - MARGIN_MS


def test_while_polls_fill_the_next_begins_at_the_last_message_taken(consumer, clock):
    poll(consumer, clock, LIMIT, latest=DUE, last_id=7)
    for last_id in (8, 9):
        following = poll(consumer, clock, LIMIT, latest=DUE, last_id=last_id)
        assert (following.position, following.first_id) == (DUE, last_id - 1)
    poll(consumer, clock, LIMIT - 1, latest=DUE + 5, last_id=10)
    after = poll(consumer, clock)
    assert (after.position, after.first_id) == (DUE + 5 - MARGIN_MS, 0)


def test_polls_that_fill_are_rewound_as_others_are(consumer: Consumer, clock: Clock):
    poll(consumer, clock, LIMIT, latest=DUE, last_id=7)
    consumer.schedule.full_scans.at = clock.now + 10 * POLL
    clock.now += POLL
    back = poll(consumer, clock, LIMIT, latest=DUE - 3, last_id=5)
    assert (back.position, back.first_id) == (DUE - MARGIN_MS - REWIND_MS, 0)
    following = poll(consumer, clock, LIMIT, latest=DUE, last_id=6)
    assert (following.position, following.first_id) == (DUE - 3, 5)


def test_slow_full_scans_are_rare_and_rewinds_are_not(consumer: Consumer, clock: Clock):
    for _ in range(12):
        clock.now += FULL_SCAN_INTERVALS * POLL
        full = poll(consumer, clock, LIMIT, latest=DUE, seconds=1.0)
        assert full.is_full_scan
    clock.now = full.began_at + 0.99 * POLL
    assert poll(consumer, clock, LIMIT, latest=DUE, seconds=0).position == DUE
    clock.now = full.began_at + POLL
    back = poll(consumer, clock, LIMIT, latest=DUE, seconds=0)
    assert (back.position, back.is_full_scan) == (DUE - MARGIN_MS - REWIND_MS, False)
    clock.now = full.began_at + 0.99 * FULL_SCAN_INTERVALS * POLL
    assert not poll(consumer, clock, LIMIT, latest=DUE, seconds=0).is_full_scan
    clock.now = full.began_at + FULL_SCAN_INTERVALS * POLL
    assert poll(consumer, clock, LIMIT, latest=DUE).is_full_scan


def slow_full_scans(consumer: Consumer, clock: Clock) -> Poll:
    """Let full scans take 6 s until the average follows; return the last, after which it is due."""
    for _ in range(12):
        full = poll(consumer, clock, LIMIT, latest=DUE, seconds=6.0)
        assert full.is_full_scan
        clock.now += MOST_DEEP_POLLS * 6.0
    return full


def test_full_scans_never_take_more_than_a_twentieth_of_the_time(consumer: Consumer, clock: Clock):
    """One full scan over millions of deleted messages under an old snapshot takes many seconds."""
    full = slow_full_scans(consumer, clock)
    clock.now = full.began_at + 0.99 * MOST_DEEP_POLLS * 6.0
    assert not poll(consumer, clock, LIMIT, latest=DUE, seconds=0).is_full_scan
    clock.now = full.began_at + MOST_DEEP_POLLS * 6.0
    assert poll(consumer, clock, LIMIT, latest=DUE).is_full_scan


def test_nor_do_rewinds(consumer: Consumer, clock: Clock):
    """Each passes the messages that were handled or leased within some seconds."""
    slow_full_scans(consumer, clock)
    consumer.schedule.full_scans.at = clock.now + 3600
    for _ in range(12):
        clock.now += MOST_DEEP_POLLS * 1.0
        back = poll(consumer, clock, LIMIT, latest=DUE, seconds=1.0)
        assert back.is_rewind
    clock.now = back.began_at + 0.99 * MOST_DEEP_POLLS * 1.0
    assert not poll(consumer, clock, LIMIT, latest=DUE, seconds=0).is_rewind
    clock.now = back.began_at + MOST_DEEP_POLLS * 1.0
    assert poll(consumer, clock, LIMIT, latest=DUE, seconds=0).is_rewind


def test_a_rewind_that_met_old_messages_expects_more(consumer: Consumer, clock: Clock):
    poll(consumer, clock, LIMIT, latest=DUE)
    consumer.schedule.full_scans.at = clock.now + 10 * POLL
    clock.now += POLL
    assert poll(consumer, clock, 3, latest=DUE - 5_000).is_rewind
    assert poll(consumer, clock, LIMIT).position == DUE - 5_000 - MARGIN_MS


def test_before_a_long_sleep_it_scans_fully(consumer: Consumer, clock: Clock):
    """When it sleeps, it has taken the messages before the mark, if there were any."""
    poll(consumer, clock, LIMIT, latest=DUE, seconds=0.004)
    assert not poll(consumer, clock, 0, seconds=0).is_full_scan
    assert not poll(consumer, clock, 0, seconds=0).is_full_scan
    short = consumer.schedule.next_at - clock.now
    assert 0 < short <= 0.004 * (1 + DEEP_POLL_SHARE)
    clock.now = consumer.schedule.next_at
    assert poll(consumer, clock, 0).is_full_scan
    poll(consumer, clock, 0)
    assert consumer.schedule.next_at > clock.now + POLL / 2


def test_an_idle_consumer_has_no_cycle_of_short_naps(consumer: Consumer, clock: Clock):
    poll(consumer, clock, LIMIT, latest=DUE, seconds=0.05)
    polls, started_at = 0, clock.now
    while clock.now < started_at + 20 * POLL:
        clock.now = max(clock.now, consumer.schedule.next_at)
        poll(consumer, clock, seconds=0.05)
        polls += 1
    # Two for each sleep, and a few at the start.
    assert polls <= 2 * 20 + 6


def test_a_consumer_at_rest_polls_nothing_whatever_wakes_it(consumer: Consumer, clock: Clock):
    schedule = consumer.schedule
    schedule.rest(2)
    until = clock.now + 2
    for wake in (schedule.wake, schedule.rewind, lambda: schedule.wake(clock.now)):
        wake()
        assert schedule.next_at == until
    schedule.rest(1)
    poll(consumer, clock)
    poll(consumer, clock, wait_ms=5)
    assert schedule.next_at == until
    clock.now = until
    schedule.wake()
    assert schedule.next_at <= clock.now
    assert consumer.begin_poll(2 * TRIAL).limit == TRIAL
    schedule.end_trial()
    assert consumer.begin_poll(2 * TRIAL).limit == 2 * TRIAL


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("transactional", [False, True])
def test_one_message_that_is_handled_ends_the_trial_after_a_rest(transactional: bool):
    # A failed transaction is retried, each message by itself.
    rests = [timedelta(milliseconds=1)] * (1 + transactional)

    def rest_once(envelope: Envelope) -> None:
        if rests:
            raise Snooze(timedelta(0), rest=rests.pop())

    worker = worker_with(handler_of("orders", rest_once, transactional=transactional))
    orders = DelayedQueue("orders")
    with running(worker):
        for done, key in enumerate("ab", start=1):
            orders.offer_or_update(key, 1)
            wait_until(lambda: worker.counts.done == done)  # noqa: B023 # called here
    assert worker.counts.snoozed == 1
    [consumer] = worker.consumers
    assert consumer.begin_poll(2 * TRIAL).limit == 2 * TRIAL
