"""Waiting for jobs: any number of pops, in lines by topic, one look for all of them."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from django.core.handlers.wsgi import WSGIRequest
from django.db import DEFAULT_DB_ALIAS
from django.http import HttpRequest

from delayed_queue.conf import get_settings
from delayed_queue.db.wakeups import AsyncListener, channel_of
from delayed_queue.http.api.clients import is_gone, socket_of, while_connected
from delayed_queue.http.api.pool import submit
from delayed_queue.http.api.problems import unavailable
from delayed_queue.http.conf import api_settings
from delayed_queue.logs import log

T = TypeVar("T")

# How long a line is kept, and its channels listened on, after its last waiter has gone: a
# consumer that pops again and again would otherwise begin anew each time.
LINGER_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Wish(Generic[T]):
    """The order of one pop: what it waits for and how to get it, in the pool's threads.

    ``line``: waiters of the same line are served in turn: the topic.
    ``kinds``: whose notifications mean that something may be due.
    ``claim``: leases what is due, for this pop alone, and returns it; empty when nothing is.
    ``next_look``: returns the seconds until the next message is due, at most the poll interval.
    ``give_back``: releases what was claimed for a client that has gone, uncounted, due now.
    """

    line: str
    kinds: Sequence[str]
    claim: Callable[[], Sequence[T]]
    next_look: Callable[[], float]
    give_back: Callable[[Sequence[T]], object]
    using: str = DEFAULT_DB_ALIAS


class Waiter(Generic[T]):
    """One pop in a line; ``leave`` and ``answer`` are for the waiting_pops's loop alone."""

    def __init__(self, wish: Wish[T]) -> None:
        self.wish = wish
        self.line: Line[T] | None = None
        self.is_leaving = False
        self._is_claiming = False
        self._answer: asyncio.Future[Sequence[T]] | None = None

    @property
    def answer(self) -> asyncio.Future[Sequence[T]]:
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
        return self._answer

    def leave(self) -> None:
        """Go with nothing; or, while a claim is on its way, with what that brings."""
        self.is_leaving = True
        if not self._is_claiming:
            self.hand([])

    async def claim(self) -> None:
        """Ask for what this waiter wishes, and hand it over if there is some."""
        self._is_claiming = True
        coming = submit(self.wish.claim)
        try:
            found = await asyncio.wrap_future(coming)
        except asyncio.CancelledError:  # the waiting_pops is closed, and has waited long enough
            coming.add_done_callback(partial(give_back, self.wish))
            raise
        finally:
            self._is_claiming = False
        if found or self.is_leaving:
            self.hand(found)

    def hand(self, jobs: Sequence[T]) -> None:
        if not self.answer.done():
            self.answer.set_result(jobs)
        self._go()

    def refuse(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
        self._go()

    def _go(self) -> None:
        if self.line is not None:
            self.line.part(self)


class Line(Generic[T]):
    """The waiters for one topic, and the task that looks for the first of them."""

    def __init__(self, listener: AsyncListener, forget: Callable[[], None]) -> None:
        self.waiters: deque[Waiter[T]] = deque()
        self.channels: frozenset[str] = frozenset()
        self.woken = asyncio.Event()
        self._listener = listener
        self._forget = forget
        self._task: asyncio.Task[None] | None = None
        self._end: asyncio.TimerHandle | None = None

    def join(self, waiter: Waiter[T]) -> None:
        if waiter.is_leaving:  # its client went before it got here
            waiter.hand([])
            return
        waiter.line = self
        self.waiters.append(waiter)
        if self._end is not None:
            self._end.cancel()
        if self._task is None:
            self._task = asyncio.ensure_future(self._serve())

    def part(self, waiter: Waiter[T]) -> None:
        with suppress(ValueError):
            self.waiters.remove(waiter)
        if not self.waiters:
            self.woken.set()

    def stop(self) -> None:
        """Look for nobody any more: all who waited have been answered."""
        if self._task is not None:
            self._task.cancel()
        if self._end is not None:
            self._end.cancel()

    async def _serve(self) -> None:
        try:
            while self.waiters:
                await self._listen_to(self.waiters[0].wish)
                await self._look()
        # The database stayed away, or a claim is wrong: all who wait hear of it.
        except Exception as error:
            for each in list(self.waiters):
                each.refuse(error)
        finally:
            self._task = None
            self._end = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._drop)

    async def _look(self) -> None:
        """Serve waiters until nothing is due, then sleep until something may be."""
        nap = math.inf
        self.woken.clear()
        while self.waiters:
            first = self.waiters[0]
            await first.claim()
            if first.answer.done():
                nap = math.inf
            elif nap is math.inf:
                # Look again after this: what fell due since the look above is neither in its
                # answer nor in this one, which counts only what is still to come.
                nap = await asyncio.wrap_future(submit(first.wish.next_look))
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.woken.wait(), nap)
                return

    async def _listen_to(self, wish: Wish[T]) -> None:
        """Listen on the channels of the wish: those of a topic change with its shards."""
        channels = frozenset(channel_of(each) for each in wish.kinds)
        if channels == self.channels or not get_settings().NOTIFY:
            return
        old, self.channels = self.channels, channels
        await self._listener.add(channels - old)
        await self._listener.remove(old - channels)

    def _drop(self) -> None:
        if not self.waiters:
            self._forget()
            channels, self.channels = self.channels, frozenset()
            _in_background(self._listener.remove(channels))


_tasks: Final[set[asyncio.Task[None]]] = set()


def _in_background(coroutine: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(coroutine)
    _tasks.add(task)  # the loop itself holds tasks weakly
    task.add_done_callback(_tasks.discard)


def give_back(wish: Wish[T], came: Future[Sequence[T]]) -> None:
    # Whoever calls this may be an event loop; the statement is for a thread.
    if not came.cancelled() and came.exception() is None and came.result():
        submit(wish.give_back, came.result())


# The longest wait for a client whose connection cannot be seen: it may be gone all that time.
BLIND_SECONDS: Final = 5.0
# How long closing waits for claims under way, and for a connection that is being made.
TIMEOUT_SECONDS: Final = 10.0


class WaitingPops:
    """The lines of this process; :data:`waiting_pops` is the one there is.

    In a view::

        @router.post("/topics/{topic}/pop", auth=requires("consume"), response=…)
        async def pop(request, topic: str, count: int = 1, timeout: float = 0):
            wish = Wish(topic, kinds, claim, next_look, give_back)
            jobs = await waiting_pops.wait_for(request, wish, timeout)
            return Status(200, jobs) if jobs else Status(204, None)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.room = Room()

    @property
    def waiting(self) -> int:
        """How many pops wait."""
        return self.room.waiting

    async def wait_for(
        self, request: HttpRequest, wish: Wish[T], timeout: float
    ) -> Sequence[T]:  # fmt: skip
        """Wait as ``wait`` does, for as long as the request's client is connected.

        What was claimed for a client that is gone is given back, uncounted. A WSGI server that
        does not show the connection waits for BLIND_SECONDS at most.
        """
        if isinstance(request, WSGIRequest) and socket_of(request) is None:
            timeout = min(timeout, BLIND_SECONDS)
        found = await while_connected(request, partial(self.wait, wish, timeout)) or []
        if not found or not is_gone(request):
            return found
        submit(wish.give_back, found)
        return []

    async def wait(self, wish: Wish[T], timeout: float) -> Sequence[T]:
        """Return what the wish claims as soon as there is some; empty after the timeout.

        When the caller is cancelled, as Django does when the client has gone, the place in the
        line is given up, and what was claimed for it meanwhile is given back at once. Raises
        what the claim raises, and Problem 503 when too many wait already.
        """
        # One for the whole call: who looks first while it is closed must not begin another.
        room = self.room
        if not room.has_line(wish):
            # Nobody is before us: look at once, beside others that do.
            found = await _kept(wish, submit(wish.claim))
            if found:
                return found
        if timeout <= 0 or room.is_draining:
            return []
        if room.waiting >= api_settings().WAITERS:
            raise unavailable("too_many_waiters", "Too many pops are waiting in this process.")
        waiter = Waiter(wish)
        coming = room.admit(waiter, timeout)
        try:
            return await _kept(wish, coming)
        except asyncio.CancelledError:
            room.call(waiter.leave)
            raise

    def drain(self) -> None:
        """End every wait with nothing, now and from now on: the process is to stop."""
        self.room.drain()

    def close(self, timeout: float = TIMEOUT_SECONDS) -> None:
        """End every wait, and the connections that listen; a later wait begins anew.

        Blocks, and leaves no thread and no task. Waits end with nothing, but those whose claim is
        on its way with what that brings. After the timeout, in seconds, these too end with
        nothing, and what comes is given back. To close again does nothing.
        """
        room, self.room = self.room, Room()
        room.close(timeout)


class Room:
    """The lines from one start of their event loop to its end; once closed, it stays so."""

    def __init__(self) -> None:
        self.is_draining = False
        self._is_closed = False
        self._lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: threading.Thread | None = None
        self._lines: dict[tuple[str, str], Line[Any]] = {}
        self._listeners: dict[str, AsyncListener] = {}

    @property
    def waiting(self) -> int:
        return sum(len(each.waiters) for each in list(self._lines.values()))

    def waiters(self) -> list[Waiter[Any]]:
        return [each for line in self._lines.values() for each in line.waiters]

    def has_line(self, wish: Wish[Any]) -> bool:
        line = self._lines.get((wish.using, wish.line))
        return line is not None and bool(line.waiters)

    def admit(self, waiter: Waiter[T], timeout: float) -> Future[Sequence[T]]:
        """Have it stand in its line. What is admitted before the end is seen by the end."""
        with self._lock:
            if self._is_closed:
                return _nothing()
            stand = self._stand(waiter, timeout)
            return asyncio.run_coroutine_threadsafe(stand, self._started())

    def call(self, function: Callable[[], object]) -> None:
        """Have the loop call it, unless that has ended: then nobody waits any more."""
        if self.loop is not None:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(function)

    def drain(self) -> None:
        # Without the lock: a signal may come while its thread holds it. Who is not in line yet
        # sees the mark when it gets there.
        self.is_draining = True
        self.call(self._dismiss)

    def close(self, timeout: float) -> None:
        self.is_draining = True
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if self.loop is None or self.thread is None or not is_first:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._end(timeout), self.loop).result()
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.loop = asyncio.SelectorEventLoop()
            self.thread = threading.Thread(
                target=_run, args=(self.loop,), name="delayed-queue-pops", daemon=True
            )
            self.thread.start()
        return self.loop

    # On the loop

    async def _stand(self, waiter: Waiter[T], timeout: float) -> Sequence[T]:
        if self.is_draining:
            return []
        line = self._line_of(waiter.wish)
        line.join(waiter)
        timer = asyncio.get_running_loop().call_later(timeout, waiter.leave)
        try:
            return await waiter.answer
        finally:
            timer.cancel()

    def _dismiss(self) -> None:
        for each in self.waiters():
            each.leave()

    async def _end(self, timeout: float) -> None:
        self._dismiss()
        for listener in self._listeners.values():
            listener.deafen()
        await _others(timeout)
        for waiter in self.waiters():
            waiter.hand([])
        for line in self._lines.values():
            line.stop()
        await _others()
        for listener in self._listeners.values():
            await listener.close()

    def _line_of(self, wish: Wish[T]) -> Line[T]:
        key = (wish.using, wish.line)
        if key not in self._lines:
            self._lines[key] = Line(self._listener_of(wish.using), partial(self._forget, key))
        return self._lines[key]

    def _listener_of(self, using: str) -> AsyncListener:
        if using not in self._listeners:
            self._listeners[using] = AsyncListener(using, partial(self._ring, using), _log_loss)
        return self._listeners[using]

    def _ring(self, using: str, channel: str | None) -> None:
        for (alias, _), line in self._lines.items():
            if alias == using and (channel is None or channel in line.channels):
                line.woken.set()

    def _forget(self, key: tuple[str, str]) -> None:
        self._lines.pop(key, None)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _others(timeout: float | None = None) -> None:
    """Wait until this task is the only one of its loop, no longer than that."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=timeout)


def _log_loss(error: Exception) -> None:
    log(logging.WARNING, "listener_lost", error=type(error).__name__)


def _nothing() -> Future[Sequence[Any]]:
    made: Future[Sequence[Any]] = Future()
    made.set_result([])
    return made


async def _kept(wish: Wish[T], coming: Future[Sequence[T]]) -> Sequence[T]:
    """Return what is coming; if the caller is cancelled before it has it, give it back."""
    try:
        # Shielded: a claim that runs in a thread cannot be stopped, only answered for.
        return await asyncio.shield(asyncio.wrap_future(coming))
    except asyncio.CancelledError:
        coming.add_done_callback(partial(give_back, wish))
        raise


waiting_pops: Final = WaitingPops()

# Neither the thread nor the connection comes along.
os.register_at_fork(after_in_child=waiting_pops.reset)
