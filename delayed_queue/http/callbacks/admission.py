"""Admission of callbacks: the endpoint, its host, its slots and its rate, in one order."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from typing import Final

from delayed_queue.http.callbacks.breaker import Breaker, Deferred, HostCall, quietly
from delayed_queue.http.callbacks.slots import Slots
from delayed_queue.http.models import Endpoint
from delayed_queue.http.rates import SharedRate

# Seconds for which a message of a disabled endpoint is deferred each time.
DISABLED_WAIT: Final = (120.0, 300.0)


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
        self._slots = Slots(using)

    @asynccontextmanager
    async def admit(self, endpoint: Endpoint, host: str) -> AsyncIterator[HostCall]:
        """Yield the call that may be made; the caller stores its result there."""
        if endpoint.disabled_at is not None:
            raise Deferred(random.uniform(*DISABLED_WAIT))  # noqa: S311 - to spread a herd
        limit = endpoint.concurrency
        slot = nullcontext() if limit is None else self._slots.one(endpoint.pk, limit)
        async with self._breaker.admit(host) as call, slot:
            if wait := await self._take(endpoint):
                # Spread over the time that the waiting messages need.
                raise Deferred(wait.total_seconds() * random.uniform(1, 3) + 0.05)  # noqa: S311
            yield call

    async def _take(self, endpoint: Endpoint) -> timedelta:
        if endpoint.per_second is None:
            return timedelta(0)
        name = f"endpoint:{endpoint.pk}"
        return await SharedRate(name, endpoint.per_second, endpoint.burst, self._using).atake()

    async def close(self) -> None:
        """Give back what is held, at the end of the event loop."""
        await quietly(self._slots.close())
