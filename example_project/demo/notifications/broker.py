"""The broker: RabbitMQ with a consumer process, or kombu's memory with a consumer in this one."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from django.conf import settings
from django.db import connection
from django.test.utils import override_settings
from kombu import Connection, Queue
from kombu.exceptions import KombuError

from example_project.demo.notifications.traffic import BROKER_TENANT
from example_project.demo.processes import Child
from example_project.demo.stage import LOOPBACK, Stage
from example_project.notifications.conf import get_settings
from example_project.notifications.consumer import Consumer
from example_project.notifications.parking import Tally

QUEUE: Final = "notifications-demo"
MEMORY: Final = "memory://"
ANSWER_SECONDS: Final = 3
STOP_SECONDS: Final = 10.0
_TALLY: Final = re.compile(r"event=consumed .*accepted=(\d+) duplicates=(\d+) parked=(\d+)")


class Broker(Protocol):
    """A queue, and one consumer of it."""

    name: str

    def publish(self, messages: Iterable[tuple[str, bytes]]) -> None:
        """Put bodies into the queue, each with its id."""

    def tally(self) -> Tally:
        """Return how many messages were stored, found to be duplicates, and parked."""

    def stop(self) -> int:
        """Stop the consumer; return its exit code."""


class _Kombu:
    """The publishing side, the same for all brokers; for one thread."""

    def __init__(self, url: str) -> None:
        options = {"confirm_publish": True} if url != MEMORY else {}
        self._connection = Connection(url, transport_options=options)
        self._queue = Queue(QUEUE, durable=True)(self._connection.default_channel)
        self._queue.declare()
        self._queue.purge()
        self._producer = self._connection.Producer(auto_declare=False)

    def publish(self, messages: Iterable[tuple[str, bytes]]) -> None:
        for id_, body in messages:
            self._producer.publish(
                body, routing_key=QUEUE, message_id=id_, delivery_mode=2,
                content_type="application/json", content_encoding="utf-8",
            )  # fmt: skip

    def close(self) -> None:
        """Delete the queue."""
        with suppress(OSError, KombuError):
            self._queue.delete()
        self._connection.release()


class RabbitMQ(_Kombu):
    """A server of its own, and ``manage.py consumenotifications``."""

    def __init__(self, stage: Stage, url: str) -> None:
        super().__init__(url)
        self._stage = stage
        self._child: Child = stage.children.start(
            "consumer", "consumenotifications", "--queue", QUEUE, "--tenant", BROKER_TENANT,
            "--no-color", AMQP_URL=url,
        )  # fmt: skip
        self.name = f"RabbitMQ, queue {QUEUE}, read by the process {self._child.pid}"

    def tally(self) -> Tally:
        found = _TALLY.findall(self._child.log.read_text(errors="replace"))
        return sum((Tally(*map(int, counts)) for counts in found), Tally())

    def stop(self) -> int:
        [code] = self._stage.children.stop([self._child], STOP_SECONDS)
        return code


class Memory(_Kombu):
    """The memory of this process, and a consumer in a thread of it."""

    name = (
        "in the memory of this process, read by a thread of it, as AMQP_URL names no RabbitMQ "
        "that answers"
    )

    def __init__(self, port: int) -> None:
        super().__init__(MEMORY)
        self._consumer = Consumer(url=MEMORY, queue=QUEUE, tenant=BROKER_TENANT)
        self._thread = threading.Thread(target=self._consume, args=(port,), daemon=True)
        self._thread.start()

    def _consume(self, port: int) -> None:
        log = logging.getLogger("delayed_queue.notifications")
        try:
            with calls_allowed(port), quiet(log):
                self._consumer.run()
        finally:
            connection.close()

    def tally(self) -> Tally:
        return self._consumer.tally

    def stop(self) -> int:
        self._consumer.stop()
        self._thread.join(STOP_SECONDS)
        return int(self._thread.is_alive())


@contextmanager
def quiet(log: logging.Logger) -> Iterator[None]:
    """Have it write warnings only: its lines would come between those of the demo."""
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def calls_allowed(port: int) -> Iterator[None]:
    """Let this process accept webhooks to that port, as its children may by their environment."""
    options: dict[str, Any] = dict(settings.DELAYED_QUEUE)
    calls = {"ALLOWED_NETWORKS": [LOOPBACK], "ALLOWED_PORTS": [port]}
    options["CALLBACKS"] = {**options.get("CALLBACKS", {}), **calls}
    with override_settings(DELAYED_QUEUE=options):
        yield


@contextmanager
def open_broker(stage: Stage, port: int) -> Iterator[Broker]:
    """Open the broker that AMQP_URL names if it answers, else one in memory."""
    url = get_settings().BROKER_URL
    broker = RabbitMQ(stage, url) if _answers(url) else Memory(port)
    try:
        yield broker
    finally:
        broker.stop()
        broker.close()


def _answers(url: str) -> bool:
    if url == MEMORY:
        return False
    try:
        with Connection(url, connect_timeout=ANSWER_SECONDS) as found:
            found.ensure_connection(max_retries=1)
    except (OSError, KombuError):
        return False
    return True
