"""Turns of queues that come and go, and the sources of each worker (J6, J7)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration
from delayed_queue.handlers import Registry
from delayed_queue.models import Message
from delayed_queue.worker.engine import executor
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.processes import wait_until
from tests.support.running import SOON, handler_of, running
from tests.worker.dynamic import Changing, is_empty, offer

pytestmark = pytest.mark.django_db(transaction=True)


class TestTurns:
    def test_j7_of_many_that_are_stuck_none_leaves_nothing(self) -> None:
        stuck = [f"stuck{n}" for n in range(4)]
        may_end = asyncio.Event()
        loops: list[asyncio.AbstractEventLoop] = []
        begun: list[str] = []

        async def handle(envelope: Envelope) -> None:
            begun.append(envelope.queue)
            if envelope.queue in stuck:
                loops.append(asyncio.get_running_loop())
                await may_end.wait()

        source = Changing(*stuck, "good", function=handle)
        worker = source.worker(async_concurrency=40, shutdown_timeout=SOON)
        with running(worker):
            for name in stuck:
                offer(name, 200)
            wait_until(lambda: set(begun) == set(stuck))
            offer("good", 50)
            wait_until(lambda: begun.count("good") == 50)
            loops[0].call_soon_threadsafe(may_end.set)
            wait_until(is_empty)

    def test_j7_one_that_was_quick_and_gets_stuck_leaves_a_seat(self) -> None:
        may_end = asyncio.Event()
        loops: list[asyncio.AbstractEventLoop] = []
        most = 0
        present: list[str] = []

        async def handle(envelope: Envelope) -> None:
            nonlocal most
            present.append(envelope.queue)
            most = max(most, len(present))
            if envelope.headers and envelope.queue == "quick":
                loops.append(asyncio.get_running_loop())
                await may_end.wait()
            await asyncio.sleep(0)
            present.remove(envelope.queue)

        source = Changing("quick", "good", function=handle)
        worker = source.worker(async_concurrency=18, shutdown_timeout=SOON)
        offer("quick", 100)
        with running(worker):
            wait_until(is_empty)
            DelayedQueue("quick").offer_batch(
                ScheduledMessage(f"k{n}", 1, headers={"stuck": "yes"}) for n in range(100)
            )
            wait_until(lambda: present == ["quick"] * 9)
            # Other workers can claim the parked messages, leased beyond its share.
            wait_until(lambda: Message.objects.filter(lease_id=None).count() == 91)
            offer("good", 50)
            wait_until(lambda: not Message.objects.filter(kind="good|json").exists())
            loops[0].call_soon_threadsafe(may_end.set)
            wait_until(is_empty)

    def test_queues_take_turns(self) -> None:
        """A long queue does not come first until it is empty."""
        order: list[str] = []
        source = Changing("long", "short", function=lambda envelope: order.append(envelope.queue))
        offer("long", 100)
        offer("short", 3)
        source.worker(burst=True, batch_size=1, concurrency=1).run()
        assert order.index("short") < 5
        assert len(order) == 103

    def test_what_is_stuck_and_handed_back_at_the_end_is_not_lost(self, monkeypatch):
        monkeypatch.setattr(executor, "AHEAD_SECONDS", 60.0)  # it has leased ahead, and keeps that

        async def handle(envelope: Envelope) -> None:
            await asyncio.Event().wait()

        offer("stuck", 30)
        source = Changing("stuck", function=handle)
        worker = source.worker(async_concurrency=4, shutdown_timeout=timedelta(0))
        with running(worker):
            wait_until(lambda: worker.in_flight > 1)
        assert Message.objects.filter(lease_id=None).count() == 30


class TestOptions:
    def names(self, **options: Any) -> list[str]:
        own = handler_of("own", print)
        worker = Changing("a", "b").worker(own, **options)
        worker.dynamic.ask()
        return sorted(worker.queues)

    def test_which_queues_are_served(self) -> None:
        assert self.names() == ["a", "b", "own"]
        assert self.names(queues=("own",)) == ["own"]
        assert self.names(queues=("own",), sourced=("b",)) == ["b", "own"]
        assert self.names(sourced=("b", "not yet")) == ["b", "own"]
        assert self.names(sourced=()) == ["own"]
        assert self.names(only_sourced=True) == ["a", "b"]
        assert self.names(only_sourced=True, sourced=("a",)) == ["a"]

    def test_either_named_or_only_sourced(self) -> None:
        with pytest.raises(InvalidConfiguration):
            WorkerOptions(queues=("own",), only_sourced=True)

    def test_with_neither_handlers_nor_sources_there_is_nothing_to_do(self) -> None:
        with pytest.raises(HandlerNotFound):
            Worker(WorkerOptions(), Registry())
        with pytest.raises(HandlerNotFound):
            Changing("a").worker(sourced=())
