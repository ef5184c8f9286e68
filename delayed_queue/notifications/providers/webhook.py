"""Webhooks: the body is posted, signed, to the recipient's url by the callback client."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from django.db import DEFAULT_DB_ALIAS, Error

from delayed_queue.db.gathering import LoopLocal
from delayed_queue.exceptions import InvalidMessage, ResourceUnavailable, UrlRefused
from delayed_queue.http.callbacks.breaker import Breaker, Deferred, HostState
from delayed_queue.http.callbacks.client import send
from delayed_queue.http.callbacks.endpoints import place_of
from delayed_queue.http.callbacks.outcomes import CallbackRequest, CallbackResult, Failure
from delayed_queue.http.callbacks.signing import sign
from delayed_queue.notifications.providers.base import Outcome, Verdict, cleaned, failed
from delayed_queue.notifications.providers.http import STATUSES
from delayed_queue.notifications.services import Begun

# Refused by our own guard, or nobody there by that name: no other try will do.
_FINAL = frozenset({Failure.BLOCKED})
LEFT_ALONE: Final = "host-left-alone"
OUTAGE_WAIT: Final = (1.0, 5.0)


class WebhookProvider:
    """Posts to whatever the recipient is, so its failures say nothing of others.

    The ``webhook-id`` is that of the notification at every attempt, and its receivers are told to
    act once for each: so a message whose fate is unknown is sent again. Hosts are those of the
    callbacks: one that is slow has no more of the places than its share, and one that is down is
    left alone by all workers, which counts as an attempt that failed.
    """

    is_idempotent = True
    repeats_in_doubt = False

    def __init__(self, name: str, *, secrets: Sequence[str]) -> None:
        self.name = name
        self._secrets = list(secrets)
        self._breakers: LoopLocal[str, Breaker] = LoopLocal(Breaker)

    async def send(self, begun: Begun) -> Outcome:
        body = begun.body.encode()
        try:
            headers = sign(self._secrets, str(begun.id), int(time.time()), body)
            request = CallbackRequest(begun.recipient, body, headers)
            host = self._breakers.of(DEFAULT_DB_ALIAS).state_of(place_of(begun.recipient).host)
        except UrlRefused:
            return Outcome(Verdict.PERMANENT, str(Failure.BLOCKED))
        except InvalidMessage as error:
            return failed(Verdict.PERMANENT, error)
        return await self._send(request, host, str(begun.id))

    async def _send(self, request: CallbackRequest, host: HostState, key: str) -> Outcome:
        breaker = self._breakers.of(DEFAULT_DB_ALIAS)
        try:
            await breaker.check(host)
            probe = await breaker.begin(host)
        except Deferred as error:
            if time.monotonic() < host.open_until:
                return Outcome(Verdict.TRANSIENT, LEFT_ALONE)
            return Outcome(Verdict.POSTPONED, retry_after=error.delay)
        except (Error, ResourceUnavailable):
            delay = random.uniform(*OUTAGE_WAIT)  # noqa: S311 - to spread a herd
            return Outcome(Verdict.POSTPONED, retry_after=timedelta(seconds=delay))
        result: CallbackResult | None = None
        try:
            result = await send(request)
        finally:
            # What cannot be noted must not cost the answer.
            with suppress(Error, ResourceUnavailable):
                await breaker.end(host, probe, result)
        return _outcome_of(result, key)

    def close(self) -> None:
        """Nothing: the client belongs to the loop, and ends with it."""


def _outcome_of(result: CallbackResult, key: str) -> Outcome:
    if result.is_success:
        return Outcome(Verdict.ACCEPTED, str(result.status), key)
    return Outcome(
        _verdict_of(result),
        str(result.status or result.failure),
        retry_after=result.retry_after,
        detail=cleaned(result.excerpt),
    )


def _verdict_of(result: CallbackResult) -> Verdict:
    if result.failure in _FINAL:
        return Verdict.PERMANENT
    if result.is_ambiguous:
        return Verdict.AMBIGUOUS
    if result.status is None:
        return Verdict.TRANSIENT
    return STATUSES.get(result.status, Verdict.PERMANENT)
