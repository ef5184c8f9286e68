"""The lease keeper: a thread that prolongs the leases of messages in flight."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict

from django.db import Error, connections

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.messages import MILLISECOND
from delayed_queue.models import Message
from delayed_queue.resilience import repeat
from delayed_queue.workers.lanes import Delivery

logger = logging.getLogger("delayed_queue")


class LeaseKeeper:
    """Renews what was leased longer ago than a third of its lease, in one statement.

    A message whose lease the database no longer knows is marked ``lease_lost``: its handler
    can ask, and its result is not written. Has a thread and a connection of its own, so that
    neither a slow handler nor a blocked claim can let a lease lapse.
    """

    def __init__(self, using: str, shortest_lease: float) -> None:
        self._using = using
        self._interval = shortest_lease / 6
        self._in_flight: dict[int, Delivery] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, deliveries: list[Delivery]) -> None:
        self._in_flight.update((id(each), each) for each in deliveries)

    def forget(self, delivery: Delivery) -> None:
        """Renew no more; to be called before the result is written, not after.

        After, a renewal could meet the row already deleted and take the lease for lost.
        """
        self._in_flight.pop(id(delivery), None)

    def __len__(self) -> int:
        return len(self._in_flight)

    def in_flight(self) -> list[Delivery]:
        return list(self._in_flight.values())

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._interval):
                try:
                    self.renew()
                except (Error, ResourceUnavailable) as error:
                    # The leases may hold until the next try; if not, others take the
                    # messages, and the fence refuses our results.
                    logger.warning("event=renewal_failed error=%s", type(error).__name__)
        finally:
            connections.close_all()

    def renew(self) -> None:
        """Prolong the leases that have used up a third of their time."""
        now = time.monotonic()
        by_lease: dict[int, list[Delivery]] = defaultdict(list)
        for each in self.in_flight():
            lease = each.lane.queue.lease_duration
            if now - each.leased_at > lease.total_seconds() / 3 and not each.envelope.lease_lost:
                by_lease[lease // MILLISECOND].append(each)
        for lease_ms, deliveries in by_lease.items():
            self._renew(deliveries, lease_ms, now)

    def _renew(self, deliveries: list[Delivery], lease_ms: int, now: float) -> None:
        lease_ids = sorted({each.envelope.lease_id for each in deliveries})
        ids = sorted({each.envelope.message_id for each in deliveries})
        rows = repeat(
            self._using,
            lambda: Message.objects.extend(lease_ids, ids, lease_ms, using=self._using),
        )
        held = {(row.id, row.lease_id): row.leased_until for row in rows}
        for each in deliveries:
            envelope = each.envelope
            leased_until = held.get((envelope.message_id, envelope.lease_id))
            if leased_until is not None:
                envelope.leased_until_ms = leased_until
                each.leased_at = now
            elif id(each) in self._in_flight:
                envelope.lease_lost = True
                logger.warning("event=lease_lost queue=%s key=%s", envelope.queue, envelope.key)
