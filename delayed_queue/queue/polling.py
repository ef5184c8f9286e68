"""Poll messages, wait for them, and settle their leases."""

from __future__ import annotations

import json
import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Final

from asgiref.sync import sync_to_async
from django.db import Error, OperationalError

from delayed_queue.batch import Batch
from delayed_queue.codecs import decode
from delayed_queue.conf import check_lease
from delayed_queue.db.resilience import is_in_transaction, is_unavailable, never, sqlstate_of
from delayed_queue.db.wakeups import Listener, StopSignal
from delayed_queue.durations import Duration, check_duration
from delayed_queue.exceptions import InvalidConfiguration, PayloadNotDecodable
from delayed_queue.handlers import HandlerSignal, Verdict, error_text, judge, storable
from delayed_queue.logs import log, log_poll
from delayed_queue.messages import MILLISECOND, Envelope, check_delay, has_expired
from delayed_queue.queue.base import P, T, nothing
from delayed_queue.queue.batches import Batching
from delayed_queue.queue.dealing import UNLIMITED
from delayed_queue.queue.group_claims import IDLE_MS, GroupClaim, GroupWalk
from delayed_queue.queue.store.claim import ConsumedRow, LeasedRow
from delayed_queue.queue.store.finishing import DONE, EXPIRED, batches_of
from delayed_queue.queue.store.groups import GroupLease
from delayed_queue.retries import RetryPolicy

# At most N claims by group that find nothing in one poll; the next poll continues behind them.
MOST_LOOKS: Final = 20
# Seconds for which a poller assumes that a queue has no limits.
TRUST_SECONDS: Final = 1.0


class Leasing(Batching):
    """The operations on leased messages, called by envelopes and batches."""

    def acknowledge(self, envelope: Envelope) -> bool:
        """Delete the message, if the envelope's lease still holds it.

        Raises OutcomeUnknown when the connection was lost and the message is gone.
        """
        return bool(self._acknowledge(envelope.lease_id, [envelope]))

    def _acknowledge(self, lease_id: str, envelopes: Sequence[Envelope]) -> list[int]:
        acknowledge = partial(
            self._messages.acknowledge, lease_id, [each.message_id for each in envelopes],
            batches=batches_of(envelopes), now=self._now(), using=self.using,
        )  # fmt: skip
        return self._repeat(acknowledge, doubt=nothing)

    def acknowledge_batch(self, batch: Batch) -> int:
        """Delete every member of the batch still under its lease; return their number."""
        if not batch:
            return 0
        if batches_of(batch):
            return len(self._acknowledge(batch.lease_id, batch))
        deleted: int = self._repeat(
            lambda: self._messages.acknowledge_lease(batch.lease_id, using=self.using),
            doubt=nothing,
        )
        return deleted

    def release(self, envelope: Envelope, delay: Duration | None = None, error: str = "") -> bool:
        """Release the message, due after the delay, if the lease still holds it."""
        wait = check_delay(delay, self._local_now()) or 0
        return self._settle(envelope, Verdict(wait * MILLISECOND, error=storable(error)))

    def extend(self, envelope: Envelope, duration: Duration | None = None) -> bool:
        """Prolong the lease to at least now + duration, if it still holds the message."""
        lease = check_lease(self.lease_duration if duration is None else duration)
        rows = self._repeat(
            lambda: self._messages.extend(
                [envelope.lease_id], [envelope.message_id], lease // MILLISECOND,
                now=self._now(), using=self.using,
            ),
            doubt=never,
        )  # fmt: skip
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
        """Settle a failed attempt: by the policy or the handler's signal."""
        return self._settle(envelope, judge(error, envelope.attempt, policy or self.retry_policy))

    def _settle(self, envelope: Envelope, verdict: Verdict) -> bool:
        """Write the verdict on the message, if the lease still holds it."""
        ids, lease_id = [envelope.message_id], envelope.lease_id
        if verdict.delay is None:
            reason = storable(verdict.reason) or "rejected"
            dead_letter = partial(
                self._dead_letter, lease_id, ids, reason, verdict.error or None,
                batches_of([envelope]),
            )  # fmt: skip
            return bool(self._repeat(dead_letter, doubt=nothing))
        release = partial(
            self._messages.release, lease_id, ids, delay=verdict.delay // MILLISECOND,
            refund=0 if verdict.counts else 1, error=verdict.error or None, now=self._now(),
            using=self.using,
        )  # fmt: skip
        released = bool(self._repeat(release, doubt=nothing))
        if released and verdict.delay <= self.poll_interval:
            self._wake()
        return released

    def _release_unacknowledged(self, lease_id: str, ids: Sequence[int], *, refund: int = 0) -> int:
        """Release members of a lease, due now; return their number.

        ``refund=1`` does not count the attempt and restores the old due time, for messages that no
        handler has seen or whose worker is stopped.
        """
        release = partial(
            self._messages.release, lease_id, ids, delay=None if refund else 0, refund=refund,
            now=self._now(), using=self.using,
        )  # fmt: skip
        released = len(self._repeat(release, doubt=never))
        if released:
            self._wake()
        return released

    def _dead_letter(
        self,
        lease_id: str,
        ids: Sequence[int],
        reason: str,
        error: str | None,
        batches: Collection[int],
    ) -> list[int]:
        return self._messages.dead_letter(
            lease_id, ids, reason, error=error, batches=batches, now=self._now(), using=self.using
        )

    async def in_thread(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call in asgiref's thread, whose connections Django's async code shares."""
        return await sync_to_async(call)(*args, **kwargs)


TakenRow = LeasedRow | ConsumedRow


class Polling(Leasing):
    """The consumer's side of a queue."""

    # The position among the groups while the queue has limits.
    _walk: GroupWalk | None = None
    # Until this monotonic time the queue is assumed to have no limits.
    _unlimited_until = 0.0

    def try_poll(self) -> Envelope | None:
        """Lease the earliest due message, or return None when none is due."""
        batch = self.try_poll_many(1)
        return batch[0] if batch else None

    def try_poll_many(self, limit: int) -> Batch:
        """Lease up to ``limit`` of the earliest due messages under one lease id.

        A message whose payload does not decode becomes a dead letter, an expired one is deleted;
        neither is returned. With ``claim="strict"`` it waits for another claim of the queue, which
        lasts to the end of its transaction.
        """
        limit = min(limit, UNLIMITED)  # the largest integer of PostgreSQL
        lease_id = ""
        envelopes: list[Envelope] = []
        while limit > 0 and not envelopes:
            lease_id, rows = self._repeat(partial(self._claim, limit))
            log_poll(self.name, [row.key for row in rows])
            if not rows:
                break
            envelopes = self._drop_expired(self._open_rows(rows, lease_id), lease_id)
        return Batch(tuple(envelopes), lease_id, self)

    def _claim(self, limit: int) -> tuple[str, list[LeasedRow]]:
        # A new lease for each try: a claim whose reply was lost may have leased other messages,
        # and acknowledging this batch must not delete them.
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
            self.kind, limit, lease_id, self.lease_duration // MILLISECOND,
            strict=self.claim == "strict", now=self._now(), using=self.using,
        )  # fmt: skip

    def _has_limits(self) -> bool:
        """True if plain claims find nothing because the queue has limits.

        Reads them at most once a second, so that most empty polls are one statement.
        """
        if time.monotonic() < self._unlimited_until:
            return False
        rules = self._limits.rules(self.kind, now=self._now(), using=self.using)
        if rules is None:
            self._unlimited_until = time.monotonic() + TRUST_SECONDS
        return rules is not None and not rules.is_paused

    def _write_limits(self, write: Callable[[int | None], T]) -> T:
        """Write limits, which the next poll of this object reads."""
        written = super()._write_limits(write)
        self._unlimited_until = 0.0
        return written

    def _claim_limited(self, limit: int, lease_id: str) -> list[LeasedRow]:
        """Lease messages of the groups behind those of the last claim."""
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
        """Make at most ``looks`` claims by group until one finds something; return the last.

        Each runs in its own transaction or the caller's, and waits for other claims of the queue at
        most ``wait`` milliseconds.
        """
        lease = GroupLease(lease_id, retaken_id, self.lease_duration // MILLISECOND)
        # A caller's transaction may be idle for longer.
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

    def _drop_expired(self, envelopes: list[Envelope], lease_id: str) -> list[Envelope]:
        """Delete the messages that had expired when they were claimed; return the others."""
        expired = [each for each in envelopes if has_expired(each)]
        if not expired:
            return envelopes
        delete = partial(
            self._messages.acknowledge, lease_id, [each.message_id for each in expired],
            outcome=EXPIRED, batches=batches_of(expired), now=self._now(), using=self.using,
        )  # fmt: skip
        self._repeat(delete, doubt=never)
        for each in expired:
            log(logging.INFO, "expired", queue=self.name, key=each.key)
        return [each for each in envelopes if not has_expired(each)]

    def _open_rows(self, rows: Sequence[LeasedRow], lease_id: str) -> list[Envelope]:
        """Decode leased rows into envelopes; dead-letter those that do not decode (Q22)."""
        envelopes, open_row = [], self._envelope_of
        for row in rows:
            try:
                envelopes.append(open_row(row, lease_id))
            except PayloadNotDecodable as error:
                self._dead_letter_undecodable(row, lease_id, error)
        return envelopes

    def _envelope_of(self, row: TakenRow, lease_id: str) -> Envelope:
        """Decode a row as a claim returns it; raises PayloadNotDecodable."""
        # Positional arguments are faster, and a worker opens every message here.
        return Envelope(
            row.key, decode(self.codec, row.payload), self.name, row.attempts, lease_id, row.id,
            row.scheduled_at, row.due_at, row.leased_until,
            json.loads(row.headers) if row.headers else {}, self, row.group, row.expires_in,
            row.is_retaken, row.batch_id,
        )  # fmt: skip

    def _dead_letter_undecodable(
        self, row: TakenRow, lease_id: str, error: PayloadNotDecodable
    ) -> None:
        reason, text = "payload not decodable", error_text(error)
        self._repeat(
            partial(self._dead_letter, lease_id, [row.id], reason, text, batches_of([row]))
        )

    def poll(
        self, timeout: Duration | None = None, *, stop: StopSignal | None = None
    ) -> Envelope | None:
        """Wait for a message that is due, and lease it.

        Returns None only when the timeout has passed or ``stop`` was
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
                    # Poll again afterwards: a message that fell due since the poll above is not
                    # counted here.
                    nap = self.seconds_to_next_look()
                    continue
                listener.wait(min(nap, left), stop)
                nap = None

    def _try_poll_until(self, stop: StopSignal | None) -> Envelope | None:
        if stop is None:
            return self.try_poll()
        try:
            with stop.cancelling(self.using):
                # Checked here: when it was set earlier, there was nothing to cancel.
                return None if stop.is_set() else self.try_poll()
        except OperationalError:
            # query_canceled: the stop signal ended the statement, and nothing was leased.
            if stop.is_set():
                return None
            raise

    def seconds_to_next_look(self) -> float:
        """Return the seconds to the next due time, or the poll interval if that is shorter."""
        horizon = self.poll_interval // MILLISECOND
        next_due = self._repeat(
            lambda: self._messages.next_due([self.kind], horizon, now=self._now(), using=self.using)
        )
        return self.poll_interval.total_seconds() if next_due is None else next_due / 1000

    @contextmanager
    def consume(self) -> Iterator[Envelope | None]:
        """Handle the earliest due message and delete it in one transaction.

        Yields None when nothing is due. If the block raises, its writes on this connection are
        rolled back, the attempt is counted and the message retried or dead-lettered by policy, in
        the same transaction; the error then leaves the block, except ``Snooze``, ``Retry`` and
        ``Reject``. Cannot be used inside a transaction.
        """
        failure: BaseException | None = None
        with self._transaction(durable=True):
            row, envelope = self._take()
            try:
                with self._handler_block():
                    yield envelope
                    if envelope is not None:
                        self._leave_batch(envelope)
                        self._check_effects()
            # A handler may raise anything; the count must be written first.
            except Exception as error:
                failure = error
                if row is not None and envelope is not None:
                    self._count_failure(row, envelope, error)
        if failure is not None and envelope is not None:
            envelope.is_settled = True
        if failure is not None and not isinstance(failure, HandlerSignal):
            raise failure

    def _take(self) -> tuple[ConsumedRow, Envelope] | tuple[None, None]:
        """Take the earliest due message that decodes and has not expired."""
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
                envelope = self._envelope_of(rows[0], lease_id)
                envelope.is_consumed = True
                if not has_expired(envelope):  # else it is deleted already
                    return rows[0], envelope
                self._leave_batch(envelope, EXPIRED)
                log(logging.INFO, "expired", queue=self.name, key=envelope.key)
            except PayloadNotDecodable as error:
                self._restore(rows[0], lease_id)
                self._dead_letter_undecodable(rows[0], lease_id, error)

    def _leave_batch(self, envelope: Envelope, outcome: str = DONE) -> None:
        """Count a member that the open transaction has deleted."""
        if envelope.batch_id is not None:
            numbers = {(envelope.batch_id, outcome): 1}
            self._batches.remove(numbers, now=self._now(), using=self.using)

    def _count_failure(self, row: ConsumedRow, envelope: Envelope, error: Exception) -> None:
        """Put the message back and settle the failure; an error rolls everything back."""
        try:
            self._restore(row, envelope.lease_id)
            self.fail(envelope, error)
        except Error as lost:
            is_refused = sqlstate_of(lost) is not None and not is_unavailable(lost)
            if isinstance(error, HandlerSignal) or is_refused:
                raise
            # The connection is lost, often because of the handler's error.
            raise error from lost

    def _restore(self, row: ConsumedRow, lease_id: str) -> None:
        self._messages.restore(self.kind, row, lease_id, using=self.using)

    def _listener(self) -> Listener:
        return Listener([self.kind], self.using)


def _stopped(stop: StopSignal | None) -> bool:
    return stop is not None and stop.is_set()


def seconds_of(timeout: Duration) -> float:
    return check_duration("timeout", timeout, most=timedelta.max).total_seconds()
