"""The a-prefixed wrappers return what their namesakes return."""

from __future__ import annotations

import asyncio
import inspect
import time

import pytest
from asgiref.sync import async_to_sync

from delayed_queue import Batch, DelayedQueue, Envelope, OfferOutcome, ScheduledMessage
from delayed_queue.facade import DROP_ALL_CONFIRMATION
from delayed_queue.queue.batches import MessageBatch
from delayed_queue.testing import ManualClock, assert_dead, assert_offered, dead_letters
from tests.queue.contract.support import HOUR, MINUTE, SECOND, MakeQueue

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


@pytest.mark.parametrize("owner", [DelayedQueue, Envelope, Batch, MessageBatch])
def test_wrappers_take_what_their_namesakes_take(owner: type):
    wrappers = {
        name: function
        for name, function in inspect.getmembers(owner, inspect.iscoroutinefunction)
        if name.startswith("a")
    }
    assert wrappers
    for name, wrapper in wrappers.items():
        namesake = getattr(owner, name[1:])
        expected = list(inspect.signature(namesake).parameters)
        if name == "apoll":
            expected.remove("stop")  # a coroutine is cancelled instead
        assert list(inspect.signature(wrapper).parameters) == expected


@async_to_sync
async def offer(queue: DelayedQueue) -> None:
    assert await queue.aoffer_or_update("a", 1, delay=HOUR) is CREATED
    assert await queue.aoffer_or_update("a", 2, headers={"h": 1}) is UPDATED
    assert await queue.aoffer_if_not_exists("a", 3) is IGNORED
    assert await queue.aoffer_batch([ScheduledMessage("b", 1)]) == [CREATED]


def test_offering(queue: DelayedQueue):
    offer(queue)
    assert_offered(queue, "a", 2, headers={"h": 1}, state="due")


@async_to_sync
async def lease(queue: DelayedQueue, clock: ManualClock) -> None:
    await queue.aoffer_batch([ScheduledMessage(key, 1) for key in "abcde"])
    first = await queue.atry_poll()
    assert first is not None
    assert await first.aacknowledge() is True
    assert await first.aacknowledge() is False
    batch = await queue.atry_poll_many(3)
    assert await batch[0].arelease(MINUTE, "busy") is True
    assert await batch[1].aextend(HOUR) is True
    assert batch[1].leased_until == clock() + HOUR
    assert await batch[2].areject("bad") is True
    assert await batch.aacknowledge() == 1
    last = await queue.apoll(timeout=1)
    assert last is not None
    assert last.key == "e"


def test_leasing(queue: DelayedQueue, manual_clock: ManualClock):
    lease(queue, manual_clock)
    assert assert_offered(queue, "b").last_error == "busy"
    assert_dead(queue, "d", reason="bad")


@async_to_sync
async def inspect_messages(queue: DelayedQueue) -> None:
    await queue.aoffer_or_update("a", 1)
    stored = await queue.aread("a")
    assert stored is not None
    assert stored.payload == 1
    assert await queue.acontains_message("a") is True
    assert (await queue.astats()).due == 1
    assert await queue.adrop_message("a") is True
    await queue.aoffer_or_update("b", 1)
    assert await queue.adrop_all_messages(DROP_ALL_CONFIRMATION) == 1


def test_inspecting(queue: DelayedQueue):
    inspect_messages(queue)


def test_redriving(queue: DelayedQueue):
    queue.offer_or_update("a", 1)
    envelope = queue.try_poll()
    assert envelope is not None
    envelope.reject("bad")
    [letter] = dead_letters(queue)
    assert async_to_sync(queue.aredrive)([letter.id]) == {letter.id: CREATED}


@async_to_sync
async def wait_for_messages(queue: DelayedQueue) -> None:
    started = time.monotonic()
    assert await queue.apoll(timeout=0.05) is None
    assert 0.05 <= time.monotonic() - started < 30
    await queue.aoffer_or_update("soon", 1, delay=0.1 * SECOND)
    soon = await queue.apoll()
    assert soon is not None
    assert soon.key == "soon"


def test_q21_apoll_waits_until_due_or_timeout(make_queue: MakeQueue):
    wait_for_messages(make_queue("orders", poll_interval=MINUTE))


@async_to_sync
async def wait_together(queue: DelayedQueue) -> None:
    waiting = [asyncio.ensure_future(queue.apoll()) for _ in range(3)]
    await asyncio.sleep(0)
    await queue.aoffer_batch([ScheduledMessage(key, 1) for key in "ab"])
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    while len(done) < 2:
        more, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        assert more
        done |= more
    [idle] = pending
    idle.cancel()
    with pytest.raises(asyncio.CancelledError):
        await idle
    found = [each.result() for each in done]
    assert sorted(each.key for each in found if each is not None) == ["a", "b"]


def test_q21_apoll_shares_one_thread_and_can_be_cancelled(make_queue: MakeQueue):
    wait_together(make_queue("orders", poll_interval=0.02 * SECOND))
