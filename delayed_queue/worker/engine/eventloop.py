"""The event loop of a worker, in a thread of its own: what runs ``async def`` handlers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Final

from asgiref.sync import sync_to_async
from django.db import connections

from delayed_queue.db.kept import expect_first_statement
from delayed_queue.db.resilience import tidy_connections
from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.exceptions import HandlerTimeout
from delayed_queue.handlers import current_envelope
from delayed_queue.messages import Envelope
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.claims import Claim
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.executor import (
    TIDY_SECONDS,
    Pool,
    Work,
    emptied,
)
from delayed_queue.worker.engine.running import RunningHandler

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

# A process that ends waits at most N seconds for cancelled handlers.
CANCEL_SECONDS: Final = 1.0


class EventLoop(Pool):
    """One loop that runs up to ``capacity`` handlers at a time, each as a task.

    Django's async ORM works in one thread behind the loop; its connections are checked like those
    of the handler threads.
    """

    def __init__(
        self, capacity: int, wake_channel: WakeChannel, board: Board, first_slot: int
    ) -> None:
        super().__init__(capacity, wake_channel, board, first_slot)
        self._thread = threading.Thread(target=self._serve, name="event-loop", daemon=True)
        self._inbox: deque[Work] = deque()
        # Messages of consumers that already have their share of the slots.
        self._parked: dict[Consumer, deque[Work]] = {}
        self._free_slots = list(range(first_slot, first_slot + capacity))
        self._tasks: set[asyncio.Task[None]] = set()
        # Tasks whose handlers have started: only these can report that they were cancelled.
        self._running: dict[Envelope, tuple[asyncio.Task[None] | None, RunningHandler]] = {}
        self._is_tidy = asyncio.Event()
        # The connections of the thread behind the loop.
        self._kept: Sequence[BaseDatabaseWrapper] = ()
        self._is_stopped = False

    def start(self) -> None:
        # Not earlier: a loop that never runs would be left open.
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def submit(self, claim: Claim, envelopes: Iterable[Envelope]) -> None:
        self._inbox.extend(zip(repeat(claim), envelopes))
        self._submitted_at = time.monotonic()
        self._loop.call_soon_threadsafe(self._begin)

    def waiting(self) -> int:
        return len(self._inbox) + sum(map(len, list(self._parked.values())))

    def take_back(self) -> list[Work]:
        inboxes = [self._inbox, *list(self._parked.values())]
        taken = [work for inbox in inboxes for work in emptied(inbox)]
        if taken:
            # The loop may have been about to start one, found none, and left others waiting.
            self._loop.call_soon_threadsafe(self._begin)
        return taken

    def running(self) -> list[RunningHandler]:
        return [handling for _, handling in list(self._running.values())]

    def cancel(self, envelopes: Iterable[Envelope]) -> None:
        """Cancel the handlers that have started; may be called from another thread."""
        # A loop that has ended has cancelled them all.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel, envelopes)

    def stop(self, seconds: float) -> None:
        """Cancel what still runs; its messages were released before."""
        self._is_stopped = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            # Cancelled handlers end soon, and their last steps may need the threads.
            self._thread.join(max(seconds, CANCEL_SECONDS))

    # In the loop's thread

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        keeper = self._loop.create_task(self._keep_tidy())
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end(keeper))
            self._loop.close()

    async def _end(self, keeper: asyncio.Task[None]) -> None:
        tasks = [keeper, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Generators may write in their last step, while there are connections.
        await self._loop.shutdown_asyncgens()
        # If the process ends without waiting, there are no threads for the rest.
        with suppress(RuntimeError):
            await sync_to_async(connections.close_all)()
            # As asyncio.run() does.
            await self._loop.shutdown_asyncgens()
            await self._loop.shutdown_default_executor()

    def _cancel(self, envelopes: Iterable[Envelope]) -> None:
        for envelope in envelopes:
            task, _ = self._running.pop(envelope, (None, None))
            if task is not None:
                task.cancel()

    def _begin(self) -> None:
        """Start waiting handlers while slots are free."""
        while self._free_slots and (work := self._next()) is not None:
            claim, envelope = work
            if claim.skips(envelope, time.monotonic()):
                continue
            claim.consumer.share.running += 1
            task = self._loop.create_task(self._handle(claim, envelope, self._free_slots.pop()))
            # The loop holds tasks only by weak references.
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next(self) -> Work | None:
        """Return what may start, but nothing of a consumer that has its share of the slots."""
        try:
            for consumer, parked in list(self._parked.items()):
                if not parked:  # taken back
                    del self._parked[consumer]
                elif self._may_run(consumer):
                    return self._unpark(consumer)
            while True:
                work = self._inbox.popleft()
                consumer = work[0].consumer
                if consumer not in self._parked and self._may_run(consumer):
                    return work
                self._parked.setdefault(consumer, deque()).append(work)
        except IndexError:
            return None

    def _may_run(self, consumer: Consumer) -> bool:
        """Return whether a consumer leaves slots for others.

        Its first message may always run, the next ones while it has no more slots than are free.
        """
        if not consumer.is_dynamic or not consumer.share.running:
            return True
        return consumer.share.running < len(self._free_slots) - 1

    def _unpark(self, consumer: Consumer) -> Work:
        parked = self._parked.pop(consumer)
        work = parked.popleft()
        if parked:
            self._parked[consumer] = parked  # behind the others, so that they take turns
        return work

    async def _handle(self, claim: Claim, envelope: Envelope, slot: int) -> None:
        began_at = time.monotonic()
        self._board.mark(slot, is_suspect=claim.is_suspect)
        self._board.take(slot, envelope.message_id)
        expect_first_statement(self._kept)
        try:
            handling = RunningHandler(envelope, began_at, self._thread.name, claim.timeout)
            self._running[envelope] = asyncio.current_task(), handling
            current_envelope.set(envelope)
            await self._call(claim, envelope)
        # Everything, as in the threads. But what was cancelled at the stop was released.
        except BaseException as error:
            if not self._is_stopped:
                claim.fail(envelope, error)
        else:
            claim.done.append(envelope.message_id)
        finally:
            self._running.pop(envelope, None)
            self._board.take(slot, 0)
            self._free_slots.append(slot)
            claim.consumer.share.running -= 1
        self._is_tidy.set()
        self._begin()
        self.ended(began_at, claim)

    async def _call(self, claim: Claim, envelope: Envelope) -> None:
        if envelope.lease_lost:  # since it was to start
            raise asyncio.CancelledError
        if claim.timeout is None:
            await claim.call(envelope)
            return
        limit = asyncio.timeout(claim.timeout)
        try:
            async with limit:
                await claim.call(envelope)
        except TimeoutError as error:
            if limit.expired():
                raise HandlerTimeout(f"took longer than {claim.timeout} s") from error
            raise

    async def _keep_tidy(self) -> None:
        """Check the connections of the thread behind, once a second while it is used."""
        tidy = sync_to_async(tidy_connections)
        while True:
            await self._is_tidy.wait()
            self._is_tidy.clear()
            self._kept = await tidy(idle=True)
            await asyncio.sleep(TIDY_SECONDS)
