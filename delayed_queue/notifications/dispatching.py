"""The dispatcher: begins a notification, has it sent, and writes what came of it.

Three steps, and no transaction is open between them: ``begin`` commits, providers are called,
``settle`` commits. Of many notifications in flight at a time, each step is one statement for all
that have come to it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from django.db import Error, connections

from delayed_queue import Envelope, Retry, Snooze
from delayed_queue.db.gathering import LoopGathering, LoopLocal
from delayed_queue.db.resilience import is_unavailable, repeat, tidy_connections
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.http.callbacks.calls import least_wait
from delayed_queue.http.rates import Hold
from delayed_queue.logs import log
from delayed_queue.notifications import services
from delayed_queue.notifications.channels import Route, routes_of, throttle_of
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.models import Delivery, Status
from delayed_queue.notifications.providers import Outcome, Verdict, is_late
from delayed_queue.notifications.services import IN_DOUBT, USING, Begun, Call, Settlement

T = TypeVar("T")
R = TypeVar("R")
PAUSE_SECONDS: Final = 0.5


class Gatherer(Generic[T, R]):
    """Calls ``call`` with what was asked since its last call, in a thread of its own.

    One call at a time, so the busier it is, the more each call takes along: 1,200 a second are
    some hundred commits. An item that breaks a call is tried alone. While the database is away the
    call is made again and again: what a provider has answered must not be forgotten over an
    outage. Calls must bear to be repeated. For one event loop.
    """

    def __init__(self, name: str, call: Callable[[Sequence[T]], list[R]], gather: float) -> None:
        self._call = call
        self._gathering: LoopGathering[None, T, R] = LoopGathering(self._in_thread, pause=gather)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._name = name
        self._is_closing = threading.Event()

    async def ask(self, item: T) -> R:
        """Return the answer to this item, once its call has committed."""
        return await self._gathering.ask(None, item)

    async def _in_thread(self, place: None, items: list[T]) -> Sequence[R | BaseException]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._answers, items)

    def _answers(self, items: list[T]) -> Sequence[R | BaseException]:
        try:
            return self._call_until_answered(items)
        # Whatever it is, nobody may pay for another's item.
        except Exception as error:
            if len(items) == 1 or is_unavailable(error):
                return [error] * len(items)
            return [answer for item in items for answer in self._answers([item])]

    def _call_until_answered(self, items: list[T]) -> list[R]:
        while True:
            try:
                return self._call(items)
            except (Error, ResourceUnavailable) as error:
                if not is_unavailable(error) or self._is_closing.is_set():
                    raise
                fields = {"step": self._name, "count": len(items), "error": type(error).__name__}
                log(logging.WARNING, "database_away", **fields)
                tidy_connections(idle=False)
                self._is_closing.wait(PAUSE_SECONDS)

    async def aclose(self) -> None:
        """Make the calls that are still to be made, each once more; then as ``close()``."""
        self._is_closing.set()
        await self._gathering.close()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close the thread and its connections; nothing may be waiting any more."""
        self._is_closing.set()
        self._thread.submit(connections.close_all)
        self._thread.shutdown(wait=True)


_NOW: Final = timedelta(0)
_POSTPONED: Final = timedelta(seconds=1)
_RECORDED: Final = {
    Verdict.ACCEPTED: Delivery.Outcome.SENT,
    Verdict.TRANSIENT: Delivery.Outcome.FAILED,
    Verdict.PERMANENT: Delivery.Outcome.REFUSED,
    Verdict.AMBIGUOUS: Delivery.Outcome.AMBIGUOUS,
}


class Start(NamedTuple):
    """A message whose notification is to be begun, and who is to be called first."""

    envelope: Envelope
    provider: str


class Turn(NamedTuple):
    """A notification that goes to the next provider."""

    begun: Begun
    provider: str


class Dispatcher:
    """The dispatcher of one event loop."""

    def __init__(self) -> None:
        gather = get_settings().GATHER.total_seconds()
        self._begun: Gatherer[Start, Begun | None] = Gatherer("begin", begin_all, gather)
        self._settled: Gatherer[Settlement, Status | None] = Gatherer("settle", _settle, gather)
        self._turned: Gatherer[Turn, bool] = Gatherer("turn", _turn_to, 0)

    async def dispatch(self, envelope: Envelope) -> None:
        """Have the notification of this message sent, by the channel of its queue."""
        routes = routes_of(channel_of(envelope))
        first = _first(routes)
        begun = await self._begun.ask(Start(envelope, first.name))
        if begun is None:
            return
        end = await Attempt(begun, routes, envelope.attempt, self._turned).run()
        # No status: the lease was lost, or this was written before and the answer lost. So what was
        # to come again is never acknowledged: the lease of the message knows which it was.
        status = await self._settled.ask(end) or end.status
        if status == Status.ENQUEUED and end.calls:
            raise Retry(end.delay, end.calls[-1].error_class)
        if status == Status.ENQUEUED:
            raise Snooze(end.delay)

    async def aclose(self) -> None:
        """Write what is still to be written, and close the threads."""
        for each in (self._begun, self._turned, self._settled):
            await each.aclose()


class Attempt:
    """One attempt: the providers in their order, until one has taken it or none may be asked.

    A call that may have been accepted ends it. Another provider is never asked then, and the same
    one only if it sends once for each key.
    """

    def __init__(
        self, begun: Begun, routes: Sequence[Route], number: int, turned: Gatherer[Turn, bool]
    ) -> None:
        self._begun = begun
        self._turned = turned
        self._number = number
        self._calls: list[Call] = []
        self._pauses: list[timedelta] = []
        self._asked: timedelta = _NOW
        self._routes = [
            route for route in routes if not begun.in_doubt or route.name == begun.provider
        ]
        self._provider = begun.provider
        self._throttle = throttle_of(begun.channel, begun.recipient_hash)

    async def run(self) -> Settlement:
        if self._begun.in_doubt and not self._may_repeat():
            return self._end(Status.FAILED, IN_DOUBT)
        # What waits for its recipient is not to wait for a provider first.
        pause = self._throttle.left() if self._throttle else _NOW
        if pause:
            return self._end(Status.ENQUEUED, self._doubt, pause)
        for route in self._routes:
            end = await self._try(route)
            if end is not None:
                return end
        return self._postponed()

    def _may_repeat(self) -> bool:
        return any(
            each.provider.is_idempotent or each.provider.repeats_in_doubt for each in self._routes
        )

    async def _try(self, route: Route) -> Settlement | None:
        """Call one provider; return how the attempt ends by that, or None for the next."""
        permit = await _admitted(route)
        if permit.wait:
            self._pauses.append(permit.wait)
            return None
        end = await self._held_back()
        if end is not None:
            _spare(route, permit)
            return end
        if route.name != self._provider and not await self._turn_to(route):
            return self._end(Status.ENQUEUED)
        outcome = await self._call(route)
        return self._judged(outcome, route)

    async def _held_back(self) -> Settlement | None:
        """Return how the attempt ends before a call that could be made; None if it may be.

        The recipient's permit is taken last, when the provider's is there. That one another message
        can use; this one would be lost, and its recipient kept waiting for nothing.
        """
        if is_late(self._begun):
            return self._end(Status.EXPIRED, "expired")
        if self._throttle is None:
            return None
        pause = await self._throttle.atake()
        if pause:
            return self._end(Status.ENQUEUED, self._doubt, pause)
        # One for the attempt, however many providers it asks.
        self._throttle = None
        return None

    async def _turn_to(self, route: Route) -> bool:
        self._provider = route.name
        return await self._turned.ask(Turn(self._begun, route.name))

    async def _call(self, route: Route) -> Outcome:
        began_at = time.monotonic()
        outcome = await route.provider.send(self._begun)
        # What was not sent says nothing of the provider.
        if outcome.verdict in _RECORDED:
            route.circuit.note(is_failure=outcome.blames_provider)
            self._calls.append(
                Call(
                    route.name,
                    _RECORDED[outcome.verdict],
                    outcome.provider_id,
                    "" if outcome.verdict is Verdict.ACCEPTED else outcome.code,
                    outcome.detail,
                    timedelta(seconds=time.monotonic() - began_at),
                )
            )
        return outcome

    def _judged(self, outcome: Outcome, route: Route) -> Settlement | None:
        if outcome.verdict is not Verdict.POSTPONED:
            self._asked = max(self._asked, outcome.retry_after or _NOW)
        match outcome.verdict:
            case Verdict.ACCEPTED:
                return self._end(Status.SUCCESSFULLY_PROCESSED)
            case Verdict.PERMANENT:
                return self._end(Status.FAILED, f"refused: {outcome.code}")
            case Verdict.LATE:
                return self._end(Status.EXPIRED, "expired")
            case Verdict.POSTPONED:
                self._pauses.append(outcome.retry_after or _POSTPONED)
                return None
            case Verdict.AMBIGUOUS:
                may_repeat = route.provider.is_idempotent or route.provider.repeats_in_doubt
                return self._again(IN_DOUBT) if may_repeat else self._end(Status.FAILED, IN_DOUBT)
            case _:
                return None

    def _postponed(self) -> Settlement:
        """End an attempt in which nobody took it."""
        if self._calls:
            return self._again(self._doubt)
        # Spread, so that what waited together does not come back together.
        pause = min(self._pauses) * random.uniform(1.0, 1.5)  # noqa: S311
        return self._end(Status.ENQUEUED, self._doubt, pause)

    def _again(self, outcome: str) -> Settlement:
        delay = get_settings().RETRY.delay_after(self._number)
        if delay is None:
            return self._end(Status.FAILED, outcome or "attempts exhausted")
        return self._end(Status.ENQUEUED, outcome, least_wait(delay, self._asked))

    @property
    def _doubt(self) -> str:
        return IN_DOUBT if self._begun.in_doubt else ""

    def _end(self, status: Status, outcome: str = "", delay: timedelta = _NOW) -> Settlement:
        return Settlement(self._begun, status, self._calls, outcome, delay)


def channel_of(envelope: Envelope) -> str:
    """Return the channel that the name of the queue ends with."""
    return envelope.queue.rpartition("-")[2]


def _first(routes: Sequence[Route]) -> Route:
    """Return whom to expect to be called first: the first that is not left alone."""
    return next((each for each in routes if not each.circuit.is_open), routes[0])


async def _admitted(route: Route) -> Hold:
    """Return a permit to call the provider now, or how long it may not be called."""
    pause = route.circuit.wait()
    if pause or route.rate is None:
        return Hold(pause)
    timeout = time.monotonic() + get_settings().WAIT.total_seconds()
    while (permit := await route.rate.ahold()).wait:
        if time.monotonic() + permit.wait.total_seconds() > timeout:
            route.circuit.spare()
            return permit
        await asyncio.sleep(permit.wait.total_seconds())
    return permit


def _spare(route: Route, permit: Hold) -> None:
    """Leave to others a call that was admitted, and is not made."""
    route.circuit.spare()
    if route.rate is not None:
        route.rate.give_back(permit)


# In the threads that write: each call is repeated while the database is away.


def begin_all(starts: Sequence[Start]) -> list[Begun | None]:
    """Begin notifications, each for its message; None for one that is not to be sent."""
    envelopes = [start.envelope for start in starts]
    chosen = {start.envelope.key: start.provider for start in starts}
    found = repeat(USING, lambda: services.begin_many(envelopes, chosen))
    return [_own(found.get(each.key), each) for each in envelopes]


def _own(begun: Begun | None, envelope: Envelope) -> Begun | None:
    """Return it only to whoever asked under its lease; a process may have an old one in flight."""
    return begun if begun is not None and str(begun.lease_id) == envelope.lease_id else None


def _settle(settlements: Sequence[Settlement]) -> list[Status | None]:
    found = repeat(USING, lambda: services.settle_many(settlements))
    return [found.get(each.begun.id) for each in settlements]


def _turn_to(turns: Sequence[Turn]) -> list[bool]:
    return [repeat(USING, partial(services.turn_to, *turn)) for turn in turns]


def _dispatcher(key: None) -> Dispatcher:
    return Dispatcher()


_dispatchers: Final[LoopLocal[None, Dispatcher]] = LoopLocal(_dispatcher, Dispatcher.aclose)


async def dispatch(envelope: Envelope) -> None:
    """Have the notification of this message sent, by the running loop's dispatcher."""
    await _dispatchers.of(None).dispatch(envelope)
