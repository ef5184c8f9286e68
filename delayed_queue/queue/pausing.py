"""Pausing a queue: no consumer is handed a message, everything else goes on."""

from __future__ import annotations

from asgiref.sync import sync_to_async

from delayed_queue.handlers import storable
from delayed_queue.queue.base import QueueBase


class Pausing(QueueBase):
    """The switch of a queue; whoever claims or consumes obeys it, in any process."""

    def pause(self, reason: str = "", by: str = "") -> bool:
        """Hand out no message until resumed; return False when the queue is paused already.

        Offers go on, and so do the leases of messages in flight: they can be acknowledged,
        extended and released. A second pause leaves the reason of the first. After a lost
        connection, False may also mean that an earlier try did it.
        """
        return self._repeat(
            lambda: self._pauses.pause(
                self.kind,
                reason=storable(reason),
                by=storable(by),
                now=self._now(),
                using=self.using,
            )
        )

    def resume(self) -> bool:
        """Hand out messages again, to sleeping consumers too; return whether it was paused."""
        resumed = self._repeat(lambda: self._pauses.resume(self.kind, using=self.using))
        # Also when it was not: an earlier try whose answer was lost has woken nobody.
        self._wake()
        return resumed

    def is_paused(self) -> bool:
        """Return whether the queue hands out nothing."""
        return self._repeat(lambda: self._pauses.is_paused(self.kind, using=self.using))

    async def apause(self, reason: str = "", by: str = "") -> bool:
        return await sync_to_async(self.pause)(reason, by)

    async def aresume(self) -> bool:
        return await sync_to_async(self.resume)()

    async def ais_paused(self) -> bool:
        return await sync_to_async(self.is_paused)()
