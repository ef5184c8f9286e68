"""The queues of the dispatcher: one for each priority and channel."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from delayed_queue import Envelope, RetryPolicy, handler
from delayed_queue.notifications import services
from delayed_queue.notifications.channels import close_routes
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.dispatching import dispatch
from delayed_queue.notifications.models import Channel, Priority, queue_name
from delayed_queue.notifications.telling import tell
from delayed_queue.observe import signals

SWEEPS: Final = "notifications-sweeps"
LOST: Final = "lost"
# In the order in which a worker that is to have urgent ones first names its queues.
QUEUES = [queue_name(priority, channel) for priority in Priority for channel in Channel]

for _name in QUEUES:
    handler(
        _name,
        retry=get_settings().RETRY,
        lease=get_settings().LEASE,
        claim=get_settings().CLAIM,
    )(dispatch)

# Half a day of tries: a callback is worth less the later it comes.
handler(
    services.CALLBACK_QUEUE,
    retry=RetryPolicy.exponential(timedelta(seconds=10), max_attempts=15),
)(tell)


@handler(SWEEPS)
def sweep(envelope: Envelope) -> None:
    """End what no dispatcher will: what is over while it waits, and what killed its dispatchers.

    A tick of the prefix ``lost`` goes through all that are open, for those without a message.
    """
    if envelope.key.startswith(f"{LOST}/"):
        services.fail_lost()
        return
    while services.expire_overdue() == services.SWEEP_LIMIT:
        pass
    services.fail_dead()


def _close(**_: Any) -> None:
    close_routes()


signals.worker_stopped.connect(_close, dispatch_uid="delayed_queue.notifications.close")
