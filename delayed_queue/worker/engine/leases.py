"""The lease keeper: renews the leases of messages in flight, and detects lost ones."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

from django.db import Error, connections

from delayed_queue.db.resilience import repeat, write_by_halves
from delayed_queue.db.silence import limit_waits
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.handlers import Treatment
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.queue.models import Message
from delayed_queue.queue.store.settle import ExtendedRow
from delayed_queue.worker.engine.claims import Claim


class LeaseKeeper:
    """Renews leases after a third of their time, in one statement.

    A message whose lease is gone from the database is marked ``lease_lost``: its handler can check
    that, a coroutine is cancelled, and its result is not written. A message that the treatment of
    its queue reports as unwanted is marked, too. The keeper has a thread and a connection of its
    own, so that neither a slow handler nor a blocked claim lets a lease expire.
    """

    def __init__(
        self,
        using: str,
        shortest_lease: float,
        cancel: Callable[[list[Envelope]], None],
        refused: Callable[[Envelope, Error], None],
    ) -> None:
        self._using = using
        self._refused = refused
        self._interval = shortest_lease / 6
        self._cancel = cancel
        self._woken = threading.Event()
        self._claims: dict[int, Claim] = {}
        self._touched: deque[str] = deque()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def shorten(self, shortest_lease: float) -> None:
        """Renew in time a lease that is shorter than those known at the start."""
        if shortest_lease / 6 < self._interval:
            self._interval = shortest_lease / 6
            self._woken.set()  # it may be asleep for longer than the lease

    def watch(self, claim: Claim) -> None:
        self._claims[id(claim)] = claim

    def forget(self, claim: Claim) -> None:
        """Stop renewing a claim that was settled or is about to be released."""
        self._claims.pop(id(claim), None)

    def claims(self) -> list[Claim]:
        return list(self._claims.values())

    def check(self, touched: set[str] | None) -> None:
        """Renew these leases now, or all if None, to detect lost ones."""
        held = {claim.lease_id for claim in self.claims()}
        if found := held if touched is None else held & touched:
            self._touched.extend(found)
            self._woken.set()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        limit_waits(self._using)
        try:
            while not self._stopped.is_set():
                self._woken.wait(self._interval)
                self._woken.clear()
                try:
                    self.renew()
                except (Error, ResourceUnavailable) as error:
                    # The leases may hold until the next try. If not, other workers take the
                    # messages, and the fence refuses our results.
                    log(logging.WARNING, "renewal_failed", error=described(error))
        finally:
            connections.close_all()

    def renew(self) -> None:
        """Renew the leases that have used a third of their time, or were touched."""
        now = time.monotonic()
        touched = {self._touched.popleft() for _ in range(len(self._touched))}
        by_lease: dict[int, list[Claim]] = defaultdict(list)
        for claim in self.claims():
            lease = claim.consumer.queue.lease_duration
            if claim.lease_id in touched or now - claim.leased_at > lease.total_seconds() / 3:
                by_lease[lease // MILLISECOND].append(claim)
        for lease_ms, claims in by_lease.items():
            self._renew(claims, lease_ms, now)

    def _renew(self, claims: list[Claim], lease_ms: int, now: float) -> None:
        held = {claim: [e for e in claim.in_flight() if not e.lease_lost] for claim in claims}
        wanted = [each for envelopes in held.values() for each in envelopes]
        refused: set[int] = set()

        def refuse(envelope: Envelope, error: Error) -> None:
            # Its lease expires; those of the others must not.
            refused.add(envelope.message_id)
            self._refused(envelope, error)

        found = write_by_halves(wanted, partial(self._extend, lease_ms=lease_ms), refuse)
        renewed = {(row.id, row.lease_id): row.leased_until for rows in found for row in rows}
        for claim, envelopes in held.items():
            claim.leased_at = now
            asked = [each for each in envelopes if each.message_id not in refused]
            self._mark_lost(claim, asked, renewed)
        self._mark_unwanted(held)
        self._cancel([each for some in held.values() for each in some if each.is_cancelled])

    def _extend(self, envelopes: Sequence[Envelope], *, lease_ms: int) -> list[ExtendedRow]:
        ids = [each.message_id for each in envelopes]
        lease_ids = sorted({each.lease_id for each in envelopes})
        extend = partial(Message.objects.extend, lease_ids, ids, lease_ms, using=self._using)
        return repeat(self._using, extend)

    def _mark_unwanted(self, held: dict[Claim, list[Envelope]]) -> None:
        asked: dict[Treatment, list[Envelope]] = defaultdict(list)
        for claim, envelopes in held.items():
            if (treatment := claim.consumer.handler.treatment) is not None:
                asked[treatment] += [each for each in envelopes if not each.is_cancelled]
        for treatment, some in asked.items():
            for envelope in treatment.unwanted(some, self._using):
                envelope.is_unwanted = True

    def _mark_lost(
        self, claim: Claim, envelopes: list[Envelope], renewed: dict[tuple[int, str], int]
    ) -> None:
        # Read after the reply: what was handled meanwhile may be deleted, not lost.
        handled = claim.handled_ids()
        for envelope in envelopes:
            leased_until = renewed.get((envelope.message_id, envelope.lease_id))
            if leased_until is not None:
                envelope.leased_until_ms = leased_until
            elif envelope.message_id not in handled and id(claim) in self._claims:
                envelope.lease_lost = True
                log(logging.WARNING, "lease_lost", queue=envelope.queue, key=envelope.key)
