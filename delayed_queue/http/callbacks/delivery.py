"""The handler of messages that carry a url: send, note what came of it, answer by the ladder."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Final
from zlib import crc32

from django.db import Error

from delayed_queue.db.gathering import LoopLocal
from delayed_queue.exceptions import ResourceUnavailable, UrlRefused
from delayed_queue.handlers import Reject, Retry, Snooze
from delayed_queue.http.callbacks.attempts import AttemptLog
from delayed_queue.http.callbacks.breaker import REST, Breaker, Deferred, HostState
from delayed_queue.http.callbacks.client import send
from delayed_queue.http.callbacks.endpoints import (
    DISABLED_WAIT,
    Endpoints,
    KnownEndpoint,
    Place,
    place_of,
)
from delayed_queue.http.callbacks.gate import Gate, Leave, Withdrawn
from delayed_queue.http.callbacks.outcomes import CallbackRequest, CallbackResult, Failure
from delayed_queue.http.callbacks.signing import sign, webhook_id
from delayed_queue.http.callbacks.slots import Slots
from delayed_queue.http.jobs.jobs import url_of
from delayed_queue.http.jobs.ladders import initial_retry, policy_of_job
from delayed_queue.http.store.callbacks import AttemptRow
from delayed_queue.messages import MILLISECOND, Envelope, to_milliseconds

logger = logging.getLogger("delayed_queue")

Deliver = Callable[[Envelope], Awaitable[None]]

OUTAGE_WAIT: Final = (1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Callback:
    """One delivery, in the words of the HTTP side; ``attempt`` counts the failures it came with."""

    envelope: Envelope
    kind: str
    url: str
    attempt: int
    wait: timedelta | None
    webhook_id: str


class DeliveryContext:
    """The state that the callbacks of one event loop share, for one database alias."""

    def __init__(self, using: str) -> None:
        self.endpoints = Endpoints(using)
        self.breaker = Breaker(using)
        self.slots = Slots(using)
        self.gate = Gate(using)
        self.log = AttemptLog(using)
        self.gate.open()

    async def close(self) -> None:
        """Write what is to be written, and give back what is held, at the end of the loop."""
        await self.log.close()
        await _quietly(self.slots.close())
        await self.gate.close()

    async def send(self, callback: Callback) -> CallbackResult:
        """Send if the endpoint and its host let it; raises Deferred before anything is dialled."""
        try:
            place = place_of(callback.url)
        except UrlRefused as error:
            return self._logged(callback, None, _refused(error))
        endpoint = await self.endpoints.of(place)
        if endpoint.is_disabled:
            raise Deferred(random.uniform(*DISABLED_WAIT))  # noqa: S311 - to spread a herd
        try:
            result = await self._within_limits(callback, endpoint, place)
        except Deferred as error:
            error.is_for_host = self.breaker.state_of(place.host).takes_nothing()
            raise
        self._logged(callback, endpoint, result)
        if result.disables_endpoint:
            await _quietly(self.endpoints.disable(endpoint, "The receiver answered 410 Gone."))
        return result

    async def _within_limits(
        self, callback: Callback, endpoint: KnownEndpoint, place: Place
    ) -> CallbackResult:
        host = self.breaker.state_of(place.host)
        await self.breaker.check(host)
        limit = endpoint.row.concurrency
        if limit is None:
            return await self._send(callback, endpoint, place)
        await self.slots.take(endpoint.id, limit)
        try:
            return await self._send(callback, endpoint, place)
        finally:
            self.slots.give(endpoint.id)

    async def _send(
        self, callback: Callback, endpoint: KnownEndpoint, place: Place
    ) -> CallbackResult:
        if endpoint.rate is not None:
            wait = await endpoint.rate.atake()
            if wait:
                # What waits for a low rate comes back spread over the time it needs.
                raise Deferred(wait.total_seconds() * random.uniform(1, 3) + 0.05)  # noqa: S311
        host = self.breaker.state_of(place.host)
        probe = await self.breaker.begin(host)
        result: CallbackResult | None = None
        try:
            enter = partial(self._enter, callback.envelope, host)
            result = await send(_request(callback, endpoint), enter)
        except Withdrawn:
            raise Deferred(0) from None
        finally:
            await _quietly(self.breaker.end(host, probe, result))
        return result

    async def _enter(self, envelope: Envelope, host: HostState) -> Leave:
        """Pass the gate; until then what the database takes is not the host's silence."""
        host.at_gate += 1
        try:
            return await self.gate.enter(envelope)
        finally:
            host.at_gate -= 1
            host.heard_at = time.monotonic()

    def _logged(
        self, callback: Callback, endpoint: KnownEndpoint | None, result: CallbackResult
    ) -> CallbackResult:
        envelope = callback.envelope
        self.log.add(
            AttemptRow(
                key=envelope.key,
                topic=envelope.queue,
                kind=callback.kind,
                webhook_id=callback.webhook_id,
                attempt=callback.attempt,
                started_at=to_milliseconds(result.started_at),
                duration=result.duration // MILLISECOND,
                status=result.status,
                failure="" if result.failure is None else str(result.failure),
                detail=result.detail.replace("\0", "\ufffd"),
                address=result.address,
                excerpt=result.excerpt.replace("\0", "\ufffd"),
                is_ambiguous=result.is_ambiguous,
                endpoint_id=None if endpoint is None else endpoint.id,
            )
        )
        return result


_contexts: Final[LoopLocal[str, DeliveryContext]] = LoopLocal(
    DeliveryContext, DeliveryContext.close
)


@lru_cache(maxsize=10_000)
def deliverer(using: str, kind: str, ladder: str, jitter: float, *, has_one_host: bool) -> Deliver:
    """Return the handler of a shard's callbacks; for the same shard the same, as sources must.

    A shard of one host rests while that takes nothing.
    """

    async def deliver(envelope: Envelope) -> None:
        callback = _read(envelope, kind, ladder, jitter)
        try:
            await _deliver(_contexts.of(using), callback)
        except Deferred as error:
            rest = REST if has_one_host and error.is_for_host else timedelta(0)
            raise Snooze(error.delay, rest=rest) from None

    deliver.__qualname__ = "deliver"
    return deliver


async def _deliver(context: DeliveryContext, callback: Callback) -> None:
    """Send; raise what becomes of a message that was not received, Deferred before a dial."""
    try:
        result = await context.send(callback)
    except (Error, ResourceUnavailable) as error:
        # Before anything was dialled: an outage of ours is no failure of theirs.
        logger.warning("event=callback_deferred error=%s", type(error).__name__)
        delay = random.uniform(*OUTAGE_WAIT)  # noqa: S311 - to spread a herd
        raise Snooze(timedelta(seconds=delay)) from error
    if result.is_success:
        return
    text = _sentence(callback, result)
    if callback.wait is None:
        await context.log.flush()
        raise Reject(f"attempts exhausted: {_outcome(result)}", text)
    raise Retry(callback.wait if result.retry_after is None else result.retry_after, text)


def _read(envelope: Envelope, kind: str, ladder: str, jitter: float) -> Callback:
    headers: dict[str, Any] = envelope.headers or {}
    url = url_of(headers)
    if url is None:
        raise Reject("no url")
    policy = policy_of_job(headers, ladder, jitter)
    attempt = initial_retry(headers) + envelope.attempt
    if attempt > max(policy.max_attempts, initial_retry(headers) + 1):
        # All its deliveries were counted, and the last of them died with its worker.
        raise Reject("attempts exhausted: no answer")
    named = webhook_id(
        envelope.queue, envelope.key, str(envelope.scheduled_at_ms), str(crc32(envelope.payload))
    )
    return Callback(envelope, kind, url, attempt, policy.delay_after(attempt), named)


def _request(callback: Callback, endpoint: KnownEndpoint) -> CallbackRequest:
    body = callback.envelope.payload
    headers = sign(endpoint.secrets, callback.webhook_id, int(time.time()), body)
    return CallbackRequest(callback.url, body, headers)


def _refused(error: UrlRefused) -> CallbackResult:
    return CallbackResult(datetime.now(UTC), timedelta(0), Failure.BLOCKED, str(error))


def _outcome(result: CallbackResult) -> str:
    return str(result.failure if result.status is None else result.status)


def _sentence(callback: Callback, result: CallbackResult) -> str:
    return f"attempt {callback.attempt}: {_outcome(result)}: {result.detail}"


async def _quietly(work: Awaitable[Any]) -> None:
    """Await what must not cost the result of a callback that was sent."""
    try:
        await work
    except (Error, ResourceUnavailable) as error:
        logger.warning("event=callback_not_noted error=%s", type(error).__name__)
