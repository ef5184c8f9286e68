"""The circuit breaker of callbacks: one circuit per host, shared by all workers."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import Error

from delayed_queue.conf import get_settings
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.http.callbacks.calls import CallbackResult, Failure
from delayed_queue.http.conf import callback_settings
from delayed_queue.http.models import Host
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND
from delayed_queue.rates import Circuit, Event, State

# Seconds for which a process trusts the row of a host that it read.
TRUST_SECONDS: Final = 1.0
LONGEST_PAUSE: Final = timedelta(hours=1)
# Seconds of a pause that count for a deferral: jobs are due within 5 minutes after its end.
LONGEST_WAIT: Final = 150.0
# Calls at a time to a host that has not answered yet.
FIRST_WINDOW: Final = 8
# A host that needs more seconds per answer is slow. It has at most 1/N of a worker's slots.
SLOW_SECONDS: Final = 1.0
SLOW_SHARE: Final = 4
# Seconds that a call waits for its host to have room.
ROOM_SECONDS: Final = 0.25
MAX_HOSTS: Final = 10_000

# Failures that say nothing about the host: it was not called, or another job would succeed.
_UNRELATED: Final = frozenset({Failure.BLOCKED, Failure.TOO_LARGE, Failure.LOCAL})


class Deferred(Exception):
    """Nothing was sent; the message is due again after the delay, in seconds.

    ``host``: the host that refused the call, if it was a host.
    """

    def __init__(self, delay: float, host: HostState | None = None) -> None:
        super().__init__(f"deferred for {delay:.1f} s")
        self.delay = timedelta(milliseconds=max(int(delay * 1000), 1))
        self.host = host


def spread(least: float, most: float) -> float:
    """Return one of a few random delays: messages of equal delay are written by one statement."""
    delay = least + (most - least) * random.randrange(5) / 4  # noqa: S311 - to spread a herd
    return math.ceil(delay * 10) / 10


class HostState:
    """A host as this process knows it; ``circuit`` follows the row that all workers share."""

    def __init__(self, name: str) -> None:
        settings = callback_settings()
        self.name = name
        self.circuit = Circuit(settings.BREAKER_FAILURES, settings.BREAKER_PAUSE)
        self.reading = asyncio.Lock()
        self.room = asyncio.Condition()
        self.read_at = 0.0
        # Calls that were admitted, and those among them that were sent and have no result yet.
        self.admitted = self.on_wire = 0
        # A moving average.
        self.seconds_per_answer = 0.0
        self.heard_at = 0.0

    @property
    def window(self) -> float:
        """The number of calls at a time that the host may have from this process."""
        if not self.circuit.results.has_success:
            return FIRST_WINDOW
        if self.seconds_per_answer <= SLOW_SECONDS:
            return math.inf
        return max(get_settings().ASYNC_CONCURRENCY / SLOW_SHARE, FIRST_WINDOW)

    @property
    def takes_nothing(self) -> bool:
        """True while it is open, a probe decides about it, or it leaves calls without an answer."""
        state = self.circuit.state
        return state is State.OPEN or state is State.PROBING or self._is_silent

    @property
    def _is_silent(self) -> bool:
        if self.on_wire < FIRST_WINDOW:
            return False
        longest = ROOM_SECONDS
        if self.circuit.results.has_success:
            longest = max(SLOW_SECONDS, 4 * self.seconds_per_answer)
        return time.monotonic() - self.heard_at >= longest

    @property
    def has_room(self) -> bool:
        return self.admitted < self.window and not self.takes_nothing

    async def enter(self) -> None:
        """Count a call in, after a short wait for room; raises Deferred if there is none."""
        if not (self.has_room or self.takes_nothing):
            with suppress(TimeoutError):
                async with asyncio.timeout(ROOM_SECONDS), self.room:
                    await self.room.wait_for(lambda: self.has_room or self.takes_nothing)
        if not self.has_room:
            raise Deferred(self.delay(), self)
        self.admitted += 1

    async def leave(self) -> None:
        """Count a call out, and wake those that wait for room."""
        self.admitted -= 1
        async with self.room:
            self.room.notify_all()

    def delay(self) -> float:
        """Return the seconds until another try is worth it."""
        if self.circuit.state is State.OPEN:
            left = min(self.circuit.left().total_seconds(), LONGEST_WAIT)
            return spread(left, 2 * left + 1)
        each = max(self.seconds_per_answer, SLOW_SECONDS / 2)
        return spread(each, 5 * each)

    def note(self, result: CallbackResult) -> bool:
        """Record a result; return whether it opened the circuit."""
        seconds = result.duration.total_seconds()
        self.seconds_per_answer += (seconds - self.seconds_per_answer) / 8
        # Results of calls from before it opened do not count.
        is_closed = self.circuit.state is State.CLOSED
        return is_closed and self.circuit.note(is_failure=is_trouble(result))


@dataclass(slots=True, eq=False)
class HostCall:
    """One call to a host: set ``result`` when there is one. Without, nothing was sent."""

    host: HostState
    probe: str = ""
    result: CallbackResult | None = None
    is_on_wire: bool = False

    def start(self) -> None:
        """The request leaves now: from here on time without an answer is the host's."""
        if not self.is_on_wire:
            self.is_on_wire = True
            if not self.host.on_wire:
                self.host.heard_at = time.monotonic()
            self.host.on_wire += 1

    def finish(self) -> None:
        if self.is_on_wire:
            self.host.on_wire -= 1
            self.host.heard_at = time.monotonic()


class Breaker:
    """Lets calls through to hosts that answer; of one database alias and one event loop.

    A host that answers costs one read per second, and no write. One that fails is opened in the
    table, which every worker sees within a second. When its pause is over, one call, the probe,
    decides whether it is closed, or stays open twice as long.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._hosts: OrderedDict[str, HostState] = OrderedDict()

    def state_of(self, name: str) -> HostState:
        state = self._hosts.get(name)
        if state is None:
            state = self._hosts[name] = HostState(name)
            if len(self._hosts) > MAX_HOSTS:
                idle = (each for each, known in self._hosts.items() if not known.admitted)
                del self._hosts[next(idle)]
        return state

    @asynccontextmanager
    async def admit(self, name: str) -> AsyncIterator[HostCall]:
        """Admit a call to the host; raises Deferred, with nothing sent, if none may begin."""
        host = self.state_of(name)
        await self._refresh(host)
        await host.enter()
        try:
            call = HostCall(host, await self._probe(host))
            try:
                yield call
            finally:
                call.finish()
                await quietly(self._end(call))
        finally:
            await host.leave()

    async def _refresh(self, host: HostState) -> None:
        if time.monotonic() < host.read_at:
            return
        async with host.reading:
            asked_at = time.monotonic()
            if asked_at < host.read_at:  # another call has read it meanwhile
                return
            row = await sync_to_async(Host.objects.read)(host.name, using=self._using)
            host.read_at = asked_at + TRUST_SECONDS
            if row is None:
                host.circuit.set(State.CLOSED)
            elif row.open_for > 0:
                host.circuit.set(State.OPEN, row.open_for / 1000)
                host.read_at = min(host.read_at, time.monotonic() + row.open_for / 1000)
            elif (row.probed_for or 0) > 0:
                host.circuit.set(State.PROBING, TRUST_SECONDS)
            else:
                host.circuit.set(State.HALF_OPEN)

    async def _probe(self, host: HostState) -> str:
        """Return the name of the probe that the call is, if its host is half open.

        Raises Deferred if another worker has the probe.
        """
        if not host.circuit.on(Event.PROBE):
            return ""
        by, timeout = str(uuid.uuid4()), 2 * callback_settings().TOTAL_TIMEOUT
        probe = sync_to_async(Host.objects.probe)
        if await probe(host.name, by, timeout=timeout // MILLISECOND, using=self._using):
            return by
        host.read_at = 0.0
        raise Deferred(host.delay(), host)

    async def _end(self, call: HostCall) -> None:
        result = call.result
        has_opened = result is not None and call.host.note(result)
        if call.probe:
            await self._end_probe(call)
        elif result is not None and has_opened:
            await self._open(call.host, result)

    async def _end_probe(self, call: HostCall) -> None:
        host, event = call.host, Event.DROP
        if call.result is not None:
            event = Event.FAIL if is_trouble(call.result) else Event.SUCCEED
        await sync_to_async(Host.objects.end_probe)(
            host.name,
            call.probe,
            event,
            pause=callback_settings().BREAKER_PAUSE // MILLISECOND,
            longest=LONGEST_PAUSE // MILLISECOND,
            using=self._using,
        )
        host.circuit.on(event)
        host.read_at = 0.0
        if event is Event.SUCCEED:
            log(logging.INFO, "host_closed", host=host.name)

    async def _open(self, host: HostState, result: CallbackResult) -> None:
        reason = f"{result.failure}: {result.detail}"[:500]
        pause = callback_settings().BREAKER_PAUSE // MILLISECOND
        opened = await sync_to_async(Host.objects.open)(
            host.name, reason, pause=pause, using=self._using
        )
        host.read_at = 0.0
        if opened:
            log(logging.WARNING, "host_opened", host=host.name, failure=result.failure)


def is_trouble(result: CallbackResult) -> bool:
    """Return whether the host failed, rather than this job or this endpoint of it."""
    if result.failure is None or result.failure in _UNRELATED:
        return False
    if result.failure is Failure.STATUS:
        return result.status is not None and result.status >= 500
    return True


async def quietly(work: Awaitable[Any]) -> None:
    """Await bookkeeping whose failure must not cost the result of a callback that was sent."""
    try:
        await work
    except (Error, ResourceUnavailable) as error:
        log(logging.WARNING, "callback_not_noted", error=described(error))
