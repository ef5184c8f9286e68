"""Transactional handlers that receive many messages: a call and its transaction are one (B5)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from django.db import Error, transaction

from delayed_queue.batch import CalledBatch
from delayed_queue.cron.runs import is_tick
from delayed_queue.db.resilience import is_conflict, is_unavailable, through_conflicts
from delayed_queue.handlers import Snooze
from delayed_queue.messages import Envelope, has_expired
from delayed_queue.queue.models import Message
from delayed_queue.queue.store.claim import ConsumedRow
from delayed_queue.splits import Split
from delayed_queue.worker.engine.calls import MOST_BYTES
from delayed_queue.worker.engine.transactions import (
    BatchFailed,
    SuspectsFound,
    TransactionalRun,
)


class BatchRun(TransactionalRun):
    """The batches of a handler with ``many=True``, each with its effects in one transaction.

    If the call fails, the batch is undone, and its halves are taken in transactions of their own
    until the failing messages are alone.
    """

    # Messages of the last batch to handle alone, by their positions, and its ids.
    _alone: Sequence[int] = ()
    _ids: frozenset[int] = frozenset()
    # Decisions of the handler about single messages of it.
    _decided: list[tuple[Envelope, BaseException]]

    def _take_batch(self, before: int, last: tuple[int, int] | None, limit: int) -> None:
        self._decided, self._alone = [], ()
        super()._take_batch(before, last, limit)
        self.failures.extend(self._decided)

    def _handle_all(self, rows: list[ConsumedRow], began_at: float) -> None:
        self._ids = frozenset(row.id for row in rows)
        if len(rows) > 1:
            self._check_size(rows)
        envelopes = [self._opened(row) for row in rows]
        now = time.monotonic()
        expired = {each for each in envelopes if has_expired(each, now - began_at)}
        self.expired |= {each.message_id for each in expired}
        wanted = [each for each in envelopes if each not in expired]
        outcomes = self._call_many(wanted) if wanted else {}
        for row, envelope in zip(rows, envelopes, strict=True):
            if envelope in outcomes:
                envelope.lease_id = self._restore(row)
        self._end([each for each in envelopes if each not in outcomes])
        for envelope in outcomes:
            self._decide(envelope, outcomes[envelope])

    def _check_size(self, rows: list[ConsumedRow]) -> None:
        """Undo a batch with messages to handle alone, or with more than a call receives."""
        is_split = self.consumer.handler.split
        self._alone = [
            n for n, row in enumerate(rows) if (is_split and row.attempts > 1) or is_tick(row)
        ]
        if self._alone or sum(len(row.payload) for row in rows) > MOST_BYTES:
            raise BatchFailed

    def _call_many(self, envelopes: list[Envelope]) -> dict[Envelope, BaseException]:
        """Call the handler; return what it decided about single messages."""
        first = envelopes[0]
        if len(envelopes) == 1 and is_tick(first):
            self._call(first)
            return {}
        name = f"{first.key} and {len(envelopes) - 1} more"
        call = replace(first, key=name, message_id=-first.message_id)
        batch = CalledBatch.of(envelopes, call)
        self._call(call, lambda _: self.consumer.call_many(batch))
        return batch.outcomes

    def _decide(self, envelope: Envelope, outcome: BaseException) -> None:
        """Settle a restored message that the handler has not handled.

        All are restored before: one that dies must not finish the batch that others are members of.
        """
        self.consumer.queue.fail(envelope, outcome, self.consumer.policy)
        self._decided.append((envelope, outcome))

    def _restore(self, row: ConsumedRow) -> str:
        """Put a message back under a lease; return the lease's id."""
        queue, lease_id = self.consumer.queue, str(uuid.uuid4())
        Message.objects.restore(queue.kind, row, lease_id, using=queue.using)
        return lease_id

    # After a failure

    def _take_apart(self, count: int, last: tuple[int, int] | None, error: Exception) -> None:
        whole, cause = self._scan.last, error.__cause__
        is_whole = count == 1 or isinstance(cause, Snooze) or not self.consumer.handler.split
        was_called = cause is not None and not isinstance(cause, BatchFailed)
        if cause is not None and was_called and is_whole and len(self._ids) == count:
            through_conflicts(partial(self._fail_whole, count, last, cause))
        else:
            self._scan.last = last
            self._take_parts(Split(count, self._alone))
        self._scan.found, self._scan.last = count, whole

    def _take_parts(self, split: Split) -> None:
        if not self._alone and (whole := split.next_part()):
            split.failed(whole)  # one message is taken once more
            if len(whole) == 1:
                self._take_one()
        while (part := split.next_part()) is not None:
            if len(part) == 1:
                if not self._take_one():
                    return
            elif not self._takes(len(part)):
                split.failed(part)

    def _takes(self, limit: int) -> bool:
        """Take a part of a batch; return whether it was committed."""
        before, last, alone = len(self.done), self._scan.last, self._alone
        try:
            through_conflicts(partial(self._take_batch, before, last, limit))
        except (BatchFailed, SuspectsFound, Error) as error:
            if is_unavailable(error) and not is_conflict(error):
                raise
            del self.done[before:]
            self._scan.last, self._alone = last, alone
            return False
        return True

    def _fail_whole(self, count: int, last: tuple[int, int] | None, error: BaseException) -> None:
        """Record the failure of a call with all its messages."""
        queue, self._decided, self._scan.last = self.consumer.queue, [], last
        failed: list[Envelope] = []
        with transaction.atomic(using=queue.using, durable=True):
            for row in Message.objects.take(
                queue.kind, count, floor=self._position, using=queue.using
            ):
                envelope = self._opened(row)
                envelope.lease_id = self._restore(row)
                if row.id in self._ids:
                    failed.append(envelope)
                else:  # offered or due since
                    queue._release_unacknowledged(envelope.lease_id, [row.id], refund=1)
            for envelope in failed:
                self._decide(envelope, error)
        self.failures.extend(self._decided)
