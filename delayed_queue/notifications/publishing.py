"""Sending requests to the broker, as an upstream service does."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

from kombu import Connection, Queue

from delayed_queue.notifications.conf import get_settings


def publish(requests: Iterable[Any], url: str = "", queue: str = "") -> int:
    """Put requests into the broker's queue, each with an id of its own; return how many.

    Persistent and confirmed by the broker. Who is not sure that one has arrived sends it again
    under the same ``message_id``, or gives it a ``dedupeKey``.
    """
    settings = get_settings()
    target = Queue(queue or settings.BROKER_QUEUE, durable=True)
    count = 0
    options = {"confirm_publish": True} if is_amqp(url or settings.BROKER_URL) else {}
    with Connection(url or settings.BROKER_URL, transport_options=options) as connection:
        producer = connection.Producer(auto_declare=False)
        target(connection.default_channel).declare()
        for each in requests:
            producer.publish(
                json.dumps(each).encode(),
                routing_key=target.name,
                content_type="application/json",
                content_encoding="utf-8",
                message_id=str(uuid.uuid4()),
                delivery_mode=2,
            )
            count += 1
    return count


def is_amqp(url: str) -> bool:
    return url.startswith(("amqp", "pyamqp"))
