"""Transactional handlers: a batch is taken, handled and deleted in one transaction (W11)."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Any, Final

from django.db import Error, transaction

from delayed_queue.db.plans import plan_each_time
from delayed_queue.db.resilience import (
    drop_if_lost,
    is_conflict,
    is_unavailable,
    through_conflicts,
)
from delayed_queue.db.wakeups import Doorbell
from delayed_queue.exceptions import PayloadNotDecodable
from delayed_queue.handlers import Reject
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.models import Message
from delayed_queue.worker.board import Board
from delayed_queue.worker.lanes import CRASHED, MARGIN_MS, Lane, Look

Row = tuple[Any, ...]

# How long a job goes on taking batches before the worker may give its thread to another lane.
GO_ON_SECONDS: Final = 0.05


class _BatchFailed(Exception):
    """A member could not be handled: undo the batch, and take its messages one by one."""


class _SuspectsFound(Exception):
    """Members may have killed a process: undo the batch, and take its messages alone."""


class _Conflict(BaseException):
    """What a handler wrote met another transaction; no Exception, so that nothing is counted."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class Job:
    """Some batches of a lane, to be run by a handler thread; then found among ``ended``.

    No lease is written and no savepoint set: a batch commits with all its effects or, if one
    member fails, is undone and its messages are taken one by one, each in a transaction of its
    own that counts its failure. What a handler does elsewhere than in the database may so
    happen twice.

    A batch with suspects is undone, too, once they are to be alone: ``suspects`` says how many
    messages to take one by one by a job that **is alone**.
    """

    timeout = None

    def __init__(
        self,
        lane: Lane,
        look: Look,
        ended: deque[Job],
        bell: Doorbell,
        board: Board,
        *,
        goes_on: bool,
        is_alone: bool = False,
    ) -> None:
        self.lane = lane
        self.look = look
        # Of the last batch, and of all of them.
        self.found = self.total = self.suspects = 0
        self.is_alone = is_alone
        self.latest: int | None = None
        self.wait_ms: int | None = None
        self.done: list[Envelope] = []
        self.failures: list[tuple[Envelope, BaseException]] = []
        self.error: Exception | None = None
        # Whether it gave way to other transactions again and again: then it has done nothing.
        self.met_conflict = False
        self.seconds = 0.0
        # What the first of its statements took that look for messages.
        self.look_seconds: float | None = None
        self._ended = ended
        self._bell = bell
        self._board = board
        self._goes_on = goes_on
        self._seat = 0

    def run(self, seat: int) -> None:
        self._seat = seat
        began_at = time.monotonic()
        self._board.mark(seat, is_suspect=self.is_alone, is_transactional=True)
        try:
            self._work()
        # Whatever it is, the worker must hear that this job is over.
        except Exception as error:
            self.met_conflict = is_conflict(error)
            self.error = None if self.met_conflict else error
        finally:
            self._board.take(seat, 0)
            self._board.mark(seat, is_suspect=False)
            self.seconds = time.monotonic() - began_at
            self._ended.append(self)
            self._bell.ring()

    def cancel(self) -> None:
        """End it before a thread has begun it."""
        self._ended.append(self)

    def _work(self) -> None:
        """Take batches while they are full, for a short while: the worker has others to serve."""
        queue = self.lane.queue
        drop_if_lost(queue.using)
        plan_each_time(queue.using)
        if self.look.looks_ahead:
            horizon = queue.poll_interval // MILLISECOND
            self.wait_ms = Message.objects.next_due(queue.kind, horizon, using=queue.using)
        ends_at = time.monotonic() + GO_ON_SECONDS
        while True:
            self._take()
            is_full = self.found == self.look.limit
            goes_on = is_full and self._goes_on and not self.is_alone
            if not goes_on or time.monotonic() >= ends_at:
                return

    def _take(self) -> None:
        before = len(self.done)
        try:
            if self.is_alone:
                self._take_one_by_one(self.look.limit)
                self.found = len(self.done) + len(self.failures)
            else:
                through_conflicts(partial(self._take_batch, before, self.latest))
        except _SuspectsFound:
            self.suspects, self.found = self.found, 0
        except (_BatchFailed, Error) as error:
            if not self.found or not (isinstance(error, _BatchFailed) or is_conflict(error)):
                raise
            del self.done[before:]
            self._take_one_by_one(self.found)
        self.total += self.found

    def _take_one_by_one(self, count: int) -> None:
        for _ in range(count):
            self._take_one()

    def _take_batch(self, before: int, latest: int | None) -> None:
        # What an earlier try took is there again, from where that began.
        del self.done[before:]
        self.found, self.latest = 0, latest
        queue, look, began_at = self.lane.queue, self.look, time.monotonic()
        try:
            with transaction.atomic(using=queue.using, durable=True):
                rows = Message.objects.take(
                    queue.kind, look.limit, floor=self._floor, using=queue.using
                )
                self.found = len(rows)
                if self.look_seconds is None:
                    self.look_seconds = time.monotonic() - began_at
                if rows:
                    self._look_at(rows)
                    self.latest = rows[-1][4]
                    self._handle_all(rows)
        except _SuspectsFound:
            raise
        # Also what the commit finds: a deferred constraint that one of them broke.
        except Exception as error:
            if not self.found or is_conflict(error):
                raise
            raise _BatchFailed from error

    @property
    def _floor(self) -> int:
        """Begin where the look does, and then at its own low-water mark."""
        floor = self.look.floor
        return floor if self.latest is None else max(floor, self.latest - MARGIN_MS)

    def _look_at(self, rows: list[Row]) -> None:
        if self._board.alone_seconds and any(row[8] for row in rows):
            raise _SuspectsFound

    def _handle_all(self, rows: list[Row]) -> None:
        for row in rows:
            envelope = self._opened(row)
            self._call(envelope)
            self.done.append(envelope)

    def _opened(self, row: Row) -> Envelope:
        try:
            envelope = self.lane.queue.envelope_of(row, "")
        except PayloadNotDecodable as error:
            raise _BatchFailed from error
        if envelope.attempt > self.lane.policy.max_attempts:
            raise _BatchFailed
        return envelope

    def _call(self, envelope: Envelope) -> None:
        self._board.take(self._seat, envelope.message_id)
        try:
            self.lane.call(envelope)
        except Exception:
            raise
        # A SystemExit ends no worker: it is a failure like any other.
        except BaseException as error:
            raise RuntimeError(f"The handler raised {type(error).__name__}.") from error

    def _take_one(self) -> None:
        """Handle the earliest message in a transaction of its own, which counts a failure too.

        A conflict with other transactions is none, unless it comes again and again.
        """
        try:
            through_conflicts(partial(self._try_one, counts_conflicts=False))
        except Error as error:
            if not is_conflict(error):
                raise
            self._try_one(counts_conflicts=True)

    def _try_one(self, *, counts_conflicts: bool) -> None:
        failure: list[Exception] = []
        taken: list[Envelope] = []
        try:
            with self.lane.queue.consume() as envelope:
                if envelope is None:
                    return
                taken.append(envelope)
                self._call_one(envelope, failure, counts_conflicts=counts_conflicts)
        except _Conflict as conflict:
            raise conflict.error from conflict.error.__cause__
        # The database; anything else was counted: the handler's error, or one of what it wrote
        # that only a deferred constraint found.
        except Exception as error:
            if not taken or (is_unavailable(error) and error not in failure):
                raise
            failure = failure or [error]
        if failure:
            self.failures.append((taken[0], failure[0]))
        else:
            self.done.append(taken[0])

    def _call_one(self, envelope: Envelope, failure: list[Any], *, counts_conflicts: bool) -> None:
        if envelope.attempt > self.lane.policy.max_attempts:
            failure.append(Reject(CRASHED))
            raise failure[0]
        try:
            self._call(envelope)
        except Exception as error:
            if is_conflict(error) and not counts_conflicts:
                raise _Conflict(error) from None
            failure.append(error)
            raise
