"""Pops that wait: those of a topic form a line, and only the first one queries the database.

All pops of a process wait on one event loop in a thread of its own. So WSGI threads and all event
loops share the lines, and one connection that listens for new jobs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest

from delayed_queue.conf import get_settings
from delayed_queue.db.wakeups import AsyncListener, channel_of
from delayed_queue.http.api.clients import is_gone, socket_of, while_connected
from delayed_queue.http.api.pool import submit
from delayed_queue.http.api.problems import unavailable
from delayed_queue.http.conf import api_settings
from delayed_queue.logs import log

if TYPE_CHECKING:  # an asgi.py imports this before the apps are ready
    from delayed_queue.http.jobs.consuming import Pop
    from delayed_queue.http.jobs.jobs import PoppedJob

Jobs = list["PoppedJob"]
# A line's database, topic and shard.
Key = tuple[str, str, int | None]

# A line without pops is kept for this long, with its channels: most consumers pop again at once.
LINGER_SECONDS: Final = 60.0
# Longest wait for a client whose connection the server does not show: it may be gone.
BLIND_SECONDS: Final = 5.0


@dataclass(slots=True, eq=False)
class Line:
    """The pops that wait for one topic, or one shard of it; used on the loop only.

    ``turn``: a lock of the first pop, which claims; the others wait for it in order.
    ``next_at``: the time of the next claim, by the loop's clock.
    ``error``: raised by each pop of the line, which has ended.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    next_at: float = 0.0
    channels: frozenset[str] = frozenset()
    error: Exception | None = None
    expiry: asyncio.TimerHandle | None = None


class WaitingPops:
    """The pops that wait in this process; :data:`waiting_pops` is the only instance."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a child process must: it has only one thread of its parent."""
        self.is_draining = False
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lines: dict[Key, Line] = {}
        self._listeners: dict[str, AsyncListener] = {}
        # The timeouts of waiting pops, so that drain() can end them.
        self._limits: set[asyncio.Timeout] = set()

    @property
    def waiting(self) -> int:
        """The number of pops in line."""
        return sum(each.waiting for each in list(self._lines.values()))

    async def wait_for(self, request: HttpRequest, pop: Pop, timeout: float) -> Jobs:
        """Return the jobs of the pop as soon as some are due; none after the timeout.

        Jobs that were claimed for a client that has disconnected are given back, uncounted. Under a
        WSGI server that does not show its connections, the wait ends after BLIND_SECONDS.
        """
        if isinstance(request, WSGIRequest) and socket_of(request) is None:
            timeout = min(timeout, BLIND_SECONDS)
        found = await while_connected(request, partial(self._wait, pop, timeout)) or []
        if not found or not is_gone(request):
            return found
        submit(pop.give_back, found)
        return []

    async def _wait(self, pop: Pop, timeout: float) -> Jobs:
        line = self._lines.get(_key(pop))
        if line is None or not line.waiting:
            # No pop is waiting: claim at once, in parallel with other requests.
            found = await _received(pop, submit(pop.claim))
            if found:
                return found
        if timeout <= 0 or self.is_draining:
            return []
        if self.waiting >= api_settings().WAITERS:
            raise unavailable("too_many_waiters", "Too many pops are waiting in this process.")
        coming: Future[Jobs] = Future()
        loop = self._started()
        loop.call_soon_threadsafe(self._admit, loop, pop, timeout, coming)
        return await _received(pop, coming)

    def drain(self) -> None:
        """End every wait, now and from now on, because the process stops.

        A running claim is awaited, and its jobs are returned. A signal handler may call this, so it
        takes no lock.
        """
        self.is_draining = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_waits)

    def close(self) -> None:
        """End every wait, the thread and its connections; a later pop starts a new thread."""
        self.drain()
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self.reset()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.SelectorEventLoop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="delayed-queue-pops", daemon=True
                )
                self._thread.start()
            return self._loop

    # On the loop

    def _admit(
        self, loop: asyncio.AbstractEventLoop, pop: Pop, timeout: float, coming: Future[Jobs]
    ) -> None:
        task = loop.create_task(self._stand(pop, loop.time() + timeout))
        task.add_done_callback(partial(_hand_over, pop, coming))

        def leave(coming: Future[Jobs]) -> None:
            if coming.cancelled():
                loop.call_soon_threadsafe(task.cancel)

        coming.add_done_callback(leave)

    async def _stand(self, pop: Pop, deadline: float) -> Jobs:
        """Wait until the pop is the first of its line, then for jobs."""
        line = self._joined(pop)
        try:
            if not await self._is_in_time(line.turn.acquire(), deadline):
                return []
            try:
                return await self._serve(line, pop, deadline)
            finally:
                line.turn.release()
        finally:
            self._leave(line, pop)

    async def _is_in_time(self, event: Awaitable[object], deadline: float) -> bool:
        """Wait for the event until the deadline or drain(); return whether it happened."""
        try:
            async with asyncio.timeout_at(deadline) as limit:
                self._limits.add(limit)
                try:
                    await event
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            return False
        return True

    async def _serve(self, line: Line, pop: Pop, deadline: float) -> Jobs:
        loop = asyncio.get_running_loop()
        while loop.time() < deadline and not self.is_draining:
            if line.error is not None:
                raise line.error
            if line.woken.is_set() or line.next_at <= loop.time():
                found = await self._claim(line, pop, deadline)
                if found:
                    return found
            await self._is_in_time(line.woken.wait(), min(deadline, line.next_at))
        return []

    async def _claim(self, line: Line, pop: Pop, deadline: float) -> Jobs:
        """Claim what is due; if nothing is, set the time of the next claim."""
        line.next_at = 0.0
        try:
            found = await _received(pop, submit(pop.claim))
            if found:
                return found
            kinds, seconds = await asyncio.wrap_future(submit(pop.outlook))
            # Shielded: the other pops need the connection even if this one's client disconnects.
            listening = asyncio.shield(_in_background(self._listen(line, pop, kinds)))
            if not await self._is_in_time(listening, deadline):
                return []
            line.woken.clear()
            # Claim again: a job may have become due before the outlook, or before the LISTEN.
            found = await _received(pop, submit(pop.claim))
        # The database is down, or the claim is invalid: every pop in the line gets the error.
        except Exception as error:
            line.error = error
            self._drop(line, pop)
            raise
        if not found:
            line.next_at = asyncio.get_running_loop().time() + seconds
        return found

    async def _listen(self, line: Line, pop: Pop, kinds: list[str]) -> None:
        """Listen on the channels of the kinds, which change with the shards of the topic."""
        channels = frozenset(channel_of(each) for each in kinds)
        if channels == line.channels or not get_settings().NOTIFY:
            return
        old, line.channels = line.channels, channels
        listener = self._listener_of(pop.using)
        await listener.add(channels - old)
        await listener.remove(old - channels)
        # For a pop that did not wait for this.
        line.woken.set()

    def _listener_of(self, using: str) -> AsyncListener:
        if using not in self._listeners:
            self._listeners[using] = AsyncListener(using, partial(self._ring, using), _log_loss)
        return self._listeners[using]

    def _ring(self, using: str, channel: str | None) -> None:
        for (alias, *_), line in self._lines.items():
            if alias == using and (channel is None or channel in line.channels):
                line.woken.set()

    def _end_waits(self) -> None:
        for each in self._limits:
            if not each.expired():
                each.reschedule(0)

    def _joined(self, pop: Pop) -> Line:
        line = self._lines.setdefault(_key(pop), Line())
        line.waiting += 1
        if line.expiry is not None:
            line.expiry.cancel()
        return line

    def _leave(self, line: Line, pop: Pop) -> None:
        line.waiting -= 1
        if not line.waiting:
            loop = asyncio.get_running_loop()
            line.expiry = loop.call_later(LINGER_SECONDS, self._drop, line, pop)

    def _drop(self, line: Line, pop: Pop) -> None:
        if self._lines.get(_key(pop)) is line:
            del self._lines[_key(pop)]
            if line.channels:
                _in_background(self._listener_of(pop.using).remove(line.channels))

    async def _end(self) -> None:
        """Wait until this task is the only one of the loop, and close the connections."""
        for each in self._listeners.values():
            each.deafen()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)
        for each in self._listeners.values():
            await each.close()


def _key(pop: Pop) -> Key:
    return pop.using, pop.topic, pop.shard


async def _received(pop: Pop, coming: Future[Jobs]) -> Jobs:
    """Return the jobs of a claim; if the caller is cancelled, give them back."""
    try:
        return await asyncio.wrap_future(coming)
    except asyncio.CancelledError:
        # A claim that runs in a thread cannot be cancelled.
        if not coming.cancel():
            coming.add_done_callback(partial(_give_back, pop))
        raise


def _hand_over(pop: Pop, coming: Future[Jobs], task: asyncio.Task[Jobs]) -> None:
    """Pass the result of a task on; jobs for a client that has gone are given back."""
    if task.cancelled():
        coming.cancel()
    elif not coming.set_running_or_notify_cancel():
        _give_back(pop, task)
    elif (error := task.exception()) is not None:
        coming.set_exception(error)
    else:
        coming.set_result(task.result())


def _give_back(pop: Pop, done: Future[Jobs] | asyncio.Task[Jobs]) -> None:
    if done.exception() is None and done.result():
        submit(pop.give_back, done.result())  # in a thread: this may be an event loop


_tasks: Final[set[asyncio.Task[None]]] = set()


def _in_background(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.ensure_future(coroutine)
    _tasks.add(task)  # the loop itself holds tasks weakly
    task.add_done_callback(_tasks.discard)
    return task


def _log_loss(error: Exception) -> None:
    log(logging.WARNING, "listener_lost", error=type(error).__name__)


waiting_pops: Final = WaitingPops()

os.register_at_fork(after_in_child=waiting_pops.reset)
