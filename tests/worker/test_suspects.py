"""Suspects after a death: each is started alone, and no message waits for ever (W5)."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from delayed_queue import Batch, DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.handlers import Handler
from delayed_queue.models import Message
from delayed_queue.observe import signals
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.processes import wait_until
from tests.support.running import SOON, handler_of, registry_with, running

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]


def worker_of(*handlers: Handler, alone: float, **more: Any) -> Worker:
    """Return a worker as after a death beside others: suspects are alone for ``alone`` seconds."""
    options = WorkerOptions(poll_interval=SOON, shutdown_timeout=SOON, cron=False, **more)
    board = Board.new(options.slots)
    board.isolate(alone)
    return Worker(options, registry_with(*handlers), board=board)


def offer(queue: str, *keys: str, suspects: tuple[str, ...] = ()) -> None:
    later = timezone.now() + timedelta(hours=1)  # until they are marked
    messages = [ScheduledMessage(key, key) for key in keys]
    messages += [ScheduledMessage(key, key, later) for key in suspects]
    DelayedQueue(queue).offer_batch(messages)
    Message.objects.filter(key__in=suspects).update(
        attempts=1, lease_id="crashed", scheduled_at=timezone.now()
    )


class Crowd:
    """Messages in flight beside each message, when it started and when it ended."""

    def __init__(self) -> None:
        self._active: set[str] = set()
        self.beside: dict[str, int] = {}

    def _note(self, key: str) -> None:
        for each in self._active:
            self.beside[each] = max(self.beside.get(each, 0), len(self._active) - 1)

    def handle(self, envelope: Envelope) -> None:
        self._active.add(envelope.key)
        self._note(envelope.key)
        threading.Event().wait(0.01)
        self._active.discard(envelope.key)

    async def handle_in_the_loop(self, envelope: Envelope) -> None:
        self._active.add(envelope.key)
        self._note(envelope.key)
        await asyncio.sleep(0.01)
        self._active.discard(envelope.key)


def test_suspects_of_all_kinds_of_handlers_have_nothing_beside_them() -> None:
    crowd = Crowd()
    handlers = [
        handler_of("plain", crowd.handle),
        handler_of("awaited", crowd.handle_in_the_loop),
        handler_of("moved", crowd.handle, transactional=True),
    ]
    suspects: set[str] = set()
    for name in ("plain", "awaited", "moved"):
        mine = (f"{name}-1", f"{name}-2", f"{name}-3")
        offer(name, *(f"{name}{n}" for n in range(15)), suspects=mine)
        suspects.update(mine)
    worker = worker_of(*handlers, alone=10, burst=True, concurrency=4, async_concurrency=4)
    assert worker.run() == Counts(done=54)
    assert {key: crowd.beside[key] for key in suspects} == dict.fromkeys(suspects, 0)
    assert max(crowd.beside.values()) >= 1


def test_b4_messages_of_a_dead_batch_are_handled_alone_and_the_others_in_batches() -> None:
    """Few are claimed at a time, so that other queues have their turns."""
    sizes: dict[str, int] = {}
    claimed: list[int] = []

    def handle(batch: Batch) -> None:
        sizes.update(dict.fromkeys((each.key for each in batch), len(batch)))

    def count(sender: Worker, envelopes: list[Envelope], **_: Any) -> None:
        claimed.append(len(envelopes))

    suspects = tuple(f"s{n}" for n in range(230))
    offer("crowd", suspects=suspects)
    handler = handler_of("crowd", handle, many=True, batch_size=1000)
    worker = worker_of(handler, alone=10, burst=True, concurrency=4)
    signals.leased.connect(count)
    try:
        assert worker.run() == Counts(done=230)
    finally:
        signals.leased.disconnect(count)
    assert sizes == dict.fromkeys(suspects, 1)
    assert max(claimed) == 100
    offer("crowd", *(f"k{n}" for n in range(300)))
    worker = worker_of(handler, alone=10, burst=True, concurrency=4)
    assert worker.run() == Counts(done=300)
    assert max(sizes.values()) > 100


def test_before_any_death_suspects_are_like_other_messages() -> None:
    """Leases that expired after the loss of a host are handled at full speed."""
    together = threading.Barrier(4, timeout=20)
    offer("plain", "a", "b", suspects=("c", "d"))
    handler = handler_of("plain", lambda envelope: together.wait())
    worker = worker_of(handler, alone=0, burst=True, concurrency=4)
    assert worker.run() == Counts(done=4)


def test_a_suspect_waits_for_others_and_others_wait_for_it_only_so_long() -> None:
    begun: list[str] = []
    may_end = threading.Event()

    def handle(envelope: Envelope) -> None:
        begun.append(envelope.key)
        if envelope.key != "quick":
            may_end.wait(20)

    worker = worker_of(handler_of("plain", handle), alone=0.2, concurrency=4)
    offer("plain", "slow")
    with running(worker):
        wait_until(lambda: begun == ["slow"])
        offer("plain", suspects=("s1", "s2"))
        wait_until(lambda: begun == ["slow", "s1", "s2"])
        offer("plain", "quick")
        wait_until(lambda: begun == ["slow", "s1", "s2", "quick"])
        may_end.set()
        wait_until(lambda: not Message.objects.exists())
    assert worker.counts == Counts(done=4)


def test_what_was_claimed_with_a_suspect_goes_to_others_uncounted() -> None:
    begun: list[str] = []
    may_end = threading.Event()

    def handle(envelope: Envelope) -> None:
        begun.append(envelope.key)
        may_end.wait(20)

    offer("plain", "a", "b", suspects=("s",))
    worker = worker_of(handler_of("plain", handle), alone=10, concurrency=3)
    with running(worker):
        wait_until(lambda: begun == ["s"])
        wait_until(lambda: Message.objects.filter(lease_id=None, attempts=0).count() == 2)
        may_end.set()
        wait_until(lambda: not Message.objects.exists())
    assert begun[0] == "s"
    assert worker.counts == Counts(done=3)


def test_a_burst_with_a_limit_of_messages_ends_though_suspects_were_met() -> None:
    offer("moved", "a", "b", suspects=("s1", "s2"))
    handler = handler_of("moved", lambda envelope: None, transactional=True)
    worker = worker_of(handler, alone=10, burst=True, max_messages=3)
    assert worker.run() == Counts(done=3)
