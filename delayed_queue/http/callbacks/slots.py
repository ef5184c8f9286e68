"""The concurrency of an endpoint over all workers: slots that a process holds for a while."""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from asgiref.sync import sync_to_async
from django.db import Error

from delayed_queue.http.callbacks.breaker import Deferred
from delayed_queue.http.models import Endpoint
from delayed_queue.messages import MILLISECOND

# Slots that a process does not renew are free again after this time. Longer than any callback.
HOLD: Final = timedelta(seconds=60)
RENEW_SECONDS: Final = 10.0
# A process that has too few slots requests more after this time.
ASK_SECONDS: Final = 0.5
# Unused slots are given back after this time.
LEAVE_SECONDS: Final = 1.0
# A process requests at least N slots.
FEW: Final = 4


@dataclass(slots=True)
class _Held:
    """The slots of one endpoint that this process holds."""

    concurrency: int
    held: int = 0
    used: int = 0
    # Callbacks since the last request, deferred ones included.
    wanted: int = 0
    asked_at: float = -math.inf
    leaving: asyncio.Task[None] | None = None


class Slots:
    """The slots that this process holds, for one database alias and one event loop.

    It requests the slots it uses and those it lacked since the last request. So a process with
    little to do leaves its slots to others, at the latest at its next renewal.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._holder = str(uuid.uuid4())
        self._held: dict[int, _Held] = {}
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def one(self, endpoint_id: int, concurrency: int) -> AsyncIterator[None]:
        """Hold a slot meanwhile; raises Deferred when none is free."""
        mine = self._held.setdefault(endpoint_id, _Held(concurrency))
        mine.concurrency = concurrency
        mine.wanted += 1
        now = time.monotonic()
        is_stale = now - mine.asked_at > RENEW_SECONDS
        is_short = mine.used >= mine.held and now - mine.asked_at > ASK_SECONDS
        if is_stale or is_short:
            await self._ask(endpoint_id, mine)
        if mine.used >= min(mine.held, concurrency):
            raise Deferred(ASK_SECONDS * (1 + min(mine.wanted / concurrency, 20) / 2))
        mine.used += 1
        try:
            yield
        finally:
            mine.used -= 1
            if mine.used == 0 and mine.held and mine.leaving is None:
                loop = asyncio.get_running_loop()
                mine.leaving = loop.create_task(self._leave(endpoint_id, mine))

    async def close(self) -> None:
        """Give all slots back, at the end of the event loop."""
        for endpoint_id, mine in self._held.items():
            if mine.leaving is not None:
                mine.leaving.cancel()
                await asyncio.wait([mine.leaving])
            mine.used = mine.wanted = 0
            mine.asked_at = -math.inf
            if mine.held:
                await self._ask(endpoint_id, mine)

    async def _leave(self, endpoint_id: int, mine: _Held) -> None:
        """Give unused slots back, but not between two callbacks."""
        await asyncio.sleep(LEAVE_SECONDS)
        mine.leaving = None
        if mine.used == 0 and mine.held:
            mine.wanted, mine.asked_at = 0, -math.inf
            try:
                await self._ask(endpoint_id, mine)
            except Error:
                return  # they expire

    async def _ask(self, endpoint_id: int, mine: _Held) -> None:
        async with self._lock:
            if time.monotonic() - mine.asked_at <= ASK_SECONDS:
                return  # another task has requested them meanwhile
            mine.asked_at = time.monotonic()
            more = max(mine.wanted, FEW) if mine.wanted else 0
            wanted, mine.wanted = mine.used + more, 0
            mine.held = await sync_to_async(Endpoint.objects.hold_slots)(
                endpoint_id,
                self._holder,
                wanted,
                mine.used,
                concurrency=mine.concurrency,
                timeout=HOLD // MILLISECOND,
                using=self._using,
            )
