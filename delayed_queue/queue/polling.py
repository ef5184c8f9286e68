"""Taking messages out of a queue, waiting for them, and ending their leases."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Final

from asgiref.sync import sync_to_async
from django.db import Error, OperationalError

from delayed_queue.codecs import decode
from delayed_queue.conf import check_lease
from delayed_queue.db.resilience import is_in_transaction, is_unavailable, never, sqlstate_of
from delayed_queue.db.wakeups import Listener, StopSignal
from delayed_queue.exceptions import InvalidConfiguration, PayloadNotDecodable
from delayed_queue.handlers import HandlerSignal, Verdict, error_text, judge, storable
from delayed_queue.logs import log_poll
from delayed_queue.messages import MILLISECOND, Batch, Envelope, check_delay
from delayed_queue.queue.base import QueueBase, T, nothing
from delayed_queue.queue.dealing import UNLIMITED
from delayed_queue.queue.group_claims import IDLE_MS, GroupClaim, GroupWalk
from delayed_queue.queue.store.claim import ConsumedRow, LeasedRow, RankedRow
from delayed_queue.queue.store.groups import GroupLease
from delayed_queue.retries import RetryPolicy

# How many claims by group one poll makes that find nothing; the next goes on behind them.
MOST_LOOKS: Final = 20
# For so long a poller believes that a queue has no limits.
TRUST_SECONDS: Final = 1.0


class Leasing(QueueBase):
    """The operations on leased messages; envelopes and batches call them."""

    def acknowledge(self, envelope: Envelope) -> bool:
        """Delete the message, if the envelope's lease still holds it.

        Raises OutcomeUnknown when the connection was lost meanwhile and the message is gone.
        """
        ids = [envelope.message_id]
        deleted = self._repeat(
            lambda: self._messages.acknowledge(envelope.lease_id, ids, using=self.using),
            doubt=nothing,
        )
        return bool(deleted)

    def acknowledge_batch(self, batch: Batch) -> int:
        """Delete every member of the batch still under its lease; return how many."""
        if not batch:
            return 0
        deleted: int = self._repeat(
            lambda: self._messages.acknowledge_lease(batch.lease_id, using=self.using),
            doubt=nothing,
        )
        return deleted

    def release(self, envelope: Envelope, delay: timedelta | None = None, error: str = "") -> bool:
        """Give the message back, due after the delay, if the lease still holds it."""
        check_delay(delay, self._local_now())
        return self._settle(envelope, Verdict(delay or timedelta(0), error=storable(error)))

    def extend(self, envelope: Envelope, duration: timedelta | None = None) -> bool:
        """Prolong the lease to at least now + duration, if it still holds the message."""
        lease = check_lease(self.lease_duration if duration is None else duration)
        rows = self._repeat(
            lambda: self._messages.extend(
                [envelope.lease_id],
                [envelope.message_id],
                lease // MILLISECOND,
                now=self._now(),
                using=self.using,
            ),
            doubt=never,
        )
        if rows:
            envelope.leased_until_ms = rows[0].leased_until
        else:
            envelope.lease_lost = True
        return bool(rows)

    def reject(self, envelope: Envelope, reason: str) -> bool:
        """Move the message to the dead letters, if the lease still holds it."""
        return self._settle(envelope, Verdict(None, reason))

    def fail(
        self, envelope: Envelope, error: BaseException, policy: RetryPolicy | None = None
    ) -> bool:
        """Settle a failed attempt: by the policy, or as the handler's signal says."""
        return self._settle(envelope, judge(error, envelope.attempt, policy or self.retry_policy))

    def _settle(self, envelope: Envelope, verdict: Verdict) -> bool:
        """Write the verdict on the message, if the lease still holds it."""
        ids, lease_id = [envelope.message_id], envelope.lease_id
        if verdict.delay is None:
            reason = storable(verdict.reason) or "rejected"
            dead_letter = partial(self._dead_letter, lease_id, ids, reason, verdict.error or None)
            return bool(self._repeat(dead_letter, doubt=nothing))
        release = partial(
            self._messages.release,
            lease_id,
            ids,
            delay=verdict.delay // MILLISECOND,
            refund=0 if verdict.counts else 1,
            error=verdict.error or None,
            now=self._now(),
            using=self.using,
        )
        released = bool(self._repeat(release, doubt=nothing))
        if released and verdict.delay <= self.poll_interval:
            self._wake()
        return released

    def _release_unacknowledged(self, lease_id: str, ids: Sequence[int], *, refund: int = 0) -> int:
        """Release members of a lease, due now; return how many.

        ``refund=1`` does not count the attempt, and keeps the due time from before the lease: for
        messages that no handler has seen, or whose worker is stopped.
        """
        release = partial(
            self._messages.release,
            lease_id,
            ids,
            delay=None if refund else 0,
            refund=refund,
            now=self._now(),
            using=self.using,
        )
        released = len(self._repeat(release, doubt=never))
        if released:
            self._wake()
        return released

    def _dead_letter(
        self, lease_id: str, ids: Sequence[int], reason: str, error: str | None
    ) -> list[int]:
        return self._messages.dead_letter(
            lease_id, ids, reason, error=error, now=self._now(), using=self.using
        )

    async def aacknowledge(self, envelope: Envelope) -> bool:
        return await sync_to_async(self.acknowledge)(envelope)

    async def aacknowledge_batch(self, batch: Batch) -> int:
        return await sync_to_async(self.acknowledge_batch)(batch)

    async def arelease(
        self, envelope: Envelope, delay: timedelta | None = None, error: str = ""
    ) -> bool:
        return await sync_to_async(self.release)(envelope, delay, error)

    async def aextend(self, envelope: Envelope, duration: timedelta | None = None) -> bool:
        return await sync_to_async(self.extend)(envelope, duration)

    async def areject(self, envelope: Envelope, reason: str) -> bool:
        return await sync_to_async(self.reject)(envelope, reason)


TakenRow = LeasedRow | RankedRow | ConsumedRow


class Polling(Leasing):
    """The consumer's side of a queue."""

    # How far claims by group have come, while the queue is known to have limits.
    _walk: GroupWalk | None = None
    # Until when it is believed that the queue has no limits, by the monotonic clock.
    _unlimited_until = 0.0

    def try_poll(self) -> Envelope | None:
        """Lease the earliest due message, or return None when none is due."""
        batch = self.try_poll_many(1)
        return batch[0] if batch else None

    def try_poll_many(self, limit: int) -> Batch:
        """Lease up to ``limit`` of the earliest due messages under one lease id.

        A message whose payload does not decode becomes a dead letter and is not returned. On a
        queue with ``claim="strict"`` it waits while another of the queue is being made, which in
        a transaction of the caller's lasts to its end.
        """
        limit = min(limit, UNLIMITED)  # a larger one is no integer of PostgreSQL
        lease_id = ""
        envelopes: list[Envelope] = []
        while limit > 0 and not envelopes:
            lease_id, rows = self._repeat(partial(self._claim, limit))
            log_poll(self.name, [row.key for row in rows])
            if not rows:
                break
            envelopes = self._open_rows(rows, lease_id)
        return Batch(tuple(envelopes), lease_id, self)

    def _claim(self, limit: int) -> tuple[str, list[LeasedRow]]:
        # A new lease for each try: one whose answer was lost may have leased messages that
        # nobody has seen, and acknowledging this batch must not delete them.
        lease_id = str(uuid.uuid4())
        rows: list[LeasedRow] = []
        if self._walk is not None:
            rows = self._claim_limited(limit, lease_id)
        if self._walk is None:
            rows = self._claim_plainly(limit, lease_id)
            if not rows and self._has_limits():
                rows = self._claim_limited(limit, lease_id)
        return lease_id, rows

    def _claim_plainly(self, limit: int, lease_id: str) -> list[LeasedRow]:
        return self._messages.claim(
            self.kind,
            limit,
            lease_id,
            self.lease_duration // MILLISECOND,
            strict=self.claim == "strict",
            now=self._now(),
            using=self.using,
        )

    def _has_limits(self) -> bool:
        """Return whether plain claims find nothing because the queue has limits.

        Asked once a second at most: else an empty poll is one statement.
        """
        if time.monotonic() < self._unlimited_until:
            return False
        rules = self._limits.rules(self.kind, now=self._now(), using=self.using)
        if rules is None:
            self._unlimited_until = time.monotonic() + TRUST_SECONDS
        return rules is not None and not rules.is_paused

    def _write_limits(self, write: Callable[[int | None], T]) -> T:
        """Write limits as anybody does, and know of them at once."""
        written = super()._write_limits(write)
        self._unlimited_until = 0.0
        return written

    def _claim_limited(self, limit: int, lease_id: str) -> list[LeasedRow]:
        """Lease of groups that are not held back; on from where the last claim has ended.

        Gives up after so many claims that found nothing: there may be any number of groups.
        """
        walk = self._walk = self._walk or GroupWalk()
        claim = self._claim_by_group(walk, limit, lease_id, lease_id, looks=MOST_LOOKS)
        if not claim.is_limited:
            self._walk = None
        return claim.rows

    def _claim_by_group(
        self,
        walk: GroupWalk,
        limit: int,
        lease_id: str,
        retaken_id: str,
        *,
        looks: int,
        wait: int | None = None,
    ) -> GroupClaim:
        """Make claims by group until one finds something, at most ``looks``; return the last.

        Each is made in a transaction of its own or the caller's. Others of the queue are waited
        for, ``wait`` milliseconds at most.
        """
        lease = GroupLease(lease_id, retaken_id, self.lease_duration // MILLISECOND)
        # Otherwise the caller's transaction may well be idle for longer.
        idle = None if is_in_transaction(self.using) else IDLE_MS
        for _ in range(looks):
            with self._transaction():
                claim = walk.claim(
                    self._messages, self.kind, limit, lease,
                    wait=wait, idle=idle, now=self._now(), using=self.using,
                )  # fmt: skip
            if claim.rows or not claim.has_more:
                break
        return claim

    def _open_rows(self, rows: Sequence[LeasedRow | RankedRow], lease_id: str) -> list[Envelope]:
        """Decode leased rows into envelopes; dead-letter those that do not decode (Q22)."""
        envelopes, open_row = [], self._envelope_of
        for row in rows:
            try:
                envelopes.append(open_row(row, lease_id))
            except PayloadNotDecodable as error:
                self._dead_letter_undecodable(row.id, lease_id, error)
        return envelopes

    def _envelope_of(self, row: TakenRow, lease_id: str) -> Envelope:
        """Decode a row as a claim returns it; raises PayloadNotDecodable."""
        # Arguments by place: faster, and a worker opens every message here.
        return Envelope(
            row.key,
            decode(self.codec, row.payload),
            self.name,
            row.attempts,
            lease_id,
            row.id,
            row.scheduled_at,
            row.due_at,
            row.leased_until,
            json.loads(row.headers) if row.headers else {},
            self,
            row.group,
            row.is_retaken,
        )

    def _dead_letter_undecodable(
        self, row_id: int, lease_id: str, error: PayloadNotDecodable
    ) -> None:
        text = error_text(error)
        self._repeat(partial(self._dead_letter, lease_id, [row_id], "payload not decodable", text))

    def poll(
        self, timeout: timedelta | float | None = None, *, stop: StopSignal | None = None
    ) -> Envelope | None:
        """Wait for a message that is due, and lease it.

        Returns None only when the timeout (a timedelta, or seconds) has passed or ``stop`` was
        set. Sleeps until a NOTIFY, the next due time or the poll interval, whichever is first.
        """
        deadline = math.inf if timeout is None else time.monotonic() + seconds_of(timeout)
        nap: float | None = None
        with self._listener() as listener:
            while True:
                envelope = self._try_poll_until(stop)
                left = deadline - time.monotonic()
                if envelope is not None or left <= 0 or _stopped(stop):
                    return envelope
                if nap is None:
                    # Look again after this: what fell due since the look above is neither
                    # in its answer nor in this one, which counts only what is still to come.
                    nap = self.seconds_to_next_look()
                    continue
                listener.wait(min(nap, left), stop)
                nap = None

    def _try_poll_until(self, stop: StopSignal | None) -> Envelope | None:
        if stop is None:
            return self.try_poll()
        try:
            with stop.cancelling(self.using):
                # Asked in here: when it was set earlier, there was nothing to cancel.
                return None if stop.is_set() else self.try_poll()
        except OperationalError:
            # query_canceled: the stop signal ended the statement, and nothing was leased.
            if stop.is_set():
                return None
            raise

    def seconds_to_next_look(self) -> float:
        """Return how long a poller may sleep: to the next due time or the poll interval."""
        horizon = self.poll_interval // MILLISECOND
        next_due = self._repeat(
            lambda: self._messages.next_due([self.kind], horizon, now=self._now(), using=self.using)
        )
        return self.poll_interval.total_seconds() if next_due is None else next_due / 1000

    @contextmanager
    def consume(self) -> Iterator[Envelope | None]:
        """Handle the earliest due message and delete it in one transaction.

        Yields None when nothing is due. If the block raises, what it wrote on this connection
        is rolled back, the attempt is counted and the message retried or dead-lettered by policy,
        all in that same transaction; the error then leaves the block, except ``Snooze``,
        ``Retry`` and ``Reject``. Cannot be used inside a transaction: the count must commit with
        it.
        """
        failure: BaseException | None = None
        with self._transaction(durable=True):
            row, envelope = self._take()
            try:
                with self._handler_block():
                    yield envelope
                    if envelope is not None:
                        self._check_effects()
            # A handler may raise anything; the count must be written before it goes on.
            except Exception as error:
                failure = error
                if row is not None and envelope is not None:
                    self._count_failure(row, envelope, error)
        if failure is not None and envelope is not None:
            envelope.is_settled = True
        if failure is not None and not isinstance(failure, HandlerSignal):
            raise failure

    def _take(self) -> tuple[ConsumedRow, Envelope] | tuple[None, None]:
        """Take out the earliest due message that decodes; dead-letter the ones before it."""
        while True:
            rows = self._messages.consume(self.kind, 1, now=self._now(), using=self.using)
            if not rows and self._has_limits():
                raise InvalidConfiguration(
                    f"The queue {self.name!r} has limits, and limits count leases, "
                    "so consume() is not possible. Use try_poll()."
                )
            if not rows:
                return None, None
            lease_id = str(uuid.uuid4())
            try:
                return rows[0], self._envelope_of(rows[0], lease_id)
            except PayloadNotDecodable as error:
                self._restore(rows[0], lease_id)
                self._dead_letter_undecodable(rows[0].id, lease_id, error)

    def _count_failure(self, row: ConsumedRow, envelope: Envelope, error: Exception) -> None:
        """Put the message back and settle the failure; if that fails too, all is rolled back."""
        try:
            self._restore(row, envelope.lease_id)
            self.fail(envelope, error)
        except Error as lost:
            is_refused = sqlstate_of(lost) is not None and not is_unavailable(lost)
            if isinstance(error, HandlerSignal) or is_refused:
                raise
            # The connection is gone, often because of the handler's error.
            raise error from lost

    def _restore(self, row: ConsumedRow, lease_id: str) -> None:
        self._messages.restore(self.kind, row, lease_id, using=self.using)

    def _listener(self) -> Listener:
        return Listener([self.kind], self.using)


def _stopped(stop: StopSignal | None) -> bool:
    return stop is not None and stop.is_set()


def seconds_of(timeout: timedelta | float) -> float:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidConfiguration(f"timeout must be seconds ≥ 0 or a timedelta, not {timeout!r}.")
    return seconds
