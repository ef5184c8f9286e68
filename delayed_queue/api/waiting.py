"""Waiting for jobs: any number of pops, one connection that listens, one look for all of them.

A topic has a line of waiters, served in the order of their coming. One task looks for the first
of the line, and only for it; a job goes to one waiter and costs one look, however many wait.
Nobody holds a connection or a transaction while waiting.

All lines of a process live on one event loop in a thread of its own, so that it does not matter
which event loop a request is on: under ASGI one for all, under WSGI one for each.
"""

from __future__ import annotations

import asyncio
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

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.api.listening import Ear
from delayed_queue.api.problems import unavailable
from delayed_queue.api.threads import submit
from delayed_queue.conf import get_settings
from delayed_queue.wakeups import channel_of

T = TypeVar("T")

# How long a line is kept, and its channels listened on, after its last waiter has gone: a
# consumer that pops again and again would otherwise begin anew each time.
LINGER_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Wish(Generic[T]):
    """What a pop waits for, and how to get it; the callables run in the pool's threads.

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


class Hub:
    """The lines of this process; :data:`hub` is the one there is.

    In a view::

        @router.post("/topics/{topic}/pop", auth=requires("consume"), response=…)
        async def pop(request, topic: str, count: int = 1, timeout: float = 0):
            jobs = await hub.wait(Wish(topic, kinds, claim, next_look, give_back), timeout)
            return Status(200, jobs) if jobs else Status(204, None)
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines: dict[tuple[str, str], _Line[Any]] = {}
        self._ears: dict[str, Ear] = {}
        self._is_draining = False

    @property
    def waiting(self) -> int:
        """How many pops wait."""
        return sum(len(each.waiters) for each in list(self._lines.values()))

    async def wait(self, wish: Wish[T], timeout: float) -> Sequence[T]:
        """Return what the wish claims as soon as there is some; empty after the timeout.

        When the caller is cancelled, as Django does when the client has gone, the place in the
        line is given up, and what was claimed for it meanwhile is given back at once. Raises
        what the claim raises, and Problem 503 when too many wait already.
        """
        if not self._has_line(wish):
            # Nobody is before us: look at once, beside others that do.
            found = await _kept(wish, submit(wish.claim))
            if found:
                return found
        if timeout <= 0 or self._is_draining:
            return []
        if self.waiting >= get_settings().API.WAITERS:
            raise unavailable("too_many_waiters", "Too many pops wait in this process.")
        waiter = _Waiter(wish)
        coming = asyncio.run_coroutine_threadsafe(self._stand(waiter, timeout), self._started())
        try:
            return await _kept(wish, coming)
        except asyncio.CancelledError:
            self._started().call_soon_threadsafe(waiter.leave)
            raise

    def drain(self) -> None:
        """End every wait with nothing, now and from now on: the process is to stop."""
        self._is_draining = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._dismiss)

    def close(self) -> None:
        """End every wait, and the connections that listen; a later wait begins anew."""
        self.drain()
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._close_ears(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
        self._reset()

    async def _close_ears(self) -> None:
        for each in self._ears.values():
            await each.close()

    def _dismiss(self) -> None:
        for line in self._lines.values():
            for waiter in list(line.waiters):
                waiter.leave()

    def _has_line(self, wish: Wish[Any]) -> bool:
        line = self._lines.get((wish.using, wish.line))
        return line is not None and bool(line.waiters)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.SelectorEventLoop()
                threading.Thread(
                    target=_run, args=(self._loop,), name="delayed-queue-pops", daemon=True
                ).start()
            return self._loop

    # On the loop of the hub

    async def _stand(self, waiter: _Waiter[T], timeout: float) -> Sequence[T]:
        line = self._line_of(waiter.wish)
        line.join(waiter)
        timer = asyncio.get_running_loop().call_later(timeout, waiter.leave)
        try:
            return await waiter.answer
        finally:
            timer.cancel()

    def _line_of(self, wish: Wish[T]) -> _Line[T]:
        key = (wish.using, wish.line)
        if key not in self._lines:
            self._lines[key] = _Line(self._ear_of(wish.using), partial(self._forget, key))
        return self._lines[key]

    def _ear_of(self, using: str) -> Ear:
        if using not in self._ears:
            self._ears[using] = Ear(using, partial(self._ring, using))
        return self._ears[using]

    def _ring(self, using: str, channel: str | None) -> None:
        for (alias, _), line in self._lines.items():
            if alias == using and (channel is None or channel in line.channels):
                line.bell.set()

    def _forget(self, key: tuple[str, str]) -> None:
        self._lines.pop(key, None)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class _Waiter(Generic[T]):
    """One pop in a line; ``leave`` and ``answer`` are for the hub's loop alone."""

    def __init__(self, wish: Wish[T]) -> None:
        self.wish = wish
        self.line: _Line[T] | None = None
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
        try:
            found = await asyncio.wrap_future(submit(self.wish.claim))
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


class _Line(Generic[T]):
    """The waiters for one topic, and the task that looks for the first of them."""

    def __init__(self, ear: Ear, forget: Callable[[], None]) -> None:
        self.waiters: deque[_Waiter[T]] = deque()
        self.channels: frozenset[str] = frozenset()
        self.bell = asyncio.Event()
        self._ear = ear
        self._forget = forget
        self._task: asyncio.Task[None] | None = None
        self._end: asyncio.TimerHandle | None = None

    def join(self, waiter: _Waiter[T]) -> None:
        if waiter.is_leaving:  # its client went before it got here
            waiter.hand([])
            return
        waiter.line = self
        self.waiters.append(waiter)
        if self._end is not None:
            self._end.cancel()
        if self._task is None:
            self._task = asyncio.ensure_future(self._serve())

    def part(self, waiter: _Waiter[T]) -> None:
        with suppress(ValueError):
            self.waiters.remove(waiter)
        if not self.waiters:
            self.bell.set()

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
        self.bell.clear()
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
                    await asyncio.wait_for(self.bell.wait(), nap)
                return

    async def _listen_to(self, wish: Wish[T]) -> None:
        """Listen on the channels of the wish: those of a topic change with its shards."""
        channels = frozenset(channel_of(each) for each in wish.kinds)
        if channels == self.channels or not get_settings().NOTIFY:
            return
        old, self.channels = self.channels, channels
        await self._ear.add(channels - old)
        await self._ear.remove(old - channels)

    def _drop(self) -> None:
        if not self.waiters:
            self._forget()
            channels, self.channels = self.channels, frozenset()
            _in_background(self._ear.remove(channels))


_tasks: Final[set[asyncio.Task[None]]] = set()


def _in_background(coroutine: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(coroutine)
    _tasks.add(task)  # the loop itself holds tasks weakly
    task.add_done_callback(_tasks.discard)


async def _kept(wish: Wish[T], coming: Future[Sequence[T]]) -> Sequence[T]:
    """Return what is coming; if the caller is cancelled before it has it, give it back."""
    try:
        # Shielded: a claim that runs in a thread cannot be stopped, only answered for.
        return await asyncio.shield(asyncio.wrap_future(coming))
    except asyncio.CancelledError:
        coming.add_done_callback(partial(_return, wish))
        raise


def _return(wish: Wish[T], came: Future[Sequence[T]]) -> None:
    # Whoever calls this may be an event loop; the statement is for a thread.
    if not came.cancelled() and came.exception() is None and came.result():
        submit(wish.give_back, came.result())


hub: Final = Hub()

# Neither the thread nor the connection comes along.
os.register_at_fork(after_in_child=hub._reset)  # noqa: SLF001
