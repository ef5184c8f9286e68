"""Callbacks: the caller of a notification is told how it ended, by a signed POST."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Final

from delayed_queue import Envelope, Reject, Retry
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.http.callbacks.outcomes import CallbackRequest, CallbackResult, Failure
from delayed_queue.http.callbacks.signing import sign
from delayed_queue.notifications.channels import signing_secrets
from delayed_queue.notifications.models import Notification

_GONE: Final = 410


async def tell(envelope: Envelope) -> None:
    """POST ``{"id", "status"}`` to the notification's ``callbackUrl``.

    The ``webhook-id`` is the same at every attempt. A url that our guard refuses, and an answer of
    410, are final.
    """
    # Here: every process of the project has this module, and few send anything.
    from delayed_queue.http.callbacks.client import send

    urls = Notification.objects.filter(pk=envelope.payload["id"]).values_list("callback_url")
    found = await urls.afirst()
    if found is None:  # pruned since
        return
    body = json.dumps(envelope.payload).encode()
    try:
        headers = sign(signing_secrets(), envelope.key, int(time.time()), body)
        result = await send(CallbackRequest(found[0], body, headers))
    except InvalidMessage as error:
        raise Reject("the callback cannot be sent") from error
    _judge(result)


def _judge(result: CallbackResult) -> None:
    if result.is_success:
        return
    code = str(result.status or result.failure)
    if result.failure is Failure.BLOCKED or result.status == _GONE:
        raise Reject(f"the callback was refused: {code}")
    if result.retry_after is not None:
        raise Retry(max(result.retry_after, timedelta(seconds=1)), code)
    raise CallbackFailed(code)


class CallbackFailed(Exception):
    """The receiver has not confirmed; the policy says when to try again."""
