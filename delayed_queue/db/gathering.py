"""Group commit: what many tasks ask for at a time becomes one call, and each has its own answer.

While a call is under way what others ask for gathers, and the next call takes it along. Nobody
waits for others who may come: what is asked for alone is called at once, unless a pause is wanted.

A call is given items in the order in which they came. It returns an answer for each, an exception
for what has failed alone; what it raises is the answer to all of its items, and to no others.
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


class _Asked(Generic[T, R]):
    """An item of a task, and the future that it waits for."""

    __slots__ = ("answer", "item")

    def __init__(self, item: T, answer: asyncio.Future[R]) -> None:
        self.item = item
        self.answer = answer

    def end(self, answer: R | BaseException) -> None:
        if self.answer.done():  # cancelled, and called for nevertheless
            return
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


def _first(
    line: deque[_Asked[T, R]], most: int, name: Callable[[T], Hashable] | None
) -> list[_Asked[T, R]]:
    """Take from the line what one call can have: so many, and none of a name it has already."""
    if name is None:
        return [line.popleft() for _ in range(min(most, len(line)))]
    batch: dict[Hashable, _Asked[T, R]] = {}
    while line and len(batch) < most and (own := name(line[0].item)) not in batch:
        batch[own] = line.popleft()
    return list(batch.values())


class _LoopLine(Generic[T, R]):
    __slots__ = ("task", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Asked[T, R]] = deque()
        self.task: asyncio.Task[None] | None = None


class LoopGathering(Generic[K, T, R]):
    """Gathers what tasks of one event loop ask for; a call at a time for each place.

    A call awaits what it does elsewhere, in a thread say. With a pause the first call waits so many
    seconds for others. What a task has asked for is called even if the task is cancelled.
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
        self._lines: dict[K, _LoopLine[T, R]] = {}

    def ask(self, place: K, item: T) -> asyncio.Future[R]:
        """Return the future of the answer to this item."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = _LoopLine()
            line.task = loop.create_task(self._run(place, line))
        asked: _Asked[T, R] = _Asked(item, loop.create_future())
        line.waiting.append(asked)
        return asked.answer

    async def close(self) -> None:
        """Return when all that was asked for is answered."""
        while tasks := [each.task for each in self._lines.values() if each.task is not None]:
            await asyncio.wait(tasks)

    async def _run(self, place: K, line: _LoopLine[T, R]) -> None:
        try:
            if self._pause:
                await asyncio.sleep(self._pause)
            while line.waiting:
                await self._answer(place, _first(line.waiting, self._most, self._name))
        finally:
            del self._lines[place]
            # Only if the loop ends under it: then whoever still waits is to be told, too.
            for each in line.waiting:
                each.answer.cancel()

    async def _answer(self, place: K, batch: list[_Asked[T, R]]) -> None:
        answers: Sequence[R | BaseException]
        try:
            answers = await self._call(place, [each.item for each in batch])
            for each, answer in zip(batch, answers, strict=True):
                each.end(answer)
        # Whatever it is, nobody else is to meet it, and nobody to be left waiting.
        except Exception as error:
            for each in batch:
                each.end(error)
        finally:
            for each in batch:
                each.answer.cancel()  # of what is answered nothing


class LoopLocal(Generic[K, T]):
    """An object for each event loop and key: made when first asked for, closed as its loop ends."""

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
            # Of a loop that has not shut down its generators, nothing can be closed any more.
            for known in [each for each in self._made if each[0].is_closed()]:
                del self._made[known]
            found = self._made[place] = self._make(key), self._keeping(place)
            # Started, so that the loop knows it: at its end it closes what it knows.
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

    async def _keeping(self, place: tuple[asyncio.AbstractEventLoop, K]) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            made, _ = self._made.pop(place)
            if self._close is not None:
                await self._close(made)
