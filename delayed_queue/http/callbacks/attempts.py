"""The log of attempts: gathered, written many at once, pruned; it holds up no callback."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Final

from asgiref.sync import sync_to_async
from django.db import Error

from delayed_queue.http.conf import callback_settings
from delayed_queue.http.models import CallbackAttempt
from delayed_queue.http.store.callbacks import AttemptRow
from delayed_queue.messages import MILLISECOND

logger = logging.getLogger("delayed_queue")

# How long attempts gather, and how many are written at once. What a killed worker had gathered is
# lost; its jobs are not.
GATHER_SECONDS: Final = 0.2
MOST_AT_ONCE: Final = 1000
# While the database does not take them, the oldest beyond so many are given up.
MOST_WAITING: Final = 20_000
PRUNE_SECONDS: Final = 60.0
MOST_PRUNED: Final = 10_000


class AttemptLog:
    """Attempts on their way to the table; of one database alias and one event loop."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._waiting: deque[AttemptRow] = deque(maxlen=MOST_WAITING)
        self._writer: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._prune_at = 0.0

    def add(self, row: AttemptRow) -> None:
        """Have an attempt written soon."""
        self._waiting.append(row)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write_soon())

    async def flush(self) -> None:
        """Return when what was added before is written, or could not be."""
        async with self._lock:
            while self._waiting:
                rows = [self._waiting[n] for n in range(min(len(self._waiting), MOST_AT_ONCE))]
                if not await self._write(rows):
                    return

    async def close(self) -> None:
        """Write what is there, at the end of the event loop."""
        if self._writer is not None:
            # Not in the middle of a statement: what that wrote would be written again.
            async with self._lock:
                self._writer.cancel()
            await asyncio.wait([self._writer])
        await self.flush()

    async def _write_soon(self) -> None:
        # Before writing: what is added meanwhile would else wait for the next one.
        if time.monotonic() >= self._prune_at:
            # As long as there is more, with every write: as fast as the table can grow.
            is_done = await self._prune() < MOST_PRUNED
            self._prune_at = time.monotonic() + PRUNE_SECONDS if is_done else 0.0
        await asyncio.sleep(GATHER_SECONDS)
        await self.flush()

    async def _write(self, rows: list[AttemptRow]) -> bool:
        try:
            await sync_to_async(CallbackAttempt.objects.add)(rows, using=self._using)
        except Error as error:
            logger.warning("event=attempts_not_logged error=%s", type(error).__name__)
            return False
        for _ in rows:
            self._waiting.popleft()
        return True

    async def _prune(self) -> int:
        age = callback_settings().ATTEMPTS_RETENTION // MILLISECOND
        prune = sync_to_async(CallbackAttempt.objects.prune)
        try:
            return await prune(age, MOST_PRUNED, using=self._using)
        except Error as error:
            logger.warning("event=attempts_not_pruned error=%s", type(error).__name__)
            return 0
