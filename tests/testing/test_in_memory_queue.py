"""Differences of the in-memory queue: clocks, stores, no database."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.db import transaction

from delayed_queue import DelayedQueue, facade
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import LimitManager, MessageManager
from delayed_queue.queue.store.dead_letters import DeadLetterManager
from delayed_queue.testing import (
    InMemoryQueue,
    InMemoryStore,
    ManualClock,
    assert_not_offered,
    assert_offered,
)
from delayed_queue.testing.limits import InMemoryLimits
from delayed_queue.testing.queues import InMemoryMessages
from delayed_queue.testing.stores import START
from delayed_queue.testing.tables import InMemoryLetters
from tests.queue.contract.support import HOUR, MINUTE, SECOND, TIMEOUT, in_thread, watched_stop


@pytest.mark.parametrize(
    ("double", "manager", "attribute"),
    [
        (InMemoryMessages, MessageManager, "_messages"),
        (InMemoryLetters, DeadLetterManager, "_letters"),
        (InMemoryLimits, LimitManager, "_limits"),
    ],
)
def test_the_stores_have_every_statement_that_queues_use(double, manager, attribute):
    facade_file = Path(facade.__file__)
    sources = [facade_file, *facade_file.parent.glob("queue/*.py")]
    used = {
        name
        for source in sources
        for name in re.findall(rf"self\.{attribute}\.(\w+)", source.read_text())
    }
    assert used
    assert {name for name in used if not hasattr(double, name)} == set()
    own = {name for name in vars(double) if not name.startswith("_")}
    assert {name for name in own if not hasattr(manager, name)} == set()


def test_a_queue_has_a_store_of_its_own():
    InMemoryQueue("orders").offer_or_update("a", 1)
    assert_not_offered(InMemoryQueue("orders"), "a")


def test_queues_of_one_store_see_each_other():
    store = InMemoryStore()
    InMemoryQueue("orders", store=store).offer_or_update("a", 1)
    assert_offered(InMemoryQueue("orders", store=store), "a", 1)


def test_without_a_clock_it_keeps_the_time_of_the_host():
    queue = InMemoryQueue("orders")
    before = datetime.now(UTC) - SECOND
    queue.offer_or_update("a", 1)
    assert before < assert_offered(queue, "a").created_at <= datetime.now(UTC)


def test_a_failing_transaction_changes_nothing_in_the_store():
    queue = InMemoryQueue("orders")
    queue.offer_or_update("a", 1)
    with pytest.raises(KeyboardInterrupt), queue.consume():
        raise KeyboardInterrupt
    assert assert_offered(queue, "a").attempts == 0


def test_others_wait_for_the_end_of_a_consume():
    queue = InMemoryQueue("orders")
    queue.offer_or_update("a", 1)
    with queue.consume():
        waiting = in_thread(lambda: queue.read("a"))
        assert not waiting.done()
    assert waiting.result(TIMEOUT) is None


def test_it_has_no_schedules():
    with pytest.raises(InvalidConfiguration, match="no schedules"):
        _ = InMemoryQueue("orders").cron


@pytest.mark.django_db
def test_q30_consume_is_refused_inside_a_database_transaction():
    queue = InMemoryQueue("orders")
    with transaction.atomic(), pytest.raises(RuntimeError, match="transaction"), queue.consume():
        raise AssertionError("a consume within a transaction")


class TestManualClock:
    def test_it_stands_still_until_moved(self):
        clock = ManualClock()
        assert clock() == clock() == START
        assert clock.advance(HOUR) == START + HOUR == clock()
        assert clock.set(START - HOUR) == START - HOUR == clock()

    def test_it_takes_the_given_instant(self):
        at = datetime(2000, 1, 1, tzinfo=UTC)
        assert ManualClock(at)() == at
        assert "2000-01-01" in repr(ManualClock(at))

    def test_it_advances_only_forward(self):
        with pytest.raises(InvalidConfiguration, match="forward"):
            ManualClock().advance(-SECOND)

    def test_it_needs_aware_datetimes(self):
        naive = START.replace(tzinfo=None)
        with pytest.raises(InvalidConfiguration, match="aware"):
            ManualClock(naive)
        with pytest.raises(InvalidConfiguration, match="aware"):
            ManualClock().set(naive)

    def test_moving_it_wakes_a_poller(self):
        clock = ManualClock()
        queue = InMemoryQueue("orders", clock=clock, poll_interval=MINUTE)
        queue.offer_or_update("a", 1, delay=timedelta(days=365))
        with watched_stop() as stop:
            future = in_thread(lambda: queue.poll(timeout=TIMEOUT, stop=stop))
            stop.await_sleep()
            clock.advance(timedelta(days=365))
            envelope = future.result(TIMEOUT / 2)
        assert envelope is not None

    def test_it_forgets_pollers_that_have_gone(self):
        clock = ManualClock()
        queue = InMemoryQueue("orders", clock=clock)
        assert queue.poll(timeout=0) is None
        clock.advance(SECOND)
        assert queue.poll(timeout=0) is None


@pytest.mark.parametrize("queue_type", [DelayedQueue, InMemoryQueue])
def test_a_clock_that_is_naive_is_refused(queue_type: type[DelayedQueue]):
    queue = queue_type("orders", clock=lambda: START.replace(tzinfo=None))
    with pytest.raises(InvalidConfiguration, match="aware"):
        queue.offer_or_update("a", 1, delay=SECOND)
