"""The queue: its verbs in one class, each with its ``a``-prefixed wrapper, as in Django."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from delayed_queue.messages import (
    Batch,
    Envelope,
    OfferOutcome,
    QueueStats,
    ScheduledMessage,
    StoredMessage,
)
from delayed_queue.queue.inspection import DROP_ALL_CONFIRMATION, STATS_CAP, Inspection, Pausing
from delayed_queue.queue.offering import Offering
from delayed_queue.queue.polling import Polling, seconds_of

if TYPE_CHECKING:
    from delayed_queue.cron.service import CronService

__all__ = ["DROP_ALL_CONFIRMATION", "DelayedQueue"]


class DelayedQueue(Offering, Polling, Pausing, Inspection):
    """A named stream of messages, each delivered when it is due to one consumer at a time.

    An instance is cheap, holds no connection, and may be shared by threads. Every call runs
    on the calling thread's Django connection of the alias ``using`` and takes part in the
    transaction open there; outside one it commits by itself, and is repeated while the
    database is away (``ResourceUnavailable`` at the end of the retries).

    ``clock`` replaces the database's clock by a callable returning an aware datetime.
    ``kind`` replaces the stored partition value, to share a queue with another service.
    A method with the prefix ``a`` awaits the one without it in asgiref's thread for
    synchronous code.
    """

    @property
    def cron(self) -> CronService:
        """The cron service of this queue."""
        # Loaded by those who ask for it.
        from delayed_queue.cron.service import CronService
        from delayed_queue.cron.ticking import Ticks

        return CronService(Ticks(self, self._schedules))

    async def aoffer_or_update(
        self,
        key: str,
        payload: Any,
        schedule_at: datetime | None = None,
        *,
        delay: timedelta | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> OfferOutcome:
        return await sync_to_async(self.offer_or_update)(
            key, payload, schedule_at, delay=delay, headers=headers
        )

    async def aoffer_if_not_exists(
        self,
        key: str,
        payload: Any,
        schedule_at: datetime | None = None,
        *,
        delay: timedelta | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> OfferOutcome:
        return await sync_to_async(self.offer_if_not_exists)(
            key, payload, schedule_at, delay=delay, headers=headers
        )

    async def aoffer_batch(self, messages: Iterable[ScheduledMessage]) -> list[OfferOutcome]:
        return await sync_to_async(self.offer_batch)(messages)

    async def atry_poll(self) -> Envelope | None:
        return await sync_to_async(self.try_poll)()

    async def atry_poll_many(self, limit: int) -> Batch:
        return await sync_to_async(self.try_poll_many)(limit)

    async def apoll(self, timeout: timedelta | float | None = None) -> Envelope | None:
        """Wait for a due message without occupying a thread; None only on timeout.

        It looks at the next due time or after the poll interval, whichever comes first, and is
        cancelled like any coroutine. It does not LISTEN: the connection of asgiref's thread is
        shared by all coroutines, and must not be held by one that waits.
        """
        deadline = None if timeout is None else time.monotonic() + seconds_of(timeout)
        while True:
            envelope = await self.atry_poll()
            left = None if deadline is None else deadline - time.monotonic()
            if envelope is not None or (left is not None and left <= 0):
                return envelope
            nap = await sync_to_async(self.seconds_to_next_look)()
            await asyncio.sleep(nap if left is None else min(nap, left))

    async def aread(self, key: str) -> StoredMessage | None:
        return await sync_to_async(self.read)(key)

    async def acontains_message(self, key: str) -> bool:
        return await sync_to_async(self.contains_message)(key)

    async def adrop_message(self, key: str) -> bool:
        return await sync_to_async(self.drop_message)(key)

    async def adrop_all_messages(self, confirm: str) -> int:
        return await sync_to_async(self.drop_all_messages)(confirm)

    async def astats(self, cap: int = STATS_CAP) -> QueueStats:
        return await sync_to_async(self.stats)(cap)

    async def aredrive(
        self, letter_ids: Sequence[int], *, overwrite: bool = False
    ) -> dict[int, OfferOutcome]:
        return await sync_to_async(self.redrive)(letter_ids, overwrite=overwrite)
