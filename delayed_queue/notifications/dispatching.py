"""The dispatcher: starts a notification, has it sent, and returns how the attempt ended.

No transaction is open between the steps: the start commits, providers are called, and the statement
that acknowledges or releases the message writes the end. Notifications that start at the same time
share a statement.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final, NamedTuple

from asgiref.sync import sync_to_async
from django.db import Error

from delayed_queue import Envelope
from delayed_queue.db.clock import database_now
from delayed_queue.db.gathering import LoopGathering, LoopLocal
from delayed_queue.db.resilience import is_unavailable, repeat
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.http.callbacks.calls import least_wait
from delayed_queue.notifications import services
from delayed_queue.notifications.channels import Route, routes_of, throttle_of
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.hours import Quiet
from delayed_queue.notifications.models import Delivery, Status
from delayed_queue.notifications.providers import Outcome, Verdict, is_late
from delayed_queue.notifications.services import USING, Outgoing
from delayed_queue.notifications.settling import IN_DOUBT, Call, Settlement
from delayed_queue.rates import State

_NOW: Final = timedelta(0)
# The start of a notification waits for others, to share a commit.
GATHER_SECONDS: Final = 0.005
# Delay after a call that was not made: the provider has no room, or the database is unavailable.
_POSTPONED: Final = timedelta(seconds=1)
_RECORDED: Final = {
    Verdict.ACCEPTED: Delivery.Outcome.SENT,
    Verdict.TRANSIENT: Delivery.Outcome.FAILED,
    Verdict.PERMANENT: Delivery.Outcome.REFUSED,
    Verdict.AMBIGUOUS: Delivery.Outcome.AMBIGUOUS,
}
_ENDINGS: Final = {Status.EXPIRED: "expired", Status.CANCELLED: "suppressed"}


class Start(NamedTuple):
    """A message whose notification starts, and the provider to call first."""

    envelope: Envelope
    provider: str


Starts = LoopGathering[None, Start, Outgoing | None]


async def dispatch(envelope: Envelope) -> Settlement | None:
    """Send the notification of this message, and return how the attempt ended.

    None if the notification has ended, or the lease is lost. During a call of a provider the state
    of the envelope is the notification.
    """
    routes = routes_of(channel_of(envelope))
    outgoing = await _starts.of(None).ask(None, Start(envelope, _first(routes).name))
    return None if outgoing is None else await Attempt(envelope, outgoing, routes).run()


class Attempt:
    """One attempt: the providers in their order, until one accepts it or none can be called.

    A call that may have been accepted ends it. Then no other provider is called, and the same one
    only if it sends once per key.
    """

    def __init__(self, envelope: Envelope, outgoing: Outgoing, routes: Sequence[Route]) -> None:
        self._envelope = envelope
        self._outgoing = outgoing
        self._calls: list[Call] = []
        self._pauses: list[timedelta] = []
        self._asked: timedelta = _NOW
        self._routes = [
            route for route in routes if not outgoing.in_doubt or route.name == outgoing.provider
        ]
        self._provider = outgoing.provider
        self._throttle = throttle_of(outgoing.channel, outgoing.recipient_hash)

    async def run(self) -> Settlement:
        try:
            # Fetched files are in memory until they are sent.
            async with _fetches.of(None) if '"url":' in self._outgoing.mail else nullcontext():
                return await self._run()
        except (Error, ResourceUnavailable) as error:
            # During a call it is the provider's own database, and the message may have been sent.
            if self._envelope.state is not None or not is_unavailable(error):
                raise
            self._pauses.append(_POSTPONED)
            return self._postponed()

    async def _run(self) -> Settlement:
        if self._outgoing.verdict in _ENDINGS:
            return self._end_unsent(Status(self._outgoing.verdict))
        may_repeat = any(each.provider.is_idempotent for each in self._routes)
        if self._outgoing.in_doubt and not may_repeat:
            return self._end(Status.FAILED, IN_DOUBT)
        if self._outgoing.quiet and (pause := self._quiet_for()):
            return self._end(Status.ENQUEUED, None, pause)
        # A recipient's throttle is checked first: it needs no permit of a provider.
        if self._throttle and (pause := self._throttle.left()):
            return self._end(Status.ENQUEUED, None, pause)
        for route in self._routes:
            end = await self._try(route)
            if end is not None:
                return end
        return self._postponed()

    def _quiet_for(self) -> timedelta | None:
        now = database_now(USING)
        end = Quiet.read(self._outgoing.quiet).until(now)
        return None if end is None else end - now

    async def _try(self, route: Route) -> Settlement | None:
        """Call one provider; return how the attempt ends by that, or None for the next."""
        if self._outgoing.mail and self._outgoing.extras is None:
            # Before a permit, which a slow download would hold.
            if pause := route.circuit.left():
                self._pauses.append(pause)
                return None
            if (end := await self._add_extras()) is not None:
                return end
        if pause := await _admitted(route):
            self._pauses.append(pause)
            return None
        end = await self._held_back(route)
        if end is not None:
            await _spare(route)
            return end
        outcome = await self._call(route)
        return self._judged(outcome, route)

    async def _add_extras(self) -> Settlement | None:
        """Read what the mail has beside its texts; return how the attempt ends if that fails."""
        # Imported late, because it imports msgspec and few mails need it.
        from delayed_queue.notifications.mail import NotFetched, extras_of

        try:
            self._outgoing = replace(self._outgoing, extras=await extras_of(self._outgoing))
        except NotFetched as error:
            if error.is_final:
                return self._end(Status.FAILED, f"{error}{self._doubt}")
            return self._again(IN_DOUBT if self._doubt else str(error), error.code)
        return None

    async def _held_back(self, route: Route) -> Settlement | None:
        """Return how the attempt ends before a call that could be made; None if it may be made.

        The recipient's permit is taken after the provider's, whose permits come much sooner.
        """
        if is_late(self._outgoing):
            return self._end_unsent(Status.EXPIRED)
        if self._throttle is not None:
            if pause := await self._throttle.atake():
                return self._end(Status.ENQUEUED, None, pause)
            # One for the attempt, however many providers are called.
            self._throttle = None
        if route.name == self._provider or await self._record_provider(route):
            return None
        # The lease is lost.
        return self._end(Status.ENQUEUED, None)

    async def _record_provider(self, route: Route) -> bool:
        self._provider = route.name
        return await sync_to_async(services.record_provider)(self._outgoing, route.name)

    async def _call(self, route: Route) -> Outcome:
        began_at = time.monotonic()
        self._envelope.state = self._outgoing
        outcome = None
        try:
            outcome = await route.provider.send(self._outgoing)
        finally:
            await _leave(route, outcome)
        self._envelope.state = None
        if outcome.verdict not in _RECORDED:
            # No call was made, so there is no result of a probe.
            route.circuit.spare()
        else:
            route.circuit.note(is_failure=outcome.blames_provider)
            self._calls.append(_recorded(route, outcome, time.monotonic() - began_at))
        return outcome

    def _judged(self, outcome: Outcome, route: Route) -> Settlement | None:
        if outcome.verdict not in (Verdict.POSTPONED, Verdict.BUSY):
            self._asked = max(self._asked, outcome.retry_after or _NOW)
        match outcome.verdict:
            case Verdict.ACCEPTED:
                return self._end(Status.SUCCESSFULLY_PROCESSED, "")
            case Verdict.PERMANENT:
                return self._end(Status.FAILED, f"refused: {outcome.code}")
            case Verdict.LATE:
                return self._end_unsent(Status.EXPIRED)
            case Verdict.POSTPONED | Verdict.BUSY:
                self._pauses.append(outcome.retry_after or _POSTPONED)
                return None
            case Verdict.AMBIGUOUS:
                is_repeatable = route.provider.is_idempotent
                return (
                    self._again(IN_DOUBT) if is_repeatable else self._end(Status.FAILED, IN_DOUBT)
                )
            case _:
                return None

    def _postponed(self) -> Settlement:
        """End an attempt in which no provider accepted the message."""
        if self._calls:
            return self._again(IN_DOUBT if self._outgoing.in_doubt else None)
        # Spread, so that messages that waited together do not come back together.
        pause = min(self._pauses) * random.uniform(1.0, 1.5)  # noqa: S311
        return self._end(Status.ENQUEUED, None, pause)

    def _again(self, outcome: str | None, error: str = "") -> Settlement:
        delay = get_settings().RETRY.delay_after(self._envelope.attempt)
        if delay is None:
            return self._end(Status.FAILED, outcome or "attempts exhausted")
        end = self._end(Status.ENQUEUED, outcome, least_wait(delay, self._asked))
        return replace(end, error=error)

    @property
    def _doubt(self) -> str:
        return f", {IN_DOUBT}" if self._outgoing.in_doubt else ""

    def _end_unsent(self, status: Status) -> Settlement:
        return self._end(status, _ENDINGS[status] + self._doubt)

    def _end(self, status: Status, outcome: str | None, delay: timedelta = _NOW) -> Settlement:
        if status == Status.ENQUEUED and is_late(self._outgoing, delay):
            is_in_doubt = outcome == IN_DOUBT or self._outgoing.in_doubt
            outcome = IN_DOUBT if is_in_doubt else "expired"
            status = Status.EXPIRED
        return Settlement(status, self._calls, outcome, delay, self._outgoing.attempt)


def channel_of(envelope: Envelope) -> str:
    """Return the channel that the name of the queue ends with."""
    return envelope.queue.rpartition("-")[2]


def _first(routes: Sequence[Route]) -> Route:
    """Return the route that will probably be called first: the first with a closed circuit."""
    return next((each for each in routes if not each.circuit.is_open), routes[0])


async def _admitted(route: Route) -> timedelta:
    """Return zero if the provider may be called now, or how long it may not."""
    timeout = time.monotonic() + get_settings().WAIT.total_seconds()
    if route.circuit.left() or not await _entered(route):
        return route.circuit.left() or _POSTPONED
    if pause := route.circuit.wait():
        await _leave(route, None)
        return pause
    while route.rate is not None and (pause := await route.rate.atake()):
        if time.monotonic() + pause.total_seconds() > timeout:
            await _spare(route)
            return pause
        await asyncio.sleep(pause.total_seconds())
    return _NOW


async def _spare(route: Route) -> None:
    """Give back the probe and the room of a call that is not made."""
    route.circuit.spare()
    await _leave(route, None)


async def _entered(route: Route) -> bool:
    """Enter the provider's room, after a short wait for a call to leave it; False if it is full."""
    if route.room.enter():
        return True
    changed = _changes.of(route.name)
    with suppress(TimeoutError):
        async with asyncio.timeout(get_settings().WAIT.total_seconds()), changed:
            return (
                await changed.wait_for(lambda: route.circuit.left() or route.room.enter()) is True
            )
    return False


async def _leave(route: Route, outcome: Outcome | None) -> None:
    verdict = None if outcome is None else outcome.verdict
    is_success, is_refused = verdict is Verdict.ACCEPTED, verdict is Verdict.BUSY
    route.room.leave(is_success=is_success, is_refused=is_refused)
    if outcome is not None and is_refused:
        _relieve(route, outcome)
    changed = _changes.of(route.name)
    async with changed:
        # Two, because the room may have grown by one; all where none can be called.
        changed.notify(_ALL if route.circuit.left() else 2)


def _relieve(route: Route, outcome: Outcome) -> None:
    """Pause a provider that requests it, or refuses even a single call."""
    if outcome.retry_after or not route.room.used:
        seconds = outcome.retry_after and outcome.retry_after.total_seconds()
        route.circuit.set(State.OPEN, seconds or None)


def _recorded(route: Route, outcome: Outcome, seconds: float) -> Call:
    return Call(
        route.name,
        _RECORDED[outcome.verdict],
        outcome.provider_id,
        "" if outcome.verdict is Verdict.ACCEPTED else outcome.code,
        outcome.detail,
        timedelta(seconds=seconds),
    )


def start_all(starts: Sequence[Start]) -> list[Outgoing | None]:
    """Start notifications, each for its message; None for one that is not to be sent."""
    envelopes = [start.envelope for start in starts]
    chosen = {start.envelope.key: start.provider for start in starts}
    found = repeat(USING, lambda: services.start_many(envelopes, chosen))
    return [_own(found.get(each.key), each) for each in envelopes]


def _own(outgoing: Outgoing | None, envelope: Envelope) -> Outgoing | None:
    """Return it for the envelope whose lease it has; this process may hold an older envelope."""
    return (
        outgoing if outgoing is not None and str(outgoing.lease_id) == envelope.lease_id else None
    )


async def _start_all(place: None, starts: list[Start]) -> Sequence[Outgoing | None]:
    return await sync_to_async(start_all)(starts)


_ALL: Final = 1_000_000


# Notified when a call leaves the room of that provider.
_changes: Final[LoopLocal[str, asyncio.Condition]] = LoopLocal(lambda _: asyncio.Condition())
# Mails with files to fetch, at a time: each may have 10 MiB.
_fetches: Final[LoopLocal[None, asyncio.Semaphore]] = LoopLocal(lambda _: asyncio.Semaphore(8))
_starts: Final[LoopLocal[None, Starts]] = LoopLocal(
    lambda _: LoopGathering(_start_all, pause=GATHER_SECONDS)
)
