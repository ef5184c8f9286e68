"""The queues of the dispatcher: one for each lane and channel, the urgent ones before others."""

from __future__ import annotations

from typing import Any

from delayed_queue import handler, signals
from example_project.notifications.channels import close_routes, get_settings
from example_project.notifications.dispatching import dispatch
from example_project.notifications.models import Channel, Priority, queue_name

# In the order in which a worker looks at its queues.
LANES = [queue_name(lane, channel) for lane in Priority for channel in Channel]

for _name in LANES:
    handler(_name, retry=get_settings().RETRY, lease=get_settings().LEASE)(dispatch)


def _close(**_: Any) -> None:
    close_routes()


signals.worker_stopped.connect(_close, dispatch_uid="example_project.notifications.close")
