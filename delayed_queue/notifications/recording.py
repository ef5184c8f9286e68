"""Gathering: what many tasks ask of the database at a time becomes one call of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from django.db import Error, connections

from delayed_queue.db.gathering import LoopGathering
from delayed_queue.exceptions import ResourceUnavailable

logger = logging.getLogger("delayed_queue.notifications")

T = TypeVar("T")
R = TypeVar("R")
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
        self._gathering: LoopGathering[None, T, R] = LoopGathering(self._in_thread, pause=gather)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._name = name
        self._is_closing = threading.Event()

    async def ask(self, item: T) -> R:
        """Return the answer to this item, once its call has committed."""
        return await self._gathering.ask(None, item)

    async def _in_thread(self, place: None, items: list[T]) -> Sequence[R | BaseException]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._answers, items)

    def _answers(self, items: list[T]) -> Sequence[R | BaseException]:
        try:
            return self._call_until_answered(items)
        # Whatever it is, nobody may pay for another's item.
        except Exception as error:
            if len(items) == 1 or is_away(error):
                return [error] * len(items)
            return [answer for item in items for answer in self._answers([item])]

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
        await self._gathering.close()
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
