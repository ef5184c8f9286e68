"""Gathering: what many tasks ask of the database at a time becomes one call of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from django.db import Error, connections

from delayed_queue.exceptions import ResourceUnavailable

logger = logging.getLogger("delayed_queue.notifications")

T = TypeVar("T")
R = TypeVar("R")
MOST: Final = 500
PAUSE_SECONDS: Final = 0.5
# Classes of SQLSTATE that say that the database cannot be written to just now, and nothing of what
# was to be written: connections, read-only, rollbacks, no disk or memory, locks, ended, the system.
_PASSING: Final = ("08", "25", "40", "53", "55", "57", "58")


class Gatherer(Generic[T, R]):
    """Calls ``call`` with what was asked since its last call, in a thread of its own.

    One call at a time, so the busier it is, the more each call takes along: 1,200 a second are
    some hundred commits. An item that breaks a call is tried alone. While the database is away the
    call is made again and again: what a provider has answered must not be forgotten over an
    outage. Calls must bear to be repeated. For one event loop.
    """

    def __init__(self, name: str, call: Callable[[Sequence[T]], list[R]], gather: float) -> None:
        self._call = call
        self._gather = gather
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._running: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._name = name
        self._is_closing = threading.Event()

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
        # Whatever it is, nobody may be left waiting, nor pay for another's item.
        except Exception as error:
            await self._answer_each(asked, error)
        else:
            for (_, answer), found in zip(asked, answers, strict=True):
                if not answer.done():
                    answer.set_result(found)

    async def _answer_each(
        self, asked: list[tuple[T, asyncio.Future[R]]], error: Exception
    ) -> None:
        if len(asked) == 1 or is_away(error):
            _fail(asked, error)
            return
        for each in asked:
            await self._answer([each])

    async def _in_thread(self, items: list[T]) -> list[R]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._call_until_answered, items)

    def _call_until_answered(self, items: list[T]) -> list[R]:
        while True:
            try:
                return self._call(items)
            except (Error, ResourceUnavailable) as error:
                if not is_away(error) or self._is_closing.is_set():
                    raise
                logger.warning(
                    "event=database_away step=%s count=%s error=%s",
                    self._name, len(items), type(error).__name__,
                )  # fmt: skip
                self._is_closing.wait(PAUSE_SECONDS)

    async def aclose(self) -> None:
        """Make the calls that are still to be made, each once more; then as ``close()``."""
        self._is_closing.set()
        while self._running is not None:
            await asyncio.wait([self._running])
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close the thread and its connections; nothing may be waiting any more."""
        self._is_closing.set()
        self._thread.submit(connections.close_all)
        self._thread.shutdown(wait=True)


def is_away(error: Exception) -> bool:
    """Return whether the same call may succeed when the database is well again."""
    if isinstance(error, ResourceUnavailable):
        return True
    state = getattr(error.__cause__, "sqlstate", None) or ""
    return isinstance(error, Error) and state.startswith(_PASSING)


def _fail(asked: Sequence[tuple[object, asyncio.Future[R]]], error: Exception) -> None:
    for _, answer in asked:
        if not answer.done():
            answer.set_exception(error)
