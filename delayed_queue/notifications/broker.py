"""Requests from a broker: acknowledged only after the database has committed them."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from kombu import Connection, Queue, compression
from kombu.exceptions import KombuError

from delayed_queue.db.resilience import is_unavailable, tend
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.logs import log
from delayed_queue.notifications.conf import get_settings
from delayed_queue.notifications.models import MAX_NAME_LENGTH
from delayed_queue.notifications.parking import Incoming, Tally, take
from delayed_queue.notifications.services import USING

# Seconds between heartbeats. After two without an answer the connection is dead.
HEARTBEAT: Final = 30
# At a stop, wait for the broker's last answers at most N seconds.
FAREWELL_SECONDS: Final = 3.0
LINGER_SECONDS: Final = 0.05
# At most N messages are stored in one transaction.
BATCH: Final = 200
LOOK_SECONDS: Final = 0.5
FIRST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 30.0
_MAX_ID: Final = 200


class Consumer:
    """Consumes batches from one queue of a broker until stopped; reconnects after outages.

    A batch is what arrives within 50 ms, at most ``batch`` messages. It is stored in one
    transaction and then acknowledged. If the broker or the database is lost before that, the broker
    delivers it again. A repeated message with an id, or with a ``dedupeKey``, changes nothing.
    """

    def __init__(
        self,
        url: str = "",
        queue: str = "",
        tenant: str = "",
        batch: int = BATCH,
        heartbeat: int = HEARTBEAT,
    ) -> None:
        settings = get_settings()
        self.url = url or settings.BROKER_URL
        self.queue = queue or settings.BROKER_QUEUE
        self.tenant = tenant or settings.BROKER_TENANT
        self.batch = batch
        _check(self.tenant, self.batch)
        self.tally = Tally()
        self._heartbeat = heartbeat
        self._stop = threading.Event()
        self._messages: list[Any] = []
        self._waits = _waits()

    def stop(self) -> None:
        """Stop ``run`` after the current batch; safe in a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Consume until stopped."""
        _refuse_compression()
        while not self._stop.is_set():
            try:
                self._session()
            except (OSError, KombuError, Error, ResourceUnavailable) as error:
                if isinstance(error, Error) and not is_unavailable(error):
                    raise
                self._messages = []
                # Without the text, which may contain the password of a URL.
                wait = next(self._waits)
                fields = {"error": type(error).__name__, "retry_in": f"{wait:.1f}"}
                log(logging.WARNING, "consumer_lost", **fields)
                self._stop.wait(wait)

    def _session(self) -> None:
        """Consume batches over one connection; its end returns unacknowledged messages."""
        _usable_database()
        with _connected(self.url, self._heartbeat) as connection:
            queue = Queue(self.queue, durable=True)
            with connection.Consumer(
                queue,
                on_message=self._received,
                prefetch_count=self.batch,
                auto_declare=True,
                accept=["json"],
            ) as consumer:
                consumer.on_decode_error = self._received_broken
                log(logging.INFO, "consumer_connected", queue=self.queue)
                while not self._stop.is_set():
                    self._gather(connection)
                    self._commit()
                _limit_waits(connection)

    def _received(self, message: Any, broken: str = "") -> None:
        self._messages.append((message, _incoming(message, broken)))

    def _received_broken(self, message: Any, error: Exception) -> None:
        self._received(message, "is compressed, or cannot be read")

    def _gather(self, connection: Connection) -> None:
        """Wait for messages; after the first one, wait for more only a moment."""
        ends_at = time.monotonic() + LOOK_SECONDS
        while len(self._messages) < self.batch and not self._stop.is_set():
            had_none = not self._messages
            try:
                connection.drain_events(timeout=max(0.001, ends_at - time.monotonic()))
            except TimeoutError:
                connection.heartbeat_check()
            if had_none and self._messages:
                ends_at = time.monotonic() + LINGER_SECONDS
            if time.monotonic() >= ends_at:
                return

    def _commit(self) -> None:
        """Store the batch, then acknowledge it."""
        taken, self._messages = self._messages, []
        if not taken:
            return
        began_at = time.monotonic()
        tally = take([each for _, each in taken], tenant=self.tenant, origin=self.queue)
        self._waits = _waits()
        self._acknowledge([message for message, _ in taken])
        self.tally = self.tally.plus(tally)
        counts = {
            "accepted": tally.accepted, "duplicates": tally.duplicates, "parked": tally.parked
        }  # fmt: skip
        seconds = f"{time.monotonic() - began_at:.3f}"
        log(logging.INFO, "consumed", queue=self.queue, **counts, seconds=seconds)

    def _acknowledge(self, messages: list[Any]) -> None:
        for each in messages:
            each.ack()


def _check(tenant: str, batch: int) -> None:
    # Otherwise all messages would be parked, or none consumed.
    if len(tenant) > MAX_NAME_LENGTH:
        raise ImproperlyConfigured(f"A tenant has at most {MAX_NAME_LENGTH} characters.")
    if batch < 1:
        raise ImproperlyConfigured(f"A batch has 1 message or more, not {batch}.")


@contextmanager
def _connected(url: str, heartbeat: int) -> Iterator[Connection]:
    """Connect once, without kombu's own retries; its errors become ConnectionError.

    A failed connection is closed without a goodbye, because a lost broker would not answer.
    """
    connection = Connection(url, heartbeat=heartbeat, connect_timeout=5)
    try:
        connection.connect()
        yield connection
        connection.release()
    except connection.connection_errors + connection.channel_errors as error:
        raise ConnectionError(type(error).__name__) from error
    finally:
        with suppress(OSError):
            connection.collect()


def _limit_waits(connection: Connection) -> None:
    """Limit the wait for further answers of the broker."""
    sock = getattr(getattr(connection.connection, "transport", None), "sock", None)
    if sock is not None:
        sock.settimeout(FAREWELL_SECONDS)


def _usable_database() -> None:
    """Replace a broken database connection; raise if none can be opened."""
    connection = connections[USING]
    tend(connection)
    connection.ensure_connection()


def _waits() -> Iterator[float]:
    """Yield growing waits with jitter, so that consumers do not reconnect together."""
    wait = FIRST_WAIT
    while True:
        yield wait * random.uniform(0.5, 1)  # noqa: S311 # no secret
        wait = min(wait * 2, LONGEST_WAIT)


def _incoming(message: Any, broken: str) -> Incoming:
    body = message.body if message.body is not None else b""
    return Incoming(
        body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body),
        str(message.content_type or ""),
        str(message.content_encoding or ""),
        _message_id(str((message.properties or {}).get("message_id") or "")),
        broken,
    )


def _message_id(text: str) -> str:
    """Return an id of at most 200 characters; a longer one is hashed."""
    return text if len(text) <= _MAX_ID else sha256(text.encode("utf-8", "replace")).hexdigest()


def _refuse_compression() -> None:
    """Make kombu refuse compressed messages: 16 MB may expand to 16 GB."""

    def refuse(body: bytes) -> bytes:
        raise ValueError("compressed messages are refused")

    for name in compression.encoders():
        encoder, content_type = compression.get_encoder(name)
        compression.register(encoder, refuse, content_type)
