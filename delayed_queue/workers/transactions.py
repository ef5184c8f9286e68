"""Transactional handlers: a batch is taken, handled and deleted in one transaction (W11)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.db import InterfaceError, OperationalError, transaction

from delayed_queue.exceptions import PayloadNotDecodable
from delayed_queue.handlers import Reject
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.models import Message
from delayed_queue.plans import plan_each_time
from delayed_queue.resilience import drop_if_lost
from delayed_queue.wakeups import Doorbell
from delayed_queue.workers.board import Board
from delayed_queue.workers.lanes import CRASHED, MARGIN_MS, Lane, Look

Row = tuple[Any, ...]

# How long one suspect waits for another before it is handled beside it.
APART_SECONDS: Final = 1.0
# How long a job goes on taking batches before the worker may give its thread to another lane.
GO_ON_SECONDS: Final = 0.05
_one_suspect: Final = threading.Lock()


class _BatchFailed(Exception):
    """A member could not be handled: undo the batch, and take its messages one by one."""


class Job:
    """Some batches of a lane, to be run by a handler thread; then found among ``ended``.

    No lease is written and no savepoint set: a batch commits with all its effects or, if one
    member fails, is undone and its messages are taken one by one, each in a transaction of its
    own that counts its failure. What a handler does elsewhere than in the database may so
    happen twice.
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
    ) -> None:
        self.lane = lane
        self.look = look
        # Of the last batch, and of all of them.
        self.found = self.total = 0
        self.latest: int | None = None
        self.wait_ms: int | None = None
        self.done: list[Envelope] = []
        self.failures: list[tuple[Envelope, BaseException]] = []
        self.error: Exception | None = None
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
        self._board.mark(seat, is_suspect=False, is_transactional=True)
        try:
            self._work()
        # Whatever it is, the worker must hear that this job is over.
        except Exception as error:
            self.error = error
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
            if not (is_full and self._goes_on) or time.monotonic() >= ends_at:
                return

    def _take(self) -> None:
        before = len(self.done)
        self.found = 0
        try:
            self._take_batch()
        except _BatchFailed:
            del self.done[before:]
            for _ in range(self.found):
                self._take_one()
        self.total += self.found

    def _take_batch(self) -> None:
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
                    self.latest = rows[-1][4]
                    self._handle_all(rows)
        # Also what the commit finds: a deferred constraint that one of them broke.
        except Exception as error:
            if not self.found:
                raise
            raise _BatchFailed from error

    @property
    def _floor(self) -> int:
        """Begin where the look does, and then at its own low-water mark."""
        floor = self.look.floor
        return floor if self.latest is None else max(floor, self.latest - MARGIN_MS)

    def _handle_all(self, rows: list[Row]) -> None:
        for row in rows:
            envelope = self._opened(row)
            if row[8]:
                with self._apart():
                    self._call(envelope)
            else:
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

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Handle a message that may have killed its last worker beside no other such one."""
        is_ours = _one_suspect.acquire(timeout=APART_SECONDS)
        self._board.mark(self._seat, is_suspect=True, is_transactional=True)
        try:
            yield
        finally:
            self._board.mark(self._seat, is_suspect=False, is_transactional=True)
            if is_ours:
                _one_suspect.release()

    def _take_one(self) -> None:
        """Handle the earliest message in a transaction of its own, which counts a failure too."""
        failure: list[Exception] = []
        taken: list[Envelope] = []
        try:
            with self.lane.queue.consume() as envelope:
                if envelope is None:
                    return
                taken.append(envelope)
                self._call_one(envelope, failure)
        # The connection; anything else was counted: the handler's error, or one of what it
        # wrote that only a deferred constraint found.
        except (OperationalError, InterfaceError) as error:
            if error not in failure:
                raise
        except Exception as error:
            if not taken:
                raise
            failure = failure or [error]
        if failure:
            self.failures.append((taken[0], failure[0]))
        else:
            self.done.append(taken[0])

    def _call_one(self, envelope: Envelope, failure: list[Any]) -> None:
        if envelope.attempt > self.lane.policy.max_attempts:
            failure.append(Reject(CRASHED))
            raise failure[0]
        try:
            self._call(envelope)
        except Exception as error:
            failure.append(error)
            raise
