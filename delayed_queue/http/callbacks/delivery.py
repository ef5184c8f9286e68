"""The handler of messages with a url: send, log the attempt, and retry by the ladder."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Final
from zlib import crc32

from django.db import Error

from delayed_queue.codecs import codec_named
from delayed_queue.db.clock import adatabase_now
from delayed_queue.db.gathering import LoopLocal
from delayed_queue.db.resilience import is_unavailable
from delayed_queue.exceptions import ResourceUnavailable, UrlRefused
from delayed_queue.handlers import Handler, Reject, Retry, Snooze
from delayed_queue.http.callbacks.admission import Admission
from delayed_queue.http.callbacks.attempts import AttemptLog, url_to_show
from delayed_queue.http.callbacks.breaker import TRUST_SECONDS, Deferred, HostCall, quietly
from delayed_queue.http.callbacks.calls import (
    CallbackRequest,
    CallbackResult,
    Failure,
    least_wait,
    sign,
    webhook_id,
)
from delayed_queue.http.callbacks.client import send
from delayed_queue.http.callbacks.endpoints import Endpoints, place_of
from delayed_queue.http.callbacks.gate import Gate, Leave, Withdrawn
from delayed_queue.http.callbacks.guard import current_policy
from delayed_queue.http.jobs.catalogue import kinds_of
from delayed_queue.http.jobs.jobs import batch_counts, initial_retry, policy_of_job, url_of
from delayed_queue.http.jobs.kinds import OWN_SHARDS, Way
from delayed_queue.http.models import CallbackAttempt, Endpoint, Topic
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.retries import RetryPolicy

Deliver = Callable[[Envelope], Awaitable[None]]

# The header of a callback that a batch has added; it is not signed.
COUNTS: Final = "delayed-queue-batch"
OUTAGE_WAIT: Final = (1.0, 5.0)
# A shard rests until its worker reads the host's row again.
TRUST: Final = timedelta(seconds=TRUST_SECONDS)


@dataclass(frozen=True, slots=True)
class Callback:
    """One delivery; ``attempt`` includes the failures that the job was added with."""

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
        self.admission = Admission(using)
        self.gate = Gate(using)
        self.log = AttemptLog(using)
        # For the settings in force now, like the client; cached, because urls repeat.
        self._place_of = lru_cache(1024)(partial(place_of, policy=current_policy()))
        self.gate.open()

    async def close(self) -> None:
        """Write the log and give back what is held, at the end of the loop."""
        await self.log.close()
        await self.gate.close()

    async def send(self, callback: Callback) -> CallbackResult:
        """Send and log the attempt; raises Deferred, with nothing sent, if it may not be sent."""
        try:
            place = self._place_of(callback.url)
        except UrlRefused as error:
            return await self._logged(callback, callback.url, None, _refused(error))
        endpoint = await self.endpoints.of(place)
        async with self.admission.admit(endpoint, place.host) as call:
            call.result = result = await self._post(callback, endpoint, call)
        await self._logged(callback, place.url, endpoint, result)
        if result.disables_endpoint:
            await quietly(self.endpoints.disable(endpoint, "The receiver answered 410 Gone."))
        return result

    async def _post(self, callback: Callback, endpoint: Endpoint, call: HostCall) -> CallbackResult:
        async def enter() -> Leave:
            leave = await self.gate.enter(callback.envelope)
            call.start()
            return leave

        now = await adatabase_now(self._using)
        body = callback.envelope.payload
        secrets = self.endpoints.secrets(endpoint, now)
        headers = sign(secrets, callback.webhook_id, int(now.timestamp()), body)
        if counts := batch_counts(callback.envelope.headers or {}):
            headers[COUNTS] = json.dumps(asdict(counts))
        try:
            return await send(CallbackRequest(callback.url, body, headers), enter)
        except Withdrawn:
            raise Deferred(0) from None

    async def _logged(
        self, callback: Callback, url: str, endpoint: Endpoint | None, result: CallbackResult
    ) -> CallbackResult:
        envelope = callback.envelope
        row = CallbackAttempt(
            key=envelope.key,
            topic=envelope.queue,
            kind=callback.kind,
            webhook_id=callback.webhook_id,
            attempt=callback.attempt,
            started_at=await adatabase_now(self._using) - result.duration,
            duration=result.duration // MILLISECOND,
            status=result.status,
            failure=result.failure or "",
            detail=result.detail.replace("\0", "\ufffd"),
            address=result.address,
            excerpt=result.excerpt.replace("\0", "\ufffd"),
            is_ambiguous=result.is_ambiguous,
            endpoint_id=None if endpoint is None else endpoint.pk,
            url=url_to_show(url),
        )
        self.log.add(row)
        return result


_contexts: Final[LoopLocal[str, DeliveryContext]] = LoopLocal(
    DeliveryContext, DeliveryContext.close
)


@lru_cache(maxsize=10_000)
def deliverer(using: str, kind: str, *, has_one_host: bool) -> Deliver:
    """Return the handler of a shard's callbacks: the same object for the same shard.

    A shard with one host rests while the host takes nothing: the worker claims none of it.
    """

    async def deliver(envelope: Envelope) -> None:
        callback = _read(envelope, kind)
        try:
            await _deliver(_contexts.of(using), callback)
        except Deferred as error:
            rests = has_one_host and error.host is not None and error.host.takes_nothing
            raise Snooze(error.delay, rest=TRUST if rests else timedelta(0)) from None

    deliver.__qualname__ = "deliver"
    return deliver


async def _deliver(context: DeliveryContext, callback: Callback) -> None:
    """Send; raise the outcome of a message that was not received, or Deferred."""
    try:
        result = await context.send(callback)
    except (Error, ResourceUnavailable) as error:
        # Nothing was sent. An outage of the database is no failure of the receiver, but a refusal
        # counts as an attempt of this job.
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


def _read(envelope: Envelope, kind: str) -> Callback:
    headers: dict[str, Any] = envelope.headers or {}
    url = url_of(headers)
    if url is None:
        raise Reject("no url")
    policy = policy_of_job(headers)
    attempt = initial_retry(headers) + envelope.attempt
    if attempt > max(policy.max_attempts, initial_retry(headers) + 1):
        # Its last delivery was counted, but died with its worker.
        raise Reject("attempts exhausted: no answer")
    named = webhook_id(
        envelope.queue, envelope.key, str(envelope.scheduled_at_ms), str(crc32(envelope.payload))
    )
    return Callback(envelope, kind, url, attempt, policy.delay_after(attempt), named)


def _refused(error: UrlRefused) -> CallbackResult:
    return CallbackResult(timedelta(0), Failure.BLOCKED, str(error))


def _sentence(callback: Callback, result: CallbackResult) -> str:
    return f"attempt {callback.attempt}: {result.code}: {result.detail}"


PAGE: Final = 1000

# The handler applies the ladder of each message; this policy never ends before it.
_POLICY: Final = RetryPolicy((timedelta(seconds=15),), 2**31 - 1)


def handlers_of_topics(using: str) -> Iterator[Handler]:
    """Yield a handler for each shard of each topic's callbacks."""
    codec, after = codec_named("bytes"), ""
    while topics := Topic.objects.after(after, PAGE, using=using):
        for topic in topics:
            for shard, kind in enumerate(kinds_of(topic, Way.CALLBACK)):
                function = deliverer(using, kind, has_one_host=shard < OWN_SHARDS)
                yield Handler(topic.name, function, codec, kind, _POLICY)
        if len(topics) < PAGE:
            return
        after = topics[-1].name
