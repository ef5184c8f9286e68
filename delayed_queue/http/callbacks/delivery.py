"""The handler of messages that carry a url: send, log what came of it, answer by the ladder."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import urlsplit
from zlib import crc32

from asgiref.sync import sync_to_async
from django.db import Error

from delayed_queue.codecs import codec_named
from delayed_queue.db.clock import adatabase_now
from delayed_queue.db.gathering import LoopLocal
from delayed_queue.db.resilience import is_unavailable, write_by_halves
from delayed_queue.exceptions import ResourceUnavailable, UrlRefused
from delayed_queue.handlers import Handler, Reject, Retry, Snooze
from delayed_queue.http.callbacks.breaker import REST, Breaker, Deferred, HostState, quietly
from delayed_queue.http.callbacks.calls import (
    CallbackRequest,
    CallbackResult,
    Failure,
    least_wait,
    sign,
    webhook_id,
)
from delayed_queue.http.callbacks.client import send
from delayed_queue.http.callbacks.endpoints import (
    DISABLED_WAIT,
    Endpoints,
    KnownEndpoint,
    Place,
    Slots,
    place_of,
)
from delayed_queue.http.callbacks.gate import Gate, Leave, Withdrawn
from delayed_queue.http.callbacks.guard import current_policy
from delayed_queue.http.conf import callback_settings
from delayed_queue.http.jobs.catalogue import kinds_of
from delayed_queue.http.jobs.jobs import initial_retry, policy_of_job, url_of
from delayed_queue.http.jobs.kinds import OWN_SHARDS, Way
from delayed_queue.http.models import CallbackAttempt, Topic
from delayed_queue.http.store.callbacks import AttemptRow
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND, Envelope, to_milliseconds
from delayed_queue.retries import RetryPolicy

# How long attempts gather, and how many are written at once. What a killed worker had gathered is
# lost; its jobs are not.
GATHER_SECONDS: Final = 0.2
# Of a url so much is logged.
_SHOWN: Final = 1000
MOST_AT_ONCE: Final = 1000
# While the database does not take them, the oldest beyond so many are given up.
MOST_WAITING: Final = 20_000
PRUNE_SECONDS: Final = 60.0
MOST_PRUNED: Final = 10_000


class AttemptLog:
    """Attempts on their way to the table; of one database alias and one event loop."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._waiting: deque[AttemptRow] = deque(maxlen=MOST_WAITING)
        self._writer: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._prune_at = 0.0

    def add(self, row: AttemptRow) -> None:
        """Have an attempt written soon."""
        self._waiting.append(row)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write_soon())

    async def flush(self) -> None:
        """Return when what was added before is written, or could not be."""
        async with self._lock:
            while self._waiting:
                rows = [self._waiting[n] for n in range(min(len(self._waiting), MOST_AT_ONCE))]
                if not await self._write(rows):
                    return

    async def close(self) -> None:
        """Write what is there, at the end of the event loop."""
        if self._writer is not None:
            # Not in the middle of a statement: what that wrote would be written again.
            async with self._lock:
                self._writer.cancel()
            await asyncio.wait([self._writer])
        await self.flush()

    async def _write_soon(self) -> None:
        # Before writing: what is added meanwhile would else wait for the next one.
        if time.monotonic() >= self._prune_at:
            # As long as there is more, with every write: as fast as the table can grow.
            is_done = await self._prune() < MOST_PRUNED
            self._prune_at = time.monotonic() + PRUNE_SECONDS if is_done else 0.0
        await asyncio.sleep(GATHER_SECONDS)
        await self.flush()

    async def _write(self, rows: list[AttemptRow]) -> bool:
        add = partial(CallbackAttempt.objects.add, using=self._using)
        try:
            await sync_to_async(write_by_halves)(rows, add, _not_logged)
        except (Error, ResourceUnavailable) as error:
            log(logging.WARNING, "attempts_not_logged", error=described(error))
            return False
        for _ in rows:
            self._waiting.popleft()
        return True

    async def _prune(self) -> int:
        age = callback_settings().ATTEMPTS_RETENTION // MILLISECOND
        prune = sync_to_async(CallbackAttempt.objects.prune)
        try:
            return await prune(age, MOST_PRUNED, using=self._using)
        except Error as error:
            log(logging.WARNING, "attempts_not_pruned", error=type(error).__name__)
            return 0


def _not_logged(row: AttemptRow, error: Error) -> None:
    """Report an attempt that the database refuses to log; the others are logged without it."""
    fields = {"topic": row.topic, "key": row.key, "error": described(error)}
    log(logging.WARNING, "attempts_not_logged", **fields)


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
        self._using = using
        self.endpoints = Endpoints(using)
        self.breaker = Breaker(using)
        self.slots = Slots(using)
        self.gate = Gate(using)
        self.log = AttemptLog(using)
        # As the client: of the settings in force now, and once for urls that come again and again.
        self._place_of = lru_cache(1024)(partial(place_of, policy=current_policy()))
        self.gate.open()

    async def close(self) -> None:
        """Write what is to be written, and give back what is held, at the end of the loop."""
        await self.log.close()
        await quietly(self.slots.close())
        await self.gate.close()

    async def send(self, callback: Callback) -> CallbackResult:
        """Send if the endpoint and its host let it; raises Deferred before anything is dialled."""
        try:
            place = self._place_of(callback.url)
        except UrlRefused as error:
            return await self._logged(callback, callback.url, None, _refused(error))
        endpoint = await self.endpoints.of(place)
        if endpoint.is_disabled:
            raise Deferred(random.uniform(*DISABLED_WAIT))  # noqa: S311 - to spread a herd
        try:
            result = await self._within_limits(callback, endpoint, place)
        except Deferred as error:
            error.is_for_host = self.breaker.state_of(place.host).takes_nothing()
            raise
        await self._logged(callback, place.url, endpoint, result)
        if result.disables_endpoint:
            await quietly(self.endpoints.disable(endpoint, "The receiver answered 410 Gone."))
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
        enter = partial(self._enter, callback.envelope, host)
        try:
            request = _request(callback, endpoint, await adatabase_now(self._using))
            return await self.breaker.run(host, lambda: send(request, enter))
        except Withdrawn:
            raise Deferred(0) from None

    async def _enter(self, envelope: Envelope, host: HostState) -> Leave:
        """Pass the gate; until then what the database takes is not the host's silence."""
        host.at_gate += 1
        try:
            return await self.gate.enter(envelope)
        finally:
            host.at_gate -= 1
            host.heard_at = time.monotonic()

    async def _logged(
        self,
        callback: Callback,
        url: str,
        endpoint: KnownEndpoint | None,
        result: CallbackResult,
    ) -> CallbackResult:
        envelope = callback.envelope
        started_at = await adatabase_now(self._using) - result.duration
        self.log.add(
            AttemptRow(
                key=envelope.key,
                topic=envelope.queue,
                kind=callback.kind,
                webhook_id=callback.webhook_id,
                attempt=callback.attempt,
                started_at=to_milliseconds(started_at),
                duration=result.duration // MILLISECOND,
                status=result.status,
                failure="" if result.failure is None else str(result.failure),
                detail=result.detail.replace("\0", "\ufffd"),
                address=result.address,
                excerpt=result.excerpt.replace("\0", "\ufffd"),
                is_ambiguous=result.is_ambiguous,
                endpoint_id=None if endpoint is None else endpoint.id,
                url=url_to_show(url),
            )
        )
        return result


@lru_cache(maxsize=1024)
def url_to_show(url: str) -> str:
    """Return the url without what may be a secret: user, password, and the text of its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query=parts.query and "…", fragment="").geturl()[:_SHOWN]


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
        # Before anything was sent: an outage of our database is no failure of the receiver. A
        # refusal is an attempt of this job, which waits by its ladder.
        if not is_unavailable(error):
            raise
        log(logging.WARNING, "callback_deferred", error=described(error))
        delay = random.uniform(*OUTAGE_WAIT)  # noqa: S311 - to spread a herd
        raise Snooze(timedelta(seconds=delay)) from error
    if result.is_success:
        return
    text = _sentence(callback, result)
    if callback.wait is None:
        await context.log.flush()
        raise Reject(f"attempts exhausted: {result.code}", text)
    raise Retry(least_wait(callback.wait, result.retry_after), text)


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


def _request(callback: Callback, endpoint: KnownEndpoint, now: datetime) -> CallbackRequest:
    body = callback.envelope.payload
    headers = sign(endpoint.secrets, callback.webhook_id, int(now.timestamp()), body)
    return CallbackRequest(callback.url, body, headers)


def _refused(error: UrlRefused) -> CallbackResult:
    return CallbackResult(datetime.now(UTC), timedelta(0), Failure.BLOCKED, str(error))


def _sentence(callback: Callback, result: CallbackResult) -> str:
    return f"attempt {callback.attempt}: {result.code}: {result.detail}"


PAGE: Final = 1000

# The ladder travels with the message, and the handler keeps to it; this one never runs out first.
_POLICY: Final = RetryPolicy((timedelta(seconds=15),), 2**31 - 1)


def handlers_of_topics(using: str) -> Iterator[Handler]:
    """Yield a handler for each shard of each topic's callbacks."""
    codec, after = codec_named("bytes"), ""
    while topics := Topic.objects.after(after, PAGE, using=using):
        for topic in topics:
            for shard, kind in enumerate(kinds_of(topic, Way.CALLBACK)):
                function = deliverer(
                    using, kind, topic.ladder, topic.jitter, has_one_host=shard < OWN_SHARDS
                )
                yield Handler(topic.name, function, codec, kind, _POLICY)
        if len(topics) < PAGE:
            return
        after = topics[-1].name
