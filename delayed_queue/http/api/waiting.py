"""Waiting for jobs: any number of pops, one connection that listens, one look for all of them.

A topic has a line of waiters, served in the order of their coming. One task looks for the first
of the line, and only for it; a job goes to one waiter and costs one look, however many wait.
Nobody holds a connection or a transaction while waiting.

All lines of a process live on one event loop in a thread of its own, so that it does not matter
which event loop a request is on: under ASGI one for all, under WSGI one for each.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from delayed_queue.http.api.lines import Line, Waiter, Wish, give_back
from delayed_queue.http.api.listening import Ear
from delayed_queue.http.api.problems import unavailable
from delayed_queue.http.api.threads import submit
from delayed_queue.http.conf import api_settings

T = TypeVar("T")

# How long closing waits for claims under way, and for a connection that is being made.
PATIENCE_SECONDS: Final = 10.0


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
        self._room = _Room()

    @property
    def waiting(self) -> int:
        """How many pops wait."""
        return self._room.waiting

    async def wait(self, wish: Wish[T], timeout: float) -> Sequence[T]:
        """Return what the wish claims as soon as there is some; empty after the timeout.

        When the caller is cancelled, as Django does when the client has gone, the place in the
        line is given up, and what was claimed for it meanwhile is given back at once. Raises
        what the claim raises, and Problem 503 when too many wait already.
        """
        # One for the whole call: who looks first while it is closed must not begin another.
        room = self._room
        if not room.has_line(wish):
            # Nobody is before us: look at once, beside others that do.
            found = await _kept(wish, submit(wish.claim))
            if found:
                return found
        if timeout <= 0 or room.is_draining:
            return []
        if room.waiting >= api_settings().WAITERS:
            raise unavailable("too_many_waiters", "Too many pops wait in this process.")
        waiter = Waiter(wish)
        coming = room.admit(waiter, timeout)
        try:
            return await _kept(wish, coming)
        except asyncio.CancelledError:
            room.call(waiter.leave)
            raise

    def drain(self) -> None:
        """End every wait with nothing, now and from now on: the process is to stop."""
        self._room.drain()

    def close(self, patience: float = PATIENCE_SECONDS) -> None:
        """End every wait, and the connections that listen; a later wait begins anew.

        Blocks, and leaves no thread and no task. Waits end with nothing, but those whose claim is
        on its way with what that brings. After the patience, in seconds, these too end with
        nothing, and what comes is given back. To close again does nothing.
        """
        room, self._room = self._room, _Room()
        room.close(patience)


class _Room:
    """The lines from one start of their event loop to its end; once closed, it stays so."""

    def __init__(self) -> None:
        self.is_draining = False
        self._is_closed = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lines: dict[tuple[str, str], Line[Any]] = {}
        self._ears: dict[str, Ear] = {}

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
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function)

    def drain(self) -> None:
        # Without the lock: a signal may come while its thread holds it. Who is not in line yet
        # sees the mark when it gets there.
        self.is_draining = True
        self.call(self._dismiss)

    def close(self, patience: float) -> None:
        self.is_draining = True
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if self._loop is None or self._thread is None or not is_first:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._end(patience), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.SelectorEventLoop()
            self._thread = threading.Thread(
                target=_run, args=(self._loop,), name="delayed-queue-pops", daemon=True
            )
            self._thread.start()
        return self._loop

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

    async def _end(self, patience: float) -> None:
        self._dismiss()
        for ear in self._ears.values():
            ear.deafen()
        await _others(patience)
        for waiter in self.waiters():
            waiter.hand([])
        for line in self._lines.values():
            line.stop()
        await _others()
        for ear in self._ears.values():
            await ear.close()

    def _line_of(self, wish: Wish[T]) -> Line[T]:
        key = (wish.using, wish.line)
        if key not in self._lines:
            self._lines[key] = Line(self._ear_of(wish.using), partial(self._forget, key))
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


async def _others(patience: float | None = None) -> None:
    """Wait until this task is the only one of its loop, no longer than that."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=patience)


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


hub: Final = Hub()

# Neither the thread nor the connection comes along.
os.register_at_fork(after_in_child=hub._reset)  # noqa: SLF001
