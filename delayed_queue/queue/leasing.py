"""Ending and changing leases, each write fenced by the lease it names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from asgiref.sync import sync_to_async

from delayed_queue.conf import check_lease
from delayed_queue.handlers import Verdict, judge, storable
from delayed_queue.messages import MILLISECOND, Batch, Envelope, check_delay
from delayed_queue.queue.base import QueueBase, nothing
from delayed_queue.retries import RetryPolicy


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
        return self.settle(envelope, Verdict(delay or timedelta(0), error=storable(error)))

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
            )
        )
        if rows:
            envelope.leased_until_ms = rows[0].leased_until
        else:
            envelope.lease_lost = True
        return bool(rows)

    def reject(self, envelope: Envelope, reason: str) -> bool:
        """Move the message to the dead letters, if the lease still holds it."""
        return self.settle(envelope, Verdict(None, reason))

    def fail(
        self, envelope: Envelope, error: BaseException, policy: RetryPolicy | None = None
    ) -> bool:
        """Settle a failed attempt: by the policy, or as the handler's signal says."""
        return self.settle(envelope, judge(error, envelope.attempt, policy or self.retry_policy))

    def settle(self, envelope: Envelope, verdict: Verdict) -> bool:
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

    def give_back(self, lease_id: str, ids: Sequence[int], *, refund: int = 0) -> int:
        """Release members of a lease, due now; return how many.

        ``refund=1`` takes back the attempt, for messages that no handler has seen; these have
        their place in the queue again.
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
        released = len(self._repeat(release))
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
