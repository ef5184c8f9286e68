"""A line of pops that wait for one topic, on the event loop of the hub."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.conf import get_settings
from delayed_queue.db.wakeups import channel_of
from delayed_queue.http.api.listening import Ear
from delayed_queue.http.api.threads import submit

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


class Waiter(Generic[T]):
    """One pop in a line; ``leave`` and ``answer`` are for the hub's loop alone."""

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
        except asyncio.CancelledError:  # the hub is closed, and has waited long enough
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

    def __init__(self, ear: Ear, forget: Callable[[], None]) -> None:
        self.waiters: deque[Waiter[T]] = deque()
        self.channels: frozenset[str] = frozenset()
        self.bell = asyncio.Event()
        self._ear = ear
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
            self.bell.set()

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


def give_back(wish: Wish[T], came: Future[Sequence[T]]) -> None:
    # Whoever calls this may be an event loop; the statement is for a thread.
    if not came.cancelled() and came.exception() is None and came.result():
        submit(wish.give_back, came.result())
