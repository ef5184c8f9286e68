"""The event loop of a worker, in a thread of its own: what runs ``async def`` handlers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable
from itertools import repeat

from asgiref.sync import sync_to_async
from django.db import connections

from delayed_queue.exceptions import HandlerTimeout
from delayed_queue.messages import Envelope
from delayed_queue.wakeups import Doorbell
from delayed_queue.workers.board import Board
from delayed_queue.workers.claims import Claim
from delayed_queue.workers.executor import TIDY_SECONDS, tidy_connections
from delayed_queue.workers.pools import Pool, Work


class EventLoop(Pool):
    """One loop that runs up to ``capacity`` handlers at a time, each as a task.

    Django's async ORM does its work in one thread behind the loop; that thread's connections
    are looked after like those of the handler threads.
    """

    def __init__(self, capacity: int, bell: Doorbell, board: Board, first_seat: int) -> None:
        super().__init__(capacity, bell, board, first_seat)
        self._thread = threading.Thread(target=self._serve, name="event-loop", daemon=True)
        self._inbox: deque[Work] = deque()
        self._free_seats = list(range(first_seat, first_seat + capacity))
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_tidy = asyncio.Event()
        self._is_stopped = False

    def start(self) -> None:
        # Not earlier: a loop that never runs would be left open.
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def submit(self, claim: Claim, envelopes: Iterable[Envelope]) -> None:
        self._inbox.extend(zip(repeat(claim), envelopes))
        self._loop.call_soon_threadsafe(self._begin)

    def waiting(self) -> int:
        return len(self._inbox)

    def take_back(self) -> list[Work]:
        taken = []
        try:
            while True:
                taken.append(self._inbox.popleft())
        except IndexError:
            return taken

    def stop(self, seconds: float) -> None:
        """Cancel what still runs; its messages were given back by now."""
        self._is_stopped = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(seconds)

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
        await sync_to_async(connections.close_all)()
        # As asyncio.run() does: what lives as long as the loop, like its callback client, ends so.
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def _begin(self) -> None:
        """Start as many of the waiting handlers as there are free seats."""
        while self._free_seats:
            try:
                claim, envelope = self._inbox.popleft()
            except IndexError:
                return
            if claim.is_overdue(envelope, time.monotonic()):
                claim.leave(envelope)
                continue
            task = self._loop.create_task(self._handle(claim, envelope, self._free_seats.pop()))
            # The loop itself holds tasks only weakly.
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle(self, claim: Claim, envelope: Envelope, seat: int) -> None:
        began_at = time.monotonic()
        self._board.mark(seat, is_suspect=claim.is_suspect)
        self._board.take(seat, envelope.message_id)
        try:
            await self._call(claim, envelope)
        # Everything, as in the threads: no answer would leave the message leased for ever. But
        # what was cancelled at the end has none: it was given back.
        except BaseException as error:
            if not self._is_stopped:
                claim.failures.append((envelope, error))
        else:
            claim.done.append(envelope.message_id)
        finally:
            self._board.take(seat, 0)
            self._free_seats.append(seat)
        self._is_tidy.set()
        self._begin()
        self._ended(began_at)

    async def _call(self, claim: Claim, envelope: Envelope) -> None:
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
        """Look after the connections of the thread behind, once a second while it is used."""
        tidy = sync_to_async(tidy_connections)
        while True:
            await self._is_tidy.wait()
            self._is_tidy.clear()
            await tidy(idle=True)
            await asyncio.sleep(TIDY_SECONDS)
