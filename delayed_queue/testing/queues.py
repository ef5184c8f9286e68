"""A queue that keeps its messages in memory and shares every algorithm with the real one."""

from __future__ import annotations

import select
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections

from delayed_queue.codecs import Codec
from delayed_queue.db.wakeups import Listener, StopSignal, WakeChannel
from delayed_queue.messages import Envelope, to_milliseconds
from delayed_queue.queue.queue import DelayedQueue
from delayed_queue.retries import RetryPolicy
from delayed_queue.testing.limits import InMemoryLimits
from delayed_queue.testing.messages import InMemoryMessages
from delayed_queue.testing.stores import InMemoryStore, ManualClock
from delayed_queue.testing.tables import InMemoryLetters, InMemorySchedules

T = TypeVar("T")


class InMemoryQueue(DelayedQueue):
    """A DelayedQueue for tests that have no database; it passes the same contract.

    Each has a store of its own unless one is given: queues that share a store see each
    other's messages, as queues of one database do. It takes no part in database transactions;
    ``consume()`` is a transaction of the store.
    """

    def __init__(
        self,
        name: str,
        *,
        codec: str | Codec = "json",
        using: str = DEFAULT_DB_ALIAS,
        lease_duration: timedelta | None = None,
        poll_interval: timedelta | None = None,
        retry_policy: RetryPolicy | None = None,
        clock: Callable[[], datetime] | None = None,
        kind: str | None = None,
        claim: str = "fast",
        store: InMemoryStore | None = None,
    ) -> None:
        super().__init__(
            name,
            codec=codec,
            using=using,
            lease_duration=lease_duration,
            poll_interval=poll_interval,
            retry_policy=retry_policy,
            clock=clock,
            kind=kind,
            claim=claim,
        )
        self.store = InMemoryStore() if store is None else store
        self._messages = InMemoryMessages(self.store)
        self._letters = InMemoryLetters(self.store)
        self._schedules = InMemorySchedules(self.store)
        self._limits = InMemoryLimits(self.store)

    def _now(self) -> int:
        return to_milliseconds(self._local_now())

    def _repeat(self, call: Callable[[], T], **doubts: Any) -> T:
        return call()

    def _transaction(self, *, durable: bool = False) -> Any:
        # The real consume() would refuse it too, and the code under test must be told so.
        if durable and _in_a_transaction(self.using):
            raise RuntimeError("consume() cannot be used inside a transaction.")
        return self.store.transaction(durable=durable)

    def _handler_block(self) -> Any:
        return self.store.transaction()

    def _check_effects(self) -> None:
        """Nothing: a store has no constraints."""

    def _try_poll_until(self, stop: StopSignal | None) -> Envelope | None:
        return None if stop is not None and stop.is_set() else self.try_poll()

    def _listener(self) -> Listener:
        return InMemoryListener(self.store, self.clock, self.using)


class InMemoryListener(Listener):
    """Sleep until a message is offered to the store, or its manual clock is moved."""

    def __init__(
        self, store: InMemoryStore, clock: Callable[[], datetime] | None, using: str
    ) -> None:
        super().__init__([], using)
        self._store = store
        self._clock = clock

    def __enter__(self) -> InMemoryListener:
        self._wake_channel = WakeChannel()
        self._store.watch(self._wake_channel)
        if isinstance(self._clock, ManualClock):
            self._clock.watch(self._wake_channel)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._store.unwatch(self._wake_channel)
        self._wake_channel.close()

    def wait(self, seconds: float, *wake_channels: WakeChannel | None) -> bool:
        rung = [
            self._wake_channel,
            *(each for each in wake_channels if each is not None),
        ]
        ready, _, _ = select.select(rung, [], [], max(seconds, 0))
        self._wake_channel.clear()
        return self._wake_channel in ready


def _in_a_transaction(using: str) -> bool:
    blocks: list[Any] = connections[using].atomic_blocks
    # Django lets a durable block begin within TestCase's own; so do we.
    return bool(blocks) and not blocks[-1]._from_testcase  # noqa: SLF001
