"""The queue: offering, leasing, consuming, settling and inspecting messages."""

from __future__ import annotations

from delayed_queue.cron.service import CronService
from delayed_queue.queue.asynchrony import Asynchrony
from delayed_queue.queue.inspection import DROP_ALL_CONFIRMATION

__all__ = ["DROP_ALL_CONFIRMATION", "DelayedQueue"]


class DelayedQueue(Asynchrony):
    """A named stream of messages, each delivered when it is due to one consumer at a time.

    An instance is cheap, holds no connection, and may be shared by threads. Every call runs
    on the calling thread's Django connection of the alias ``using`` and takes part in the
    transaction open there; outside one it commits by itself, and is repeated while the
    database is away (``ResourceUnavailable`` at the end of the retries).

    ``clock`` replaces the database's clock by a callable returning an aware datetime.
    ``kind`` replaces the stored partition value, to share a queue with another service.
    """

    @property
    def cron(self) -> CronService:
        """The cron service of this queue."""
        return CronService(self)
