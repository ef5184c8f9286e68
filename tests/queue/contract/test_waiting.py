"""Q21: waiting for a message, and being woken."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.testing import InMemoryQueue, dead_letters
from tests.queue.contract.support import (
    HOUR,
    MINUTE,
    SECOND,
    TIMEOUT,
    MakeQueue,
    in_thread,
    leased,
    watched_stop,
)


@pytest.fixture
def patient(make_shared_queue: MakeQueue) -> DelayedQueue:
    """A queue whose pollers would oversleep by a minute if nothing woke them."""
    return make_shared_queue("orders", poll_interval=MINUTE)


def test_q21_returns_at_once_what_is_due(patient: DelayedQueue):
    patient.offer_or_update("a", 1)
    envelope = patient.poll(timeout=TIMEOUT)
    assert envelope is not None
    assert envelope.key == "a"


def test_q21_wakes_at_the_next_due_time(patient: DelayedQueue):
    patient.offer_or_update("a", 1, delay=0.3 * SECOND)
    patient.offer_or_update("b", 1, delay=HOUR)
    started = time.monotonic()
    envelope = patient.poll(timeout=TIMEOUT)
    assert time.monotonic() - started > 0.2
    assert envelope is not None


@pytest.mark.parametrize(
    "offer",
    [
        pytest.param(lambda queue: queue.offer_or_update("a", 1), id="offer"),
        pytest.param(lambda queue: queue.offer_batch([ScheduledMessage("a", 1)]), id="batch"),
        pytest.param(lambda queue: queue.offer_or_update("later", 2), id="update"),
        pytest.param(lambda queue: queue.offer_or_update("a", 1, delay=SECOND / 10), id="soon"),
    ],
)
def test_q21_wakes_for_an_offer_of_another_thread(patient, offer):
    patient.offer_or_update("later", 1, delay=HOUR)
    with watched_stop() as stop:
        future = in_thread(lambda: patient.poll(timeout=TIMEOUT, stop=stop))
        stop.await_sleep()
        started = time.monotonic()
        offer(patient)
        envelope = future.result(TIMEOUT)
    assert envelope is not None
    assert time.monotonic() - started < TIMEOUT / 2


def test_q21_wakes_for_a_release_and_a_redrive(patient: DelayedQueue):
    patient.offer_or_update("released", 1)
    held = leased(patient)
    patient.offer_or_update("dead", 1)
    leased(patient).reject("bad")
    with watched_stop() as stop:
        future = in_thread(lambda: patient.poll(timeout=TIMEOUT, stop=stop))
        stop.await_sleep()
        held.release()
        envelope = future.result(TIMEOUT)
        assert envelope is not None
        assert envelope.key == "released"
    with watched_stop() as stop:
        future = in_thread(lambda: patient.poll(timeout=TIMEOUT, stop=stop))
        stop.await_sleep()
        patient.redrive([letter.id for letter in dead_letters(patient)])
        envelope = future.result(TIMEOUT)
        assert envelope is not None
        assert envelope.key == "dead"


def test_q21_what_is_due_already_is_no_time_to_wake(queue: DelayedQueue):
    # Another consumer may hold it, and then its waiters would spin.
    queue.offer_or_update("a", 1)
    assert queue.seconds_to_next_look() == queue.poll_interval.total_seconds()
    queue.offer_or_update("b", 1, delay=SECOND)
    assert queue.seconds_to_next_look() == 1


def test_q21_several_pollers_share_what_comes(patient: DelayedQueue):
    with watched_stop() as first, watched_stop() as second:
        futures = [in_thread(partial(patient.poll, TIMEOUT, stop=stop)) for stop in (first, second)]
        first.await_sleep()
        second.await_sleep()
        patient.offer_batch([ScheduledMessage("a", 1), ScheduledMessage("b", 1)])
        envelopes = [future.result(TIMEOUT) for future in futures]
    assert sorted(each.key for each in envelopes if each is not None) == ["a", "b"]


@pytest.mark.parametrize("timeout", [0, 0.05, timedelta(milliseconds=50)])
def test_q21_honours_its_timeout(patient: DelayedQueue, timeout: Any):
    patient.offer_or_update("a", 1, delay=HOUR)
    started = time.monotonic()
    assert patient.poll(timeout) is None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    assert seconds <= time.monotonic() - started < seconds + 5


def test_q21_another_thread_can_end_the_sleep(patient: DelayedQueue):
    with watched_stop() as stop:
        future = in_thread(lambda: patient.poll(stop=stop))
        stop.await_sleep()
        started = time.monotonic()
        stop.set()
        assert future.result(TIMEOUT) is None
    assert time.monotonic() - started < TIMEOUT / 2


def test_q21_a_stop_that_was_set_before_leases_nothing(patient: DelayedQueue):
    patient.offer_or_update("a", 1)
    with watched_stop() as stop:
        stop.set()
        assert patient.poll(stop=stop) is None
    assert patient.stats().leased == 0


def test_q21_waits_inside_a_transaction_too(make_queue: MakeQueue):
    queue = make_queue("orders", poll_interval=MINUTE)
    queue.offer_or_update("a", 1, delay=0.1 * SECOND)
    envelope = queue.poll(timeout=TIMEOUT)
    assert envelope is not None


@pytest.mark.parametrize("queue_type", [DelayedQueue, InMemoryQueue])
@pytest.mark.parametrize("timeout", [-1, math.nan, "5 s", timedelta(seconds=-1)])
def test_q21_a_timeout_is_not_negative(queue_type: type[DelayedQueue], timeout: Any):
    with pytest.raises(InvalidConfiguration, match="timeout"):
        queue_type("orders").poll(timeout)


@pytest.mark.parametrize("queue_type", [DelayedQueue, InMemoryQueue])
@pytest.mark.parametrize("interval", [timedelta(0), timedelta(days=2), "3 s"])
def test_q21_a_poll_interval_is_reasonable(queue_type: type[DelayedQueue], interval: Any):
    with pytest.raises(InvalidConfiguration, match="poll interval"):
        queue_type("orders", poll_interval=interval)
