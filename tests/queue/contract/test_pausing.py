"""W12: a paused queue hands out nothing, and everything else still works."""

from __future__ import annotations

import time

from asgiref.sync import async_to_sync

from delayed_queue import DelayedQueue, OfferOutcome, RetryPolicy
from delayed_queue.testing import drain
from tests.queue.contract.support import (
    HOUR,
    MINUTE,
    TIMEOUT,
    MakeQueue,
    in_thread,
    leased,
    polled_keys,
    watched_stop,
)


def test_w12_it_says_what_it_changed(queue: DelayedQueue):
    assert queue.is_paused() is False
    assert queue.pause("maintenance", by="operator") is True
    assert queue.pause("again") is False
    assert queue.is_paused() is True
    assert queue.resume() is True
    assert queue.resume() is False
    assert queue.is_paused() is False


def test_w12_no_way_of_taking_messages_hands_one_out(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    queue.pause()

    assert queue.try_poll() is None
    assert len(queue.try_poll_many(10)) == 0
    assert queue.poll(timeout=0) is None
    with queue.consume() as envelope:
        assert envelope is None
    assert async_to_sync(queue.atry_poll)() is None
    assert drain(queue, lambda _: None).delivered == 0
    assert queue.stats().due == 1


def test_w12_when_resumed_all_is_there_in_order(queue: DelayedQueue):
    queue.offer_or_update("b", 1, delay=-MINUTE)
    queue.pause()
    queue.offer_or_update("a", 1, delay=-HOUR)
    queue.resume()

    assert polled_keys(queue) == ["a", "b"]


def test_w12_offers_and_leases_go_on_while_it_is_paused(make_queue, manual_clock):
    queue = make_queue("orders", clock=manual_clock, retry_policy=RetryPolicy.ladder("1m"))
    for key in "abcde":
        queue.offer_or_update(key, 1)
    acknowledged, extended, released, rejected, failed = queue.try_poll_many(5)
    queue.pause()

    assert acknowledged.acknowledge()
    assert extended.extend(HOUR)
    assert released.release()
    assert rejected.reject("no")
    assert queue.fail(failed, ValueError("it broke"))
    assert queue.offer_or_update("f", 1) is OfferOutcome.CREATED
    assert queue.drop_message("f")
    stats = queue.stats()
    assert (stats.due, stats.leased, stats.scheduled, stats.dead) == (1, 1, 1, 1)


def test_w12_only_the_queue_of_that_kind_is_paused(make_queue: MakeQueue):
    orders, texts = make_queue("orders"), make_queue("orders", codec="text")
    orders.offer_or_update("a", 1)
    texts.offer_or_update("a", "1")
    orders.pause()

    assert texts.is_paused() is False
    assert polled_keys(orders) == []
    assert polled_keys(texts) == ["a"]


def test_w12_a_paused_queue_is_no_reason_to_look_again_at_once(queue: DelayedQueue):
    """Due messages of a paused queue must not make a worker spin."""
    queue.offer_or_update("a", 1)
    queue.pause()
    assert queue.seconds_to_next_look() == queue.poll_interval.total_seconds()


def test_w12_resuming_wakes_a_sleeping_poller(make_shared_queue: MakeQueue):
    queue = make_shared_queue("orders", poll_interval=MINUTE)
    queue.offer_or_update("a", 1)
    queue.pause()
    with watched_stop() as stop:
        future = in_thread(lambda: queue.poll(timeout=TIMEOUT, stop=stop))
        stop.await_sleep()
        started = time.monotonic()
        queue.resume()
        envelope = future.result(TIMEOUT)
    assert envelope is not None
    assert time.monotonic() - started < TIMEOUT / 2


def test_w12_any_text_is_a_reason(queue: DelayedQueue):
    assert queue.pause("\x00 \ud800" + "x" * 20_000, by="\x00")
    assert leased_or_none(queue) is None


def leased_or_none(queue: DelayedQueue) -> object:
    queue.offer_or_update("a", 1)
    return queue.try_poll()


@async_to_sync
async def pause_and_resume(queue: DelayedQueue) -> list[bool]:
    return [
        await queue.apause("maintenance", "operator"),
        await queue.ais_paused(),
        await queue.aresume(),
        await queue.ais_paused(),
    ]


def test_w12_the_twins_do_the_same(queue: DelayedQueue):
    assert pause_and_resume(queue) == [True, True, True, False]
    queue.offer_or_update("a", 1)
    assert leased(queue).key == "a"
