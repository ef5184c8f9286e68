"""Gathering: what many tasks ask of the database at a time becomes one call of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from django.db import DataError, IntegrityError, connections

T = TypeVar("T")
R = TypeVar("R")
MOST: Final = 500


class Gatherer(Generic[T, R]):
    """Calls ``call`` with what was asked since its last call, in a thread of its own.

    One call at a time, so the busier it is, the more each call takes along: 1,200 a second are
    some hundred commits. An item that breaks a call is tried alone. For one event loop.
    """

    def __init__(self, name: str, call: Callable[[Sequence[T]], list[R]], gather: float) -> None:
        self._call = call
        self._gather = gather
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def ask(self, item: T) -> R:
        """Return the answer to this item, once its call has committed."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, answer))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        try:
            await asyncio.sleep(self._gather)
            while self._waiting:
                asked, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._answer(asked)
        finally:
            self._running = None

    async def _answer(self, asked: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            answers = await self._in_thread([item for item, _ in asked])
        except (DataError, IntegrityError) as error:
            await self._answer_each(asked, error)
        # Whatever it is, nobody may be left waiting.
        except Exception as error:
            _fail(asked, error)
        else:
            for (_, answer), found in zip(asked, answers, strict=True):
                if not answer.done():
                    answer.set_result(found)

    async def _answer_each(
        self, asked: list[tuple[T, asyncio.Future[R]]], error: Exception
    ) -> None:
        if len(asked) == 1:
            _fail(asked, error)
            return
        for each in asked:
            await self._answer([each])

    async def _in_thread(self, items: list[T]) -> list[R]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._call, items)

    def close(self) -> None:
        """Close the thread and its connections; nothing may be waiting any more."""
        self._thread.submit(connections.close_all)
        self._thread.shutdown(wait=True)


def _fail(asked: Sequence[tuple[object, asyncio.Future[R]]], error: Exception) -> None:
    for _, answer in asked:
        if not answer.done():
            answer.set_exception(error)
