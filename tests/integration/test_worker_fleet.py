"""Queues that sources name while a worker runs: taken on, looked for, let go (J7)."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

import pytest
from django.conf import settings as configured
from pytest_django import Settings

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage, Snooze, apps
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration
from delayed_queue.handlers import Handler, Registry, Source
from delayed_queue.models import Message
from delayed_queue.models import Worker as WorkerRow
from delayed_queue.statements import notify
from delayed_queue.wakeups import channel_of
from delayed_queue.workers import Tally, Worker, WorkerOptions, eventloop, fleet, pools
from delayed_queue.workers.heartbeat import Heartbeat
from tests.processes import wait_until
from tests.races.concurrency import raw_connection
from tests.running import SOON, handler_of, running

pytestmark = pytest.mark.django_db(transaction=True)

BELL: Final = "changes|bell"
HOUR: Final = timedelta(hours=1)


class Changing:
    """A source whose queues a test changes, and what came out of them."""

    def __init__(self, *names: str, function: Callable[[Envelope], Any] | None = None) -> None:
        self.names = list(names)
        self.options: dict[str, Any] = {}
        self.handled: list[tuple[str, str]] = []
        self._function = function or self._note
        self.made: dict[str, Handler] = {}

    def _note(self, envelope: Envelope) -> None:
        self.handled.append((envelope.queue, envelope.key))

    def __call__(self, using: str) -> Iterable[Handler]:
        return [handler_of(name, self._function, **self.options) for name in self.names]

    def add(self, name: str) -> None:
        self.names.append(name)
        notify("default", channel_of(BELL))

    def registry(self, *handlers: Handler) -> Registry:
        registry = Registry()
        for each in handlers:
            registry.add(each)
        registry.add_source(Source("changing", self, BELL))
        return registry

    def worker(self, *handlers: Handler, **options: Any) -> Worker:
        options = {"poll_interval": SOON, "cron": False, **options}
        return Worker(WorkerOptions(**options), self.registry(*handlers))


def offer(queue: str, count: int) -> None:
    DelayedQueue(queue).offer_batch(ScheduledMessage(f"k{n}", 1) for n in range(count))


def is_empty() -> bool:
    return not Message.objects.exists()


class TestPreparing:
    def test_what_keeps_a_source_from_being_asked_is_said_when_the_worker_is_made(self) -> None:
        def prepare() -> None:
            raise InvalidConfiguration("not installed")

        registry = Registry()
        registry.add(handler_of("orders", print))
        registry.add_source(Source("changing", Changing(), BELL, prepare))
        with pytest.raises(InvalidConfiguration, match="not installed"):
            Worker(WorkerOptions(cron=False), registry)
        Worker(WorkerOptions(queues=("orders",), cron=False), registry)  # asks no source

    def test_callbacks_that_cannot_be_sent_stop_the_worker(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "delayed_queue.callbacks.source", None)
        registry = Registry()
        registry.add_source(apps._source())
        with pytest.raises(InvalidConfiguration, match=r"django-delayed-queue\[callbacks\]"):
            Worker(WorkerOptions(cron=False), registry)


class TestComingAndGoing:
    def test_what_a_source_names_at_the_start_is_served(self) -> None:
        offer("a", 3)
        offer("b", 2)
        assert Changing("a", "b").worker(burst=True).run() == Tally(done=5)

    def test_a_queue_that_is_announced_is_served_at_once(self) -> None:
        """Though neither the next question nor the next poll is near."""
        source = Changing()
        worker = source.worker(poll_interval=HOUR)
        with running(worker):
            wait_until(lambda: worker._fleet.next_at != 0.0)
            source.add("new")
            wait_until(lambda: worker.queues == ["new"])
            DelayedQueue("new").offer_or_update("k", 1)
            wait_until(is_empty)

    def test_what_waited_in_it_before_is_found(self) -> None:
        offer("new", 3)
        source = Changing()
        with running(source.worker(poll_interval=HOUR)):
            source.add("new")
            wait_until(is_empty)

    def test_without_an_announcement_it_is_found_at_the_next_question(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fleet, "ASK_SECONDS", 0.05)
        offer("new", 3)
        source = Changing()
        with running(source.worker()):
            source.names.append("new")
            wait_until(is_empty)

    def test_a_queue_that_is_gone_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fleet, "ASK_SECONDS", 0.05)
        source = Changing("gone", "kept")
        worker = source.worker()
        with running(worker):
            wait_until(lambda: len(worker.lanes) == 2)
            source.names.remove("gone")
            wait_until(lambda: worker.queues == ["kept"])
            offer("gone", 1)
            offer("kept", 1)
            wait_until(lambda: source.handled)
        assert source.handled == [("kept", "k0")]
        assert Message.objects.get().kind == "gone|json"

    def test_what_is_in_hand_when_its_queue_goes_is_finished(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fleet, "ASK_SECONDS", 0.05)
        begun, may_end = threading.Event(), threading.Event()

        def wait(envelope: Envelope) -> None:
            begun.set()
            assert may_end.wait(20)

        offer("gone", 1)
        source = Changing("gone", function=wait)
        worker = source.worker()
        with running(worker):
            assert begun.wait(20)
            source.names.clear()
            wait_until(lambda: worker.queues == [])
            may_end.set()
            wait_until(is_empty)
        assert worker.tally == Tally(done=1)

    def test_an_unchanged_answer_keeps_the_lanes(self) -> None:
        worker = Changing("a", "b").worker()
        worker._fleet.ask()
        lanes = worker.lanes
        worker._fleet.wake(None)
        assert not worker._fleet.ask()
        assert all(a is b for a, b in zip(worker.lanes, lanes, strict=True))

    def test_a_source_that_fails_keeps_what_it_named(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        source = Changing("a")
        worker = source.worker(burst=True)
        worker._fleet.ask()
        worker._fleet.wake(None)
        source.names = None  # type: ignore[assignment]
        offer("a", 2)
        with caplog.at_level(logging.ERROR, "delayed_queue"):
            assert worker.run() == Tally(done=2)
        assert "event=source_failed source=changing" in caplog.text

    def test_a_kind_with_a_handler_of_its_own_keeps_that(self) -> None:
        own: list[str] = []
        source = Changing("a", "b")
        worker = source.worker(handler_of("a", lambda envelope: own.append(envelope.key)))
        worker._fleet.ask()
        assert [lane.queue.name for lane in worker.lanes] == ["a", "b"]
        assert not worker.lanes[0].is_shared

    def test_a_shorter_lease_that_comes_later_is_renewed_in_time(self) -> None:
        """The keeper sleeps for fifty seconds when it comes."""

        def slow(envelope: Envelope) -> None:
            leased_until = envelope.leased_until_ms
            wait_until(lambda: envelope.lease_lost or envelope.leased_until_ms > leased_until)

        offer("new", 1)
        source = Changing(function=slow)
        source.options = {"lease": timedelta(seconds=1)}
        worker = source.worker()
        with running(worker):
            source.add("new")
            wait_until(is_empty)
        assert worker.tally == Tally(done=1)

    def test_operators_see_the_new_queues(self) -> None:
        source = Changing("a")
        worker = source.worker()
        worker._fleet.ask()
        heartbeat = Heartbeat("default", worker.describe)
        heartbeat._beat()
        source.names.append("b")
        worker._fleet._ask_at = 0.0
        worker._fleet.ask()
        heartbeat._beat()
        assert sorted(WorkerRow.objects.get().queues) == ["a", "b"]


class TestLooking:
    def test_a_queue_that_never_has_anything_is_never_looked_at(self) -> None:
        """One statement looks for all that doze, however many they are."""
        source = Changing(*(f"q{n}" for n in range(500)))
        worker = source.worker()
        with running(worker):
            wait_until(lambda: len(worker.lanes) == 500)
            offer("q77", 3)
            wait_until(is_empty)
            looks = [lane.queue.name for lane in worker.lanes if lane._full_look_at]
        assert looks == ["q77"]

    def test_without_notify_the_scout_finds_what_is_due(self, settings: Settings) -> None:
        settings.DELAYED_QUEUE = {**configured.DELAYED_QUEUE, "NOTIFY": False}
        worker = Changing("a", "b").worker()
        with running(worker):
            wait_until(lambda: worker.lanes and all(lane.is_dozing for lane in worker.lanes))
            offer("b", 3)
            wait_until(is_empty)
            wait_until(lambda: all(lane.is_dozing for lane in worker.lanes))
            offer("b", 3)
            wait_until(is_empty)

    def test_what_falls_due_later_is_found_when_it_does(self) -> None:
        worker = Changing("a").worker(poll_interval=timedelta(seconds=0.4))
        with running(worker):
            wait_until(lambda: worker.lanes and worker.lanes[0].is_dozing)
            DelayedQueue("a").offer_or_update("k", 1, delay=timedelta(seconds=1))
            wait_until(is_empty)

    def test_what_is_offered_into_the_past_is_found_though_nobody_announces_it(
        self, settings: Settings
    ) -> None:
        """Below the mark of its lane: by a scout that begins at the start of the queue."""
        settings.DELAYED_QUEUE = {**configured.DELAYED_QUEUE, "NOTIFY": False}
        worker = Changing("a").worker()
        with running(worker):
            offer("a", 1)
            wait_until(is_empty)
            wait_until(lambda: worker.lanes[0].is_dozing)
            queue = DelayedQueue("a")
            queue.offer_or_update("k", 1, delay=HOUR)
            Message.objects.update(scheduled_at=1)
            wait_until(is_empty)

    def test_what_is_locked_wakes_its_lane_and_does_not_hold_up_the_scout(self) -> None:
        """Somebody else consumes it, in a transaction that stays open."""
        worker = Changing("held", "b").worker()
        with running(worker), raw_connection() as other:
            wait_until(lambda: len(worker.lanes) == 2)
            other.execute("BEGIN")
            other.execute(
                'INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", '
                """"scheduledAtInitially", "createdAt") VALUES ('k', 'held|json', '1', 1, 1, 1)"""
            )
            other.execute("COMMIT; BEGIN; SELECT 1 FROM delayed_queue FOR UPDATE")
            offer("b", 3)
            wait_until(lambda: not Message.objects.filter(kind="b|json").exists(), 10)
            other.execute("COMMIT")
            wait_until(is_empty, 10)

    def test_a_notification_wakes_its_own_queue_alone(self) -> None:
        worker = Changing("a", "b").worker(poll_interval=HOUR)
        with running(worker):
            wait_until(lambda: len(worker.lanes) == 2)
            offer("b", 1)
            wait_until(is_empty)
            offer("b", 1)
            wait_until(is_empty)
            looked = {lane.queue.name for lane in worker.lanes if lane._full_look_at}
        assert looked == {"b"}


class TestTurns:
    def test_j7_a_queue_that_is_stuck_leaves_seats_for_another(self) -> None:
        """Messages that never end, in hand or claimed; another queue goes on beside them."""
        may_end = asyncio.Event()
        begun: list[str] = []
        ended: list[str] = []

        async def handle(envelope: Envelope) -> None:
            begun.append(envelope.queue)
            if envelope.queue == "stuck":
                await may_end.wait()
            ended.append(envelope.queue)

        offer("stuck", 500)
        source = Changing("stuck", "good", function=handle)
        worker = source.worker(async_concurrency=16, shutdown_timeout=SOON)
        with running(worker):
            wait_until(lambda: begun.count("stuck") == 2, 10)
            offer("good", 200)
            wait_until(lambda: ended.count("good") == 200, 10)
            assert begun.count("stuck") == 2
            assert worker._dispatcher._loop is not None
            worker._dispatcher._loop._loop.call_soon_threadsafe(may_end.set)
            wait_until(is_empty)
        assert worker.tally == Tally(done=700)

    def test_j7_of_many_that_are_stuck_none_leaves_nothing(self) -> None:
        stuck = [f"stuck{n}" for n in range(4)]
        may_end = asyncio.Event()
        begun: list[str] = []

        async def handle(envelope: Envelope) -> None:
            begun.append(envelope.queue)
            if envelope.queue in stuck:
                await may_end.wait()

        source = Changing(*stuck, "good", function=handle)
        worker = source.worker(async_concurrency=40, shutdown_timeout=SOON)
        with running(worker):
            for name in stuck:
                offer(name, 200)
            wait_until(lambda: set(begun) == set(stuck), 10)
            offer("good", 50)
            wait_until(lambda: begun.count("good") == 50, 10)
            assert worker._dispatcher._loop is not None
            worker._dispatcher._loop._loop.call_soon_threadsafe(may_end.set)
            wait_until(is_empty)

    @pytest.mark.parametrize(("fails", "window"), [(False, 8), (True, 2)])
    def test_one_that_is_slow_and_does_its_work_has_half_of_the_seats(
        self, monkeypatch: pytest.MonkeyPatch, fails: bool, window: int
    ) -> None:
        monkeypatch.setattr(eventloop, "SOON_SECONDS", 0.0)

        async def handle(envelope: Envelope) -> None:
            if fails:
                raise Snooze(HOUR)

        offer("slow", 50)
        worker = Changing("slow", function=handle).worker(async_concurrency=16, burst=True)
        worker.run()
        assert [lane.window for lane in worker.lanes] == [window]

    def test_j7_one_that_was_quick_and_gets_stuck_leaves_a_seat(self) -> None:
        """It had nearly all of them while it gave them back soon."""
        may_end = asyncio.Event()
        most = 0
        present: list[str] = []

        async def handle(envelope: Envelope) -> None:
            nonlocal most
            present.append(envelope.queue)
            most = max(most, len(present))
            if envelope.headers and envelope.queue == "quick":
                await may_end.wait()
            await asyncio.sleep(0)
            present.remove(envelope.queue)

        source = Changing("quick", "good", function=handle)
        worker = source.worker(async_concurrency=18, shutdown_timeout=SOON)
        offer("quick", 100)
        with running(worker):
            wait_until(is_empty, 10)
            assert {lane.queue.name: lane.window for lane in worker.lanes}["quick"] == 18
            DelayedQueue("quick").offer_batch(
                ScheduledMessage(f"k{n}", 1, headers={"stuck": "yes"}) for n in range(100)
            )
            wait_until(lambda: present == ["quick"] * 16, 10)
            # What was leased beyond its share, and parked, is kept from no other worker.
            wait_until(lambda: Message.objects.filter(lease_id=None).count() == 84, 10)
            offer("good", 50)
            wait_until(lambda: not Message.objects.filter(kind="good|json").exists(), 10)
            assert worker._dispatcher._loop is not None
            worker._dispatcher._loop._loop.call_soon_threadsafe(may_end.set)
            wait_until(is_empty, 10)

    def test_queues_take_turns(self) -> None:
        """A long queue does not come first until it is empty."""
        order: list[str] = []
        source = Changing("long", "short", function=lambda envelope: order.append(envelope.queue))
        offer("long", 100)
        offer("short", 3)
        source.worker(burst=True, batch_size=1, concurrency=1).run()
        assert order.index("short") < 5
        assert len(order) == 103

    def test_the_fleet_takes_turns_with_queues_of_handlers(self) -> None:
        order: list[str] = []
        source = Changing("sourced", function=lambda envelope: order.append(envelope.queue))
        own = handler_of("own", lambda envelope: order.append(envelope.queue))
        offer("own", 100)
        offer("sourced", 3)
        source.worker(own, burst=True, batch_size=1, concurrency=1).run()
        assert order.index("sourced") < 5

    def test_what_is_stuck_and_handed_back_at_the_end_is_not_lost(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pools, "AHEAD_SECONDS", 60.0)  # it has leased ahead, and keeps that

        async def handle(envelope: Envelope) -> None:
            await asyncio.Event().wait()

        offer("stuck", 30)
        source = Changing("stuck", function=handle)
        worker = source.worker(async_concurrency=4, shutdown_timeout=timedelta(0))
        with running(worker):
            wait_until(lambda: worker.in_flight > 1, 10)
        assert Message.objects.filter(lease_id=None).count() == 30


class TestOptions:
    def names(self, **options: Any) -> list[str]:
        own = handler_of("own", print)
        worker = Changing("a", "b").worker(own, **options)
        worker._fleet.ask()
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
