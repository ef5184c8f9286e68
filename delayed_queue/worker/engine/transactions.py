"""Transactional handlers: a batch is taken, handled and deleted in one transaction (W11)."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.db import Error, transaction

from delayed_queue.cron.runs import DEAD, DONE, FAILED, is_tick, record_step
from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import (
    drop_if_lost,
    is_conflict,
    is_unavailable,
    through_conflicts,
)
from delayed_queue.db.statements import execute, fetch
from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.exceptions import PayloadNotDecodable
from delayed_queue.handlers import Snooze, attempts_used_up, judge
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND, Envelope, has_expired, to_milliseconds
from delayed_queue.queue.models import Message, StoredBatch
from delayed_queue.queue.store import finishing as store
from delayed_queue.queue.store.claim import ConsumedRow
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.executor import Run
from delayed_queue.worker.engine.refusals import WriteRefused, wait_after
from delayed_queue.worker.engine.scanning import Poll, PollResult
from delayed_queue.worker.engine.ticks import TickTimes

# A run takes batches for N seconds before the worker may give its thread to another consumer.
GO_ON_SECONDS: Final = 0.05


class BatchFailed(Exception):
    """A message failed: undo the batch, and take its messages one by one."""


class SuspectsFound(Exception):
    """Messages may have killed a process: undo the batch, and take its messages alone."""


class _Conflict(BaseException):
    """A handler's write met another transaction. No Exception, so that nothing is counted."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


@dataclass(slots=True)
class _Scan:
    """The progress of a run: its last batch, and the last message of it."""

    found: int = 0
    # The due time and id of the last message taken.
    last: tuple[int, int] | None = None
    next_due_in: int | None = None
    # Duration of the first statement that searched for messages.
    seconds: float | None = None


class TransactionalRun(Run):
    """Some batches of a consumer, handled by one handler thread; at its end it is in ``ended``.

    No lease is written and no savepoint set. A batch commits with all its effects. If one message
    fails, the batch is undone and its messages are taken one by one, each in a transaction that
    counts its failure. Effects outside the database may so happen twice.

    While suspects must run alone, a batch with suspects is undone too; a run that ``is_alone`` then
    takes ``suspects`` messages one by one.
    """

    def __init__(
        self,
        consumer: Consumer,
        poll: Poll,
        ended: deque[TransactionalRun],
        wake_channel: WakeChannel,
        board: Board,
        *,
        worker: str,
        goes_on: bool,
        is_alone: bool = False,
    ) -> None:
        self.consumer = consumer
        self.poll = poll
        self._scan = _Scan()
        self.total = self.suspects = 0
        self.is_alone = is_alone
        self.done: list[Envelope] = []
        # Those of ``done`` that were not handled, because they had expired.
        self.expired: set[int] = set()
        self.failures: list[tuple[Envelope, BaseException]] = []
        # Messages for which the database refused a write, and the errors.
        self.refused: list[tuple[Envelope, BaseException]] = []
        self.error: Exception | None = None
        # True if every try met other transactions: then it has done nothing.
        self.met_conflict = False
        self.seconds = 0.0
        # The start of the run, in milliseconds of the database's clock.
        self._began_at = 0
        self._ended = ended
        self._wake_channel = wake_channel
        self._board = board
        self._worker = worker
        self._ticks = TickTimes(consumer.call, is_async=False)
        self._goes_on = goes_on
        self._slot = 0

    def run(self, slot: int) -> None:
        self._slot = slot
        began_at = time.monotonic()
        self._board.mark(slot, is_suspect=self.is_alone, is_transactional=True)
        try:
            self._work()
        # The worker must learn of every error that ends this run.
        except Exception as error:
            self.met_conflict = is_conflict(error)
            self.error = None if self.met_conflict else error
        finally:
            self._board.take(slot, 0)
            self._board.mark(slot, is_suspect=False)
            self.seconds = time.monotonic() - began_at
            self._ended.append(self)
            self._wake_channel.wake()

    @property
    def result(self) -> PollResult:
        """The result of its last batch."""
        scan = self._scan
        latest, last_id = scan.last or (None, 0)
        return PollResult(scan.found, latest, scan.next_due_in, scan.seconds, last_id=last_id)

    def note_times(self) -> None:
        """Record the lateness of the messages, and the run time of each."""
        now, tally = self._began_at + int(self.seconds * 1000), self.consumer.tally
        tally.note_lateness([now - each.due_at_ms for each in self.done])
        if self.total:
            tally.note_runs([self.seconds / self.total] * self.total)

    def record_failures(self) -> None:
        """Record the failed runs of schedules, after the transaction that counted them."""
        policy = self.consumer.policy
        for envelope, error in self.failures:
            if is_tick(envelope) and not isinstance(error, Snooze):
                is_dead = judge(error, envelope.attempt, policy).is_dead
                self.record_runs([envelope], DEAD if is_dead else FAILED)

    def record_runs(self, envelopes: list[Envelope], outcome: str) -> None:
        runs = [self._ticks.run(each, outcome) for each in envelopes]
        queue = self.consumer.queue
        try:
            with transaction.atomic(using=queue.using):
                fetch(queue.using, *record_step(queue.kind, self._worker, runs, fenced=False))
        except Error as error:
            if is_unavailable(error):
                raise
            log(logging.WARNING, "run_not_recorded", error=described(error))

    def cancel(self) -> None:
        """End before a thread has started it."""
        self._ended.append(self)

    def _work(self) -> None:
        """Take batches while they are full, for a short time: other consumers wait."""
        queue = self.consumer.queue
        drop_if_lost(queue.using)
        self._began_at = to_milliseconds(database_now(queue.using))
        if self.poll.asks_ahead:
            horizon = queue.poll_interval // MILLISECOND
            self._scan.next_due_in = Message.objects.next_due(
                [queue.kind], horizon, using=queue.using
            )
        ends_at = time.monotonic() + GO_ON_SECONDS
        while True:
            self._take()
            is_full = self._scan.found == self.poll.limit
            goes_on = is_full and self._goes_on and not self.is_alone
            if not goes_on or time.monotonic() >= ends_at:
                return

    def _take(self) -> None:
        before, last = len(self.done), self._scan.last
        try:
            if self.is_alone:
                self._take_one_by_one(self.poll.limit)
                self._scan.found = len(self.done) + len(self.failures)
            else:
                through_conflicts(partial(self._take_batch, before, last, self.poll.limit))
        except SuspectsFound:
            self.suspects, self._scan.found = self._scan.found, 0
        except (BatchFailed, Error) as error:
            if is_unavailable(error) and not (self._scan.found and is_conflict(error)):
                raise
            del self.done[before:]
            # Without a number, the statement that takes them was refused because of one of them.
            self._take_apart(self._scan.found or self.poll.limit, last, error)
        self.total += self._scan.found

    def _take_apart(self, count: int, last: tuple[int, int] | None, error: Exception) -> None:
        """Take the messages of a batch that failed, which began after ``last``."""
        self._take_one_by_one(count)

    def _take_one_by_one(self, count: int) -> None:
        for _ in range(count):
            if not self._take_one():
                return

    def _take_batch(self, before: int, last: tuple[int, int] | None, limit: int) -> None:
        # Messages of an earlier try are available again.
        del self.done[before:]
        self._scan.found, self._scan.last = 0, last
        queue, began_at = self.consumer.queue, time.monotonic()
        try:
            with transaction.atomic(using=queue.using, durable=True):
                rows = Message.objects.take(
                    queue.kind, limit, floor=self._position, using=queue.using
                )
                self._scan.found = len(rows)
                if self._scan.seconds is None:
                    self._scan.seconds = time.monotonic() - began_at
                if rows:
                    self._check_suspects(rows)
                    self._scan.last = rows[-1].due_at, rows[-1].id
                    self._handle_all(rows, began_at)
        except SuspectsFound:
            raise
        # Also an error of the commit: a deferred constraint, for example.
        except Exception as error:
            if not self._scan.found or is_conflict(error):
                raise
            raise BatchFailed from error

    @property
    def _position(self) -> tuple[int, int]:
        """The start of the poll, or the last message of the batch before."""
        return self._scan.last or (self.poll.position, self.poll.first_id)

    def _check_suspects(self, rows: list[ConsumedRow]) -> None:
        if self._board.alone_seconds and any(row.is_retaken for row in rows):
            raise SuspectsFound

    def _handle_all(self, rows: list[ConsumedRow], began_at: float) -> None:
        handled = []
        for row in rows:
            envelope = self._opened(row)
            if has_expired(envelope, time.monotonic() - began_at):
                self.expired.add(envelope.message_id)
            else:
                self._call(envelope)
            handled.append(envelope)
        self._end(handled)

    def _end(self, handled: list[Envelope]) -> None:
        """Note what this transaction has handled, and count it in batches of messages."""
        self.done.extend(handled)
        outcomes = {True: store.EXPIRED, False: store.DONE}
        numbers = Counter(
            (each.batch_id, outcomes[each.message_id in self.expired])
            for each in handled
            if each.batch_id is not None
        )
        if numbers:
            StoredBatch.objects.remove(numbers, using=self.consumer.queue.using)

    def _opened(self, row: ConsumedRow) -> Envelope:
        try:
            envelope = self.consumer.queue._envelope_of(row, "")
            envelope.is_consumed = True
        except PayloadNotDecodable as error:
            raise BatchFailed from error
        if envelope.attempt > self.consumer.policy.max_attempts:
            raise BatchFailed
        return envelope

    def _call(self, envelope: Envelope, function: Callable[[Envelope], Any] | None = None) -> None:
        self._board.take(self._slot, envelope.message_id)
        self.handling = envelope, time.monotonic()
        try:
            if is_tick(envelope):
                self._ticks.call(envelope)
                self.record_runs([envelope], DONE)
            else:
                (function or self.consumer.call)(envelope)
        except Exception:
            raise
        # A SystemExit is a failure, too, and does not end the worker.
        except BaseException as error:
            raise RuntimeError(f"The handler raised {type(error).__name__}.") from error

    def _take_one(self) -> bool:
        """Handle the earliest message in a transaction that also counts its failure.

        A conflict with another transaction counts as a failure only after several tries. Returns
        whether more may be available.
        """
        try:
            return through_conflicts(partial(self._try_one, counts_conflicts=False))
        except Error as error:
            if not is_conflict(error):
                raise
            return self._try_one(counts_conflicts=True)

    def _try_one(self, *, counts_conflicts: bool) -> bool:
        failure: list[Exception] = []
        taken: list[Envelope] = []
        try:
            with self.consumer.queue.consume() as envelope:
                if envelope is None:
                    return False
                taken.append(envelope)
                self._call_one(envelope, failure, counts_conflicts=counts_conflicts)
        except _Conflict as conflict:
            raise conflict.error from conflict.error.__cause__
        except Exception as error:
            is_counted = bool(taken) and taken[0].is_settled
            if error not in failure and not is_counted:
                # The database: an outage, or a refusal to take or settle the message.
                if not isinstance(error, Error) or is_unavailable(error):
                    raise
                return self._set_aside(error, taken)
            failure = failure or [error]
        if failure:
            self.failures.append((taken[0], failure[0]))
        else:
            self.done.append(taken[0])
        return True

    def _set_aside(self, error: Error, taken: list[Envelope]) -> bool:
        """Lease the message for which a write was refused, and retry it by the policy.

        The earliest message may be another one by now: that is released uncounted.
        """
        queue = self.consumer.queue
        envelope = queue.try_poll()
        if envelope is None:
            return False
        refusal: Error | None = error if taken else self._refusal_of(envelope)
        if refusal is None or (taken and taken[0].message_id != envelope.message_id):
            queue._release_unacknowledged(envelope.lease_id, [envelope.message_id], refund=1)
            return False
        failure = WriteRefused(refusal)
        self.refused.append((envelope, refusal))
        self.failures.append((envelope, failure))
        try:
            queue.fail(envelope, failure)
        except Error as further:  # no dead letter can be written either
            if is_unavailable(further):
                raise
            envelope.release(wait_after(envelope, self.consumer.policy.delays), str(failure))
        return True

    def _refusal_of(self, envelope: Envelope) -> Error | None:
        """Return why the message cannot be deleted, by a trial that is rolled back."""
        using = self.consumer.queue.using
        try:
            with transaction.atomic(using=using, durable=True):
                envelope.acknowledge()
                execute(using, "SET CONSTRAINTS ALL IMMEDIATE", {})
                transaction.set_rollback(True, using=using)
        except Error as error:
            if is_unavailable(error):
                raise
            return error
        return None

    def _call_one(self, envelope: Envelope, failure: list[Any], *, counts_conflicts: bool) -> None:
        if envelope.attempt > self.consumer.policy.max_attempts:
            failure.append(attempts_used_up(envelope))
            raise failure[0]
        try:
            self._call(envelope)
        except Exception as error:
            if is_conflict(error) and not counts_conflicts:
                raise _Conflict(error) from None
            failure.append(error)
            raise
