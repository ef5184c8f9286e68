"""Webhooks: the body is posted, signed, to the recipient's url by the callback client."""

from __future__ import annotations

import time
from collections.abc import Sequence

from delayed_queue.callbacks.client import send
from delayed_queue.callbacks.outcomes import CallbackRequest, CallbackResult, Failure
from delayed_queue.callbacks.signing import sign
from delayed_queue.exceptions import InvalidMessage
from example_project.notifications.providers.base import (
    Outcome,
    Verdict,
    cleaned,
    failed,
)
from example_project.notifications.providers.http import STATUSES
from example_project.notifications.services import Begun

# Refused by our own guard, or nobody there by that name: no other try will do.
_FINAL = frozenset({Failure.BLOCKED})


class WebhookProvider:
    """Posts to whatever the recipient is, so its failures say nothing of others.

    The ``webhook-id`` is that of the notification at every attempt, and its receivers are told to
    act once for each: so a message whose fate is unknown is sent again.
    """

    is_idempotent = True
    repeats_in_doubt = False

    def __init__(self, name: str, *, secrets: Sequence[str]) -> None:
        self.name = name
        self._secrets = list(secrets)

    async def send(self, begun: Begun) -> Outcome:
        body = begun.body.encode()
        try:
            headers = sign(self._secrets, str(begun.id), int(time.time()), body)
            result = await send(CallbackRequest(begun.recipient, body, headers))
        except InvalidMessage as error:
            return failed(Verdict.PERMANENT, error)
        return _outcome_of(result, str(begun.id))

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
