"""The queue: its verbs in one class, each with its ``a``-prefixed form, as in Django."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from delayed_queue.messages import Envelope
from delayed_queue.queue.inspection import DROP_ALL_CONFIRMATION, Inspection, Pausing
from delayed_queue.queue.offering import Offering
from delayed_queue.queue.polling import Polling, seconds_of

if TYPE_CHECKING:
    from delayed_queue.cron.service import CronService

__all__ = ["DROP_ALL_CONFIRMATION", "DelayedQueue"]

P = ParamSpec("P")
T = TypeVar("T")


def awaited(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the method as a coroutine function: it runs in asgiref's thread for such code."""

    @functools.wraps(method)
    async def in_thread(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By name: a subclass may have a method of its own.
        found: Callable[P, T] = getattr(self, method.__name__)
        return await sync_to_async(found)(*args, **kwargs)

    in_thread.__name__ = f"a{method.__name__}"
    return in_thread


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

    aoffer_or_update = awaited(Offering.offer_or_update)
    aoffer_if_not_exists = awaited(Offering.offer_if_not_exists)
    aoffer_batch = awaited(Offering.offer_batch)
    atry_poll = awaited(Polling.try_poll)
    atry_poll_many = awaited(Polling.try_poll_many)
    aread = awaited(Inspection.read)
    acontains_message = awaited(Inspection.contains_message)
    adrop_message = awaited(Inspection.drop_message)
    adrop_all_messages = awaited(Inspection.drop_all_messages)
    astats = awaited(Inspection.stats)
    aredrive = awaited(Inspection.redrive)
    apause = awaited(Pausing.pause)
    aresume = awaited(Pausing.resume)
    ais_paused = awaited(Pausing.is_paused)

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
