"""The queues of the dispatcher: one for each priority and channel."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final

from delayed_queue import Envelope, Reject, Retry, RetryPolicy, handler
from delayed_queue.codecs import codec_named, kind_of
from delayed_queue.db.clock import adatabase_now
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.handlers import Handler, registry
from delayed_queue.http.callbacks.calls import CallbackRequest, CallbackResult, least_wait, sign
from delayed_queue.notifications import sweeping
from delayed_queue.notifications.channels import close_routes, signing_secrets
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.models import Channel, Notification, Priority, queue_name
from delayed_queue.notifications.services import USING
from delayed_queue.notifications.serving import dispatching
from delayed_queue.notifications.settling import CALLBACK_QUEUE
from delayed_queue.observe import signals


async def tell(envelope: Envelope) -> None:
    """POST ``{"id", "status"}`` to the notification's ``callbackUrl``.

    The ``webhook-id`` is the same at every attempt. A URL that the guard refuses and a reply of 410
    are final.
    """
    # Imported late, because every process imports this module, and few send callbacks.
    from delayed_queue.http.callbacks.client import send

    urls = Notification.objects.filter(pk=envelope.payload["id"]).values_list("callback_url")
    found = await urls.afirst()
    if found is None:  # pruned since
        return
    body = json.dumps(envelope.payload).encode()
    try:
        now = int((await adatabase_now(USING)).timestamp())
        headers = sign(signing_secrets(), envelope.key, now, body)
        result = await send(CallbackRequest(found[0], body, headers))
    except InvalidMessage as error:
        raise Reject("the callback cannot be sent") from error
    _judge(result, envelope.attempt)


def _judge(result: CallbackResult, attempt: int) -> None:
    if result.is_success:
        return
    if result.is_final:
        raise Reject(f"the callback was refused: {result.code}")
    step = _CALLBACK_RETRY.delay_after(attempt) or timedelta(0)
    raise Retry(least_wait(step, result.retry_after), result.code)


# Retries for half a day.
_CALLBACK_RETRY: Final = RetryPolicy.exponential(timedelta(seconds=10), max_attempts=15)


SWEEPS: Final = "notifications-sweeps"
LOST: Final = "lost"
# In order of priority.
QUEUES = [queue_name(priority, channel) for priority in Priority for channel in Channel]


def dispatcher_of(queue: str, **options: Any) -> Handler:
    """Return the handler of one queue of the dispatcher, by the settings."""
    chosen = get_settings()
    options = {"retry": chosen.RETRY, "lease": chosen.LEASE, "claim": chosen.CLAIM, **options}
    codec = codec_named("json")
    return Handler(
        queue, dispatching.acall, codec, kind_of(queue, codec), treatment=dispatching, **options
    )


for _name in QUEUES:
    registry.add(dispatcher_of(_name))

handler(CALLBACK_QUEUE, retry=_CALLBACK_RETRY)(tell)


@handler(SWEEPS)
def sweep(envelope: Envelope) -> None:
    """Expire what is overdue while it waits.

    A tick of the prefix ``lost`` checks all open notifications, and fails those without a message.
    """
    if envelope.key.startswith(f"{LOST}/"):
        sweeping.fail_lost()
        return
    while sweeping.expire_overdue() == sweeping.SWEEP_LIMIT:
        pass


def _close(**_: Any) -> None:
    close_routes()


signals.worker_stopped.connect(_close, dispatch_uid="delayed_queue.notifications.close")
