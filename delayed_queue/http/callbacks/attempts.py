"""The log of attempts: written beside the callbacks, many rows in one statement."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from django.db import Error

from delayed_queue.db.gathering import LoopGathering
from delayed_queue.db.resilience import write_by_halves
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.http.conf import callback_settings
from delayed_queue.http.models import CallbackAttempt
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND

# Attempts gather for this long. A worker that is killed loses them, but no jobs.
GATHER_SECONDS: Final = 0.2
MOST_AT_ONCE: Final = 1000
# While the database takes none, the oldest beyond this number are dropped.
MOST_WAITING: Final = 20_000
PRUNE_SECONDS: Final = 60.0
MOST_PRUNED: Final = 10_000
# Characters of a url that are logged.
_SHOWN: Final = 1000


class AttemptLog:
    """Attempts on their way to the table; of one database alias and one event loop."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._gathering: LoopGathering[None, CallbackAttempt, None] = LoopGathering(
            self._write, most=MOST_AT_ONCE, pause=GATHER_SECONDS
        )
        self._last: asyncio.Future[None] | None = None
        # Attempts that the database did not take.
        self._kept: list[CallbackAttempt] = []
        self._prune_at = 0.0

    def add(self, row: CallbackAttempt) -> None:
        """Write an attempt soon."""
        self._last = self._gathering.ask(None, row)

    async def flush(self) -> None:
        """Return when the attempts added so far are written or refused."""
        if self._last is not None:
            await asyncio.shield(self._last)

    async def close(self) -> None:
        """Write the remaining attempts, at the end of the event loop."""
        await self._gathering.close()
        await self._write(None, [])

    async def _write(self, key: None, rows: list[CallbackAttempt]) -> list[None]:
        if time.monotonic() >= self._prune_at:
            # Prune with every write while there is more: as fast as the table can grow.
            is_done = await self._prune() < MOST_PRUNED
            self._prune_at = time.monotonic() + PRUNE_SECONDS if is_done else 0.0
        waiting, self._kept = [*self._kept, *rows], []
        add = CallbackAttempt.objects.using(self._using).bulk_create
        try:
            await sync_to_async(write_by_halves)(waiting, add, _not_logged)
        except (Error, ResourceUnavailable) as error:
            log(logging.WARNING, "attempts_not_logged", error=described(error))
            self._kept = waiting[-MOST_WAITING:]
        return [None] * len(rows)

    async def _prune(self) -> int:
        age = callback_settings().ATTEMPTS_RETENTION // MILLISECOND
        prune = sync_to_async(CallbackAttempt.objects.prune)
        try:
            return await prune(age, MOST_PRUNED, using=self._using)
        except Error as error:
            log(logging.WARNING, "attempts_not_pruned", error=type(error).__name__)
            return 0


def _not_logged(row: CallbackAttempt, error: Error) -> None:
    """Report an attempt that the database refuses to log; the others are logged without it."""
    fields = {"topic": row.topic, "key": row.key, "error": described(error)}
    log(logging.WARNING, "attempts_not_logged", **fields)


@lru_cache(maxsize=1024)
def url_to_show(url: str) -> str:
    """Return the url without possible secrets: user, password, and the text of its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query=parts.query and "…", fragment="").geturl()[:_SHOWN]
