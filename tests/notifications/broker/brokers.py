"""Brokers for the tests: one in this process, and RabbitMQ if it answers."""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from kombu import Connection, Queue
from kombu.exceptions import OperationalError

from delayed_queue.notifications.broker import Consumer
from tests.notifications.requests import email
from tests.support.processes import wait_until


def _reachable(url: str) -> bool:
    try:
        with Connection(url, connect_timeout=2) as connection:
            connection.ensure_connection(max_retries=1)
    except (OperationalError, OSError):
        return False
    return True


def _rabbitmq() -> str:
    """Return the URL of a RabbitMQ: AMQP_URL, or that of this machine; empty if none answers."""
    named = os.environ.get("AMQP_URL", "")
    if named:
        return named
    try:
        socket.create_connection(("127.0.0.1", 5672), timeout=1).close()
    except OSError:
        return ""
    guest = "amqp://guest:guest@127.0.0.1:5672//"
    return guest if _reachable(guest) else ""


RABBITMQ = _rabbitmq()
BROKERS = ["memory://", RABBITMQ] if RABBITMQ else ["memory://"]


class Broker:
    """A queue at a broker for one test, and the test's operations on it."""

    def __init__(self, url: str) -> None:
        self.url = self._direct = url
        self.queue = f"test-{uuid.uuid4()}"
        with self._connected() as connection:
            Queue(self.queue, durable=True)(connection.default_channel).declare()

    def _connected(self) -> Any:
        return Connection(self.url)

    def send(self, *bodies: Any, content_type: str = "application/json", **more: Any) -> None:
        """Publish bodies as they are, others as JSON."""
        options = {"confirm_publish": True} if self.url.startswith("amqp") else {}
        more.setdefault("content_encoding", "utf-8")
        with Connection(self.url, transport_options=options) as connection:
            producer = connection.Producer(auto_declare=False)
            for body in bodies:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                producer.publish(data, routing_key=self.queue, content_type=content_type, **more)

    def publish(self, count: int) -> None:
        """Publish emails past any forwarder, each with a message id."""
        options = {"confirm_publish": True}
        with Connection(self._direct, transport_options=options) as connection:
            producer = connection.Producer(auto_declare=False)
            for _ in range(count):
                producer.publish(
                    json.dumps(email()).encode(), routing_key=self.queue,
                    content_type="application/json", content_encoding="utf-8",
                    message_id=str(uuid.uuid4()), delivery_mode=2,
                )  # fmt: skip

    def waiting(self) -> int:
        """Return the number of waiting messages, without those at a consumer."""
        return int(self._state().message_count)

    def consumers(self) -> int:
        """Return the number of consumers; a lost one counts until its messages are back."""
        return int(self._state().consumer_count)

    def _state(self) -> Any:
        with self._connected() as connection:
            return connection.default_channel.queue_declare(self.queue, passive=True)

    def delete(self) -> None:
        with self._connected() as connection:
            connection.default_channel.queue_delete(self.queue)


@contextmanager
def broker_at(url: str) -> Iterator[Broker]:
    broker = Broker(url)
    try:
        yield broker
    finally:
        broker.delete()


def consumer_of(broker: Broker, **options: Any) -> Consumer:
    return Consumer(url=broker.url, queue=broker.queue, tenant="upstream", **options)


@contextmanager
def consuming(consumer: Consumer) -> Iterator[threading.Thread]:
    """Run the consumer in a thread, and stop it at the end."""
    thread = threading.Thread(target=_run, args=(consumer,))
    thread.start()
    try:
        yield thread
    finally:
        consumer.stop()
        thread.join(timeout=20)
        assert not thread.is_alive()


def _run(consumer: Consumer) -> None:
    from django.db import connection

    try:
        consumer.run()
    finally:
        connection.close()


def consume(broker: Broker, count: int, **options: Any) -> Consumer:
    """Consume that many messages; return the consumer."""
    consumer = consumer_of(broker, **options)
    with consuming(consumer):
        wait_until(lambda: total(consumer) >= count, 20)
    assert broker.waiting() == 0
    return consumer


def total(consumer: Consumer) -> int:
    tally = consumer.tally
    return tally.accepted + tally.duplicates + tally.parked


def port_of(url: str) -> int:
    return urlsplit(url).port or 5672
