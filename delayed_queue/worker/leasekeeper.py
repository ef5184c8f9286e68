"""The lease keeper: a thread that prolongs the leases of messages in flight."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict

from django.db import Error, connections

from delayed_queue.db.resilience import repeat
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.models import Message
from delayed_queue.observe.logs import quoted
from delayed_queue.worker.claims import Claim

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
        self._woken = threading.Event()
        self._claims: dict[int, Claim] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def shorten(self, shortest_lease: float) -> None:
        """Have leases in time that are shorter than those known at the start."""
        if shortest_lease / 6 < self._interval:
            self._interval = shortest_lease / 6
            self._woken.set()  # it may be asleep for longer than the lease

    def watch(self, claim: Claim) -> None:
        self._claims[id(claim)] = claim

    def forget(self, claim: Claim) -> None:
        """Renew no more; for what was settled, or is about to be given back."""
        self._claims.pop(id(claim), None)

    def claims(self) -> list[Claim]:
        return list(self._claims.values())

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                if self._woken.wait(self._interval):
                    self._woken.clear()
                    continue
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
        by_lease: dict[int, list[Claim]] = defaultdict(list)
        for claim in self.claims():
            lease = claim.lane.queue.lease_duration
            if now - claim.leased_at > lease.total_seconds() / 3:
                by_lease[lease // MILLISECOND].append(claim)
        for lease_ms, claims in by_lease.items():
            self._renew(claims, lease_ms, now)

    def _renew(self, claims: list[Claim], lease_ms: int, now: float) -> None:
        held = {claim: [e for e in claim.in_hand() if not e.lease_lost] for claim in claims}
        ids = [envelope.message_id for envelopes in held.values() for envelope in envelopes]
        lease_ids = sorted({claim.lease_id for claim, envelopes in held.items() if envelopes})
        if not ids:
            return
        rows = repeat(
            self._using,
            lambda: Message.objects.extend(lease_ids, ids, lease_ms, using=self._using),
        )
        renewed = {(row.id, row.lease_id): row.leased_until for row in rows}
        for claim, envelopes in held.items():
            claim.leased_at = now
            self._note(claim, envelopes, renewed)

    def _note(
        self, claim: Claim, envelopes: list[Envelope], renewed: dict[tuple[int, str], int]
    ) -> None:
        # Asked again after the answer: what was handled meanwhile may be deleted, not lost.
        handled = claim.handled_ids()
        for envelope in envelopes:
            leased_until = renewed.get((envelope.message_id, envelope.lease_id))
            if leased_until is not None:
                envelope.leased_until_ms = leased_until
            elif envelope.message_id not in handled and id(claim) in self._claims:
                envelope.lease_lost = True
                logger.warning(
                    "event=lease_lost queue=%s key=%s", quoted(envelope.queue), quoted(envelope.key)
                )
