"""The circuit breaker: one state for each host, shared by all workers, and a window in each."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from asgiref.sync import sync_to_async
from django.db import Error

from delayed_queue.conf import get_settings
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.http.callbacks.calls import CallbackResult, Failure
from delayed_queue.http.conf import callback_settings
from delayed_queue.http.models import Host
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND
from delayed_queue.rates import Results

# For so long a process believes what it read of a host.
TRUST_SECONDS: Final = 1.0
LONGEST_PAUSE: Final = timedelta(hours=1)
# A probe that has not answered by then, because its worker died, is given to another.
PROBE_TIMEOUT: Final = timedelta(seconds=10)
# How many callbacks to a host a process has on the wire before it knows that it answers; what part
# of its slots at most one has that takes its time. How many others wait in memory, for how long;
# the rest are deferred, by what the host seems to need.
FIRST_WINDOW: Final = 8
QUICK: Final = timedelta(seconds=1)
SLOW_SHARE: Final = 4
MOST_WAITING: Final = 64
WAIT_SECONDS: Final = 0.5
SHORT_WAIT: Final = (0.5, 1.5)
LONGEST_EXCESS: Final = 60.0
# A host that has answered nothing yet and has its window full is believed to be silent after so
# long; one that has answered, after so many times what its answers took, if that is longer than
# an answer that is quick.
SILENCE: Final = 0.25
SILENT_TIMES: Final = 4
# For how long nothing more is claimed for a host that takes nothing; then it is tried again.
REST: Final = timedelta(seconds=TRUST_SECONDS)
# So many messages are deferred by the same delay, so that one statement writes them.
SAME_DELAY: Final = 64
MAX_HOSTS: Final = 10_000

Outcome = Literal["succeeded", "failed", "dropped"]

# What another job, or this one at another time, would not have met: they say nothing of the host.
_UNRELATED: Final = frozenset({Failure.BLOCKED, Failure.TOO_LARGE, Failure.LOCAL})


class Deferred(Exception):
    """Nothing was dialled; the message is to come back after the delay."""

    def __init__(self, delay: float) -> None:
        super().__init__(f"deferred for {delay:.1f} s")
        self.delay = timedelta(milliseconds=max(int(delay * 1000), 1))
        # Whether others for the host would be deferred too.
        self.is_for_host = False


@dataclass(slots=True, eq=False)
class HostState:
    """A host as this process knows it: the shared state, and the results of its own callbacks."""

    name: str
    read_until: float = 0.0
    open_until: float = 0.0
    is_half_open: bool = False
    running: int = 0
    window: float = FIRST_WINDOW
    results: Results = field(default_factory=lambda: Results(callback_settings().BREAKER_FAILURES))
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_probing: bool = False
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    excess: int = 0
    seconds_each: float = 0.1
    same_delay: float = 0.0
    same_until: float = 0.0
    same_left: int = 0
    # When it answered last, or was sent something last; how many wait for our database before it.
    heard_at: float = 0.0
    at_gate: int = 0

    def takes_nothing(self) -> bool:
        """Return whether it is open, somebody probes it, or it is silent."""
        now = time.monotonic()
        return self.is_probing or now < self.open_until or self._is_silent(now)

    def _is_silent(self, now: float) -> bool:
        longest = SILENCE
        if self.has_answered:
            longest = max(QUICK.total_seconds(), SILENT_TIMES * self.seconds_each)
        is_full = self.running >= self.window and not self.at_gate
        return is_full and now - self.heard_at >= longest

    def seconds_to_wait(self, until: float) -> float:
        """Return how long one may still wait for room in the window."""
        now = time.monotonic()
        if self.has_answered or self.at_gate:
            return until - now
        # It may never answer: then who waits here keeps others of the topic from its slots.
        return min(self.heard_at + SILENCE, until) - now

    @property
    def has_answered(self) -> bool:
        """Whether any of its last callbacks succeeded."""
        return self.results.has_success

    def call_in(self) -> None:
        """Let the next one go that waits for room in the window."""
        if self.waiting and self.running < self.window:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)

    def delay(self, least: float, most: float) -> float:
        """Return a random delay, the same for some messages that are deferred together."""
        now = time.monotonic()
        if self.same_left <= 0 or now > self.same_until or not least <= self.same_delay <= most:
            self.same_delay = random.uniform(least, most)  # noqa: S311 - to spread a herd
            # Of a host that answers, no more than it takes at once: the rest would come in vain.
            most_alike = SAME_DELAY if self.window <= FIRST_WINDOW else int(self.window)
            self.same_left, self.same_until = min(most_alike, SAME_DELAY), now + 0.5
        self.same_left -= 1
        return self.same_delay

    def is_failing(self) -> bool:
        return self.results.are_bad


class Breaker:
    """Lets callbacks through to hosts that answer; of one database alias and one event loop.

    A host that answers costs a read a second, and no write. One that fails is opened in the
    table, which every worker sees within a second.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._hosts: OrderedDict[str, HostState] = OrderedDict()

    def state_of(self, name: str) -> HostState:
        state = self._hosts.get(name)
        if state is None:
            state = self._hosts[name] = HostState(name)
            if len(self._hosts) > MAX_HOSTS:
                self._forget_one()
        return state

    def _forget_one(self) -> None:
        for name, state in self._hosts.items():
            if not state.running:
                del self._hosts[name]
                return

    async def check(self, state: HostState) -> None:
        """Raise Deferred if nothing may be sent to the host now."""
        if time.monotonic() >= state.read_until:
            async with state.reading:
                # Who waited here finds what the one before has read.
                if time.monotonic() >= state.read_until:
                    await self._read(state)
        now = time.monotonic()
        if now < state.open_until:
            left = state.open_until - now
            # Over as long again: not all of them the moment it ends.
            raise Deferred(state.delay(left, 2 * left + 1))
        if state.running < state.window:
            # Nobody waits: what was deferred before is gone, or less than it seemed.
            state.excess //= 2
        elif not await self._wait(state):
            state.excess += 1
            more = min(state.excess * state.seconds_each / state.window, LONGEST_EXCESS)
            raise Deferred(state.delay(SHORT_WAIT[0], SHORT_WAIT[1] + more))

    async def _wait(self, state: HostState) -> bool:
        """Return whether the window had room before long."""
        until = time.monotonic() + WAIT_SECONDS
        if len(state.waiting) >= MOST_WAITING:
            return False
        turn = asyncio.get_running_loop().create_future()
        state.waiting.append(turn)
        try:
            while not turn.done():
                longest = state.seconds_to_wait(until)
                if longest <= 0:
                    return False
                await asyncio.wait([turn], timeout=longest)
        finally:
            if turn in state.waiting:
                state.waiting.remove(turn)
        return time.monotonic() >= state.open_until

    async def run(
        self, state: HostState, send: Callable[[], Awaitable[CallbackResult]]
    ) -> CallbackResult:
        """Send, and note how it went; raises Deferred, having sent nothing, where only one may."""
        probe = await self.begin(state)
        result: CallbackResult | None = None
        try:
            result = await send()
        finally:
            await quietly(self.end(state, probe, result))
        return result

    async def begin(self, state: HostState) -> str:
        """Count a callback in, which ``end`` must follow; raises Deferred where only one may.

        Returns the name of the probe that it is, or nothing.
        """
        probe = await self._probe(state) if state.is_half_open else ""
        if not state.running:
            state.heard_at = time.monotonic()
        state.running += 1
        return probe

    async def end(self, state: HostState, probe: str, result: CallbackResult | None) -> None:
        """Note how it went; None is one that was not sent after all."""
        state.running -= 1
        state.heard_at = time.monotonic()
        state.call_in()
        is_failure = result is not None and _tells_of_trouble(result)
        if result is not None:
            self.note(state, is_failure, result.duration)
        if probe:
            outcome: Outcome = "failed" if is_failure else "succeeded"
            await self._end_probe(state, probe, "dropped" if result is None else outcome)
        elif result is not None and is_failure and state.is_failing():
            await self._open(state, result)

    def note(self, state: HostState, is_failure: bool, duration: timedelta) -> None:
        """Note how a callback ended, and widen or narrow the host's window by it."""
        state.seconds_each += (duration.total_seconds() - state.seconds_each) / 8
        state.results.note(is_failure=is_failure)
        before, state.window = state.window, _next_window(state.window, is_failure, duration)
        if state.window > before:
            state.call_in()

    async def _read(self, state: HostState) -> None:
        asked_at = time.monotonic()
        row = await sync_to_async(Host.objects.read)(state.name, using=self._using)
        now = time.monotonic()
        state.read_until = asked_at + TRUST_SECONDS
        state.is_half_open = row is not None and row.open_for <= 0
        state.open_until = 0.0 if row is None else now + row.open_for / 1000
        if row is not None and not state.is_half_open:
            # Then it is half open, which only the table says: what was deferred comes back at once.
            state.read_until = min(state.read_until, state.open_until)
        if row is not None and state.is_half_open and (row.probed_for or 0) > 0:
            state.open_until = now + min((row.probed_for or 0) / 1000, TRUST_SECONDS)

    async def _probe(self, state: HostState) -> str:
        if state.is_probing:
            raise Deferred(state.delay(*SHORT_WAIT))
        by, state.is_probing = str(uuid.uuid4()), True
        timeout = PROBE_TIMEOUT + callback_settings().TOTAL_TIMEOUT
        try:
            is_ours = await sync_to_async(Host.objects.probe)(
                state.name, by, timeout=timeout // MILLISECOND, using=self._using
            )
        except BaseException:
            state.is_probing = False
            raise
        if not is_ours:
            state.is_probing = False
            state.read_until = 0.0
            raise Deferred(state.delay(*SHORT_WAIT))
        return by

    async def _end_probe(self, state: HostState, by: str, outcome: Outcome) -> None:
        state.is_probing = False
        state.read_until = 0.0
        await sync_to_async(Host.objects.end_probe)(
            state.name,
            by,
            outcome,
            pause=callback_settings().BREAKER_PAUSE // MILLISECOND,
            longest=LONGEST_PAUSE // MILLISECOND,
            using=self._using,
        )
        if outcome == "succeeded":
            state.open_until = 0.0
            state.is_half_open = False
            state.results.clear()
            log(logging.INFO, "host_closed", host=state.name)

    async def _open(self, state: HostState, result: CallbackResult) -> None:
        pause = callback_settings().BREAKER_PAUSE
        state.results.clear()
        state.open_until = time.monotonic() + pause.total_seconds()
        reason = f"{result.failure}: {result.detail}"[:500]
        opened = await sync_to_async(Host.objects.open)(
            state.name, reason, pause=pause // MILLISECOND, using=self._using
        )
        state.read_until = 0.0
        if opened:
            log(logging.WARNING, "host_opened", host=state.name, failure=result.failure)


def _next_window(window: float, is_failure: bool, duration: timedelta) -> float:
    if is_failure:
        return max(window / 2, FIRST_WINDOW)
    if duration > QUICK:
        share = get_settings().ASYNC_CONCURRENCY / SLOW_SHARE
        return min(window + 1, max(window / 2, share, FIRST_WINDOW))
    return min(window + 1, 10_000)


def _tells_of_trouble(result: CallbackResult) -> bool:
    """Return whether the host failed, rather than this job or this endpoint of it."""
    if result.failure is None or result.failure in _UNRELATED:
        return False
    if result.failure is Failure.STATUS:
        return result.status is not None and result.status >= 500
    return True


async def quietly(work: Awaitable[Any]) -> None:
    """Await what must not cost the result of a callback that was sent."""
    try:
        await work
    except (Error, ResourceUnavailable) as error:
        log(logging.WARNING, "callback_not_noted", error=described(error))
