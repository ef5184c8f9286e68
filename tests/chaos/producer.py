"""The producer: offers, updates and drops at random, and records the replies."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Final

from django.db import Error, connections

from delayed_queue import DelayedQueue, OfferOutcome, ScheduledMessage
from delayed_queue.exceptions import ResourceUnavailable

KEYS: Final = 300
# Queues whose messages have groups, and the number of groups.
GROUPED: Final = ("limited", "ordered")
GROUPS: Final = 12
LONGEST_DELAY: Final = 1.5


def group_of(queue: DelayedQueue, key: str) -> str | None:
    return f"group-{int(key[1:]) % GROUPS}" if queue.name in GROUPED else None


class Producer(threading.Thread):
    """Works on its queues until it is stopped.

    Each offer has its own version as payload. ``confirmed`` has the versions that the queue
    reported as stored, ``doubtful`` those whose calls had no reply.
    """

    def __init__(self, queues: list[str], seed: int) -> None:
        super().__init__(name="producer", daemon=True)
        self._random = random.Random(seed)
        self._queues = [DelayedQueue(name) for name in queues]
        self._versions = count()
        self._stopped = threading.Event()
        self.confirmed: dict[str, set[str]] = {name: set() for name in queues}
        self.calls = 0
        self.doubtful = 0

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)

    def run(self) -> None:
        actions: list[Callable[[DelayedQueue], None]] = [self._update, self._insert, self._batch]
        try:
            while not self._stopped.wait(self._random.expovariate(200)):
                action = self._random.choices([*actions, self._drop], [12, 4, 3, 2])[0]
                self._try(action, self._random.choice(self._queues))
        finally:
            connections.close_all()

    def _try(self, action: Callable[[DelayedQueue], None], queue: DelayedQueue) -> None:
        self.calls += 1
        try:
            action(queue)
        except (Error, ResourceUnavailable):
            self.doubtful += 1

    def _message(self) -> tuple[str, str, timedelta]:
        key = f"k{self._random.randrange(KEYS)}"
        delay = max(self._random.uniform(-1, LONGEST_DELAY), 0)
        return key, f"{key}#{next(self._versions)}", timedelta(seconds=delay)

    def _note(self, queue: DelayedQueue, version: str, outcome: OfferOutcome) -> None:
        if outcome is not OfferOutcome.IGNORED:
            self.confirmed[queue.name].add(version)

    def _update(self, queue: DelayedQueue) -> None:
        key, version, delay = self._message()
        self._note(
            queue,
            version,
            queue.offer_or_update(key, version, delay=delay, group=group_of(queue, key)),
        )

    def _insert(self, queue: DelayedQueue) -> None:
        key, version, delay = self._message()
        self._note(
            queue,
            version,
            queue.offer_if_not_exists(key, version, delay=delay, group=group_of(queue, key)),
        )

    def _batch(self, queue: DelayedQueue) -> None:
        found = [self._message()[:2] for _ in range(30)]
        outcomes = queue.offer_batch(
            [ScheduledMessage(key, version, group=group_of(queue, key)) for key, version in found]
        )
        for (_, version), outcome in zip(found, outcomes, strict=True):
            self._note(queue, version, outcome)

    def _drop(self, queue: DelayedQueue) -> None:
        queue.drop_message(self._message()[0])
