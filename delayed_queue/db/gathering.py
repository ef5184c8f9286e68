"""Group commit on an event loop: items of many tasks are written by one call.

Items that arrive during a call wait for the next one. A single item is written at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")
MOST: Final = 500


class _Line(Generic[T, R]):
    """The items that wait for the next call of a key, each with the future of its result."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self.task: asyncio.Task[None] | None = None

    def take(
        self, most: int, name: Callable[[T], Hashable] | None
    ) -> list[tuple[T, asyncio.Future[R]]]:
        """Remove the items of the next call: at most ``most``, with different names."""
        line = self.waiting
        if name is None:
            return [line.popleft() for _ in range(min(most, len(line)))]
        batch: dict[Hashable, tuple[T, asyncio.Future[R]]] = {}
        while line and len(batch) < most and (own := name(line[0][0])) not in batch:
            batch[own] = line.popleft()
        return list(batch.values())


class LoopGathering(Generic[K, T, R]):
    """Gathers items of one event loop; one call at a time for each key.

    ``call`` gets at most ``most`` items in the order of their arrival, with different names by
    ``name``. It returns a result for each, or an exception for an item that failed alone; what it
    raises is raised for all of its items. The first call waits ``pause`` seconds for further items.
    The item of a cancelled task is written nevertheless.
    """

    def __init__(
        self,
        call: Callable[[K, list[T]], Awaitable[Sequence[R | BaseException]]],
        *,
        most: int = MOST,
        name: Callable[[T], Hashable] | None = None,
        pause: float = 0.0,
    ) -> None:
        self._call = call
        self._most = most
        self._name = name
        self._pause = pause
        self._lines: dict[K, _Line[T, R]] = {}

    def ask(self, key: K, item: T) -> asyncio.Future[R]:
        """Return the future of the item's result."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
            line.task = loop.create_task(self._run(key, line))
        future: asyncio.Future[R] = loop.create_future()
        line.waiting.append((item, future))
        return future

    async def close(self) -> None:
        """Wait until every item has its result."""
        while tasks := [each.task for each in self._lines.values() if each.task is not None]:
            await asyncio.wait(tasks)

    async def _run(self, key: K, line: _Line[T, R]) -> None:
        try:
            if self._pause:
                await asyncio.sleep(self._pause)
            while line.waiting:
                await self._write(key, line.take(self._most, self._name))
        finally:
            del self._lines[key]
            for _, future in line.waiting:  # the loop has ended
                future.cancel()

    async def _write(self, key: K, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._call(key, [item for item, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                _settle(future, result)
        # Any error belongs to these items, and none may be left waiting.
        except Exception as error:
            for _, future in batch:
                _settle(future, error)
        finally:
            for _, future in batch:
                future.cancel()  # no effect on one that is settled


def _settle(future: asyncio.Future[R], result: R | BaseException) -> None:
    if future.done():  # its task was cancelled
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


class LoopLocal(Generic[K, T]):
    """An object for each event loop and key: made at first use, closed when its loop ends."""

    def __init__(
        self, make: Callable[[K], T], close: Callable[[T], Awaitable[object]] | None = None
    ) -> None:
        self._make = make
        self._close = close
        self._made: dict[tuple[asyncio.AbstractEventLoop, K], tuple[T, AsyncGenerator[None]]] = {}

    def of(self, key: K) -> T:
        """Return the running loop's object."""
        place = asyncio.get_running_loop(), key
        found = self._made.get(place)
        if found is None:
            # A loop that ended without shutting down its generators cannot close anything any more.
            for known in [each for each in self._made if each[0].is_closed()]:
                del self._made[known]
            found = self._made[place] = self._make(key), self._keep(place)
            # Started, because a loop closes the generators that it has seen.
            with suppress(StopIteration):
                found[1].asend(None).send(None)
        return found[0]

    def __len__(self) -> int:
        return len(self._made)

    async def close(self) -> None:
        """Close the running loop's objects."""
        loop = asyncio.get_running_loop()
        for keeper in [each[1] for place, each in self._made.items() if place[0] is loop]:
            await keeper.aclose()

    async def _keep(self, place: tuple[asyncio.AbstractEventLoop, K]) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            made, _ = self._made.pop(place)
            if self._close is not None:
                await self._close(made)
