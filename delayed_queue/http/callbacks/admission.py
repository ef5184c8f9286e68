"""Admission of callbacks: the endpoint, its host, its concurrency and its rate, in one order."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Final

from asgiref.sync import sync_to_async

from delayed_queue.http.callbacks.breaker import Breaker, Deferred, HostCall, quietly
from delayed_queue.http.conf import callback_settings
from delayed_queue.http.models import Endpoint, Slot
from delayed_queue.http.rates import SharedRate
from delayed_queue.messages import MILLISECOND

# Seconds for which a message of a disabled endpoint is deferred each time.
DISABLED_WAIT: Final = (120.0, 300.0)
# Seconds for which a process takes no slot of an endpoint that had none.
FULL_SECONDS: Final = 0.5


class Admission:
    """Admits callbacks, for one database alias and one event loop. In this order:

    1. The endpoint is enabled.
    2. The host's circuit is closed, and the host has room for one more call.
    3. The endpoint has a free slot, if its concurrency is limited.
    4. The endpoint's rate has a permit. This is last, because a permit cannot be given back.

    The first that refuses raises Deferred: nothing was sent, and no attempt is counted.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._breaker = Breaker(using)
        # Endpoints without a free slot: until when, and the calls refused since the last one.
        self._full_until: dict[int, float] = {}
        self._refused: Counter[int] = Counter()

    @asynccontextmanager
    async def admit(self, endpoint: Endpoint, host: str) -> AsyncIterator[HostCall]:
        """Yield the call that may be made; the caller stores its result there."""
        if endpoint.disabled_at is not None:
            raise Deferred(random.uniform(*DISABLED_WAIT))  # noqa: S311 - to spread a herd
        limit = endpoint.concurrency
        slot = nullcontext() if limit is None else self._slot(endpoint.pk, limit)
        async with self._breaker.admit(host) as call, slot:
            await self._take_permit(endpoint)
            yield call

    @asynccontextmanager
    async def _slot(self, endpoint_id: int, concurrency: int) -> AsyncIterator[None]:
        """Hold one of the endpoint's slots meanwhile."""
        holder = str(uuid.uuid4())
        if not await self._take_slot(endpoint_id, holder, concurrency):
            self._refused[endpoint_id] += 1
            # Spread over the time that the waiting messages need.
            share = min(self._refused[endpoint_id] / concurrency, 20)
            raise Deferred(FULL_SECONDS * (1 + share / 2))
        self._refused.pop(endpoint_id, None)
        try:
            yield
        finally:
            mine = Slot.objects.using(self._using).filter(endpoint=endpoint_id, holder=holder)
            await quietly(mine.adelete())
            self._full_until.pop(endpoint_id, None)

    async def _take_slot(self, endpoint_id: int, holder: str, concurrency: int) -> bool:
        if time.monotonic() < self._full_until.get(endpoint_id, 0.0):
            return False
        # The slot of a dead process is free again after this time, longer than any callback.
        timeout = 4 * callback_settings().TOTAL_TIMEOUT // MILLISECOND
        is_taken = await sync_to_async(Endpoint.objects.take_slot)(
            endpoint_id, holder, concurrency, timeout=timeout, using=self._using
        )
        if not is_taken:
            self._full_until[endpoint_id] = time.monotonic() + FULL_SECONDS
        return is_taken

    async def _take_permit(self, endpoint: Endpoint) -> None:
        if endpoint.per_second is None:
            return
        name = f"endpoint:{endpoint.pk}"
        rate = SharedRate(name, endpoint.per_second, endpoint.burst, self._using)
        if wait := await rate.atake():
            # Spread over the time that the waiting messages need.
            raise Deferred(wait.total_seconds() * random.uniform(1, 3) + 0.05)  # noqa: S311
