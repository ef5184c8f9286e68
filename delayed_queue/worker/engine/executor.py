"""Pools that handle messages, and the pool of handler threads."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, TypeVar

from django.db import connections

from delayed_queue.db.kept import expect_first_statement
from delayed_queue.db.resilience import tidy_connections
from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.exceptions import HandlerTimeout
from delayed_queue.handlers import current_envelope
from delayed_queue.messages import Envelope
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.claims import Claim
from delayed_queue.worker.engine.consumers import AVERAGED
from delayed_queue.worker.engine.running import RunningHandler

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

# A worker leases what its pool starts within this time, in seconds, and at most N batches: two that
# are being claimed, and two that are handled meanwhile. More would keep messages from idle workers,
# less would leave the pool waiting for claims.
AHEAD_SECONDS: Final = 0.1
BATCHES_AHEAD: Final = 4
# Estimate for a message, in seconds, before one has ended: long, so that a few slots lease nothing
# ahead.
FIRST_SECONDS: Final = 1.0
# Results gather for N seconds before a sleeping worker is woken to acknowledge them.
GATHER_SECONDS: Final = 0.002
# Seconds between two checks of a busy thread for connections that exceed CONN_MAX_AGE. An idle
# thread checks after this time, and any thread after an error.
TIDY_SECONDS: Final = 1.0
# Seconds between two checks for connections that broke without an error of the handler.
CHECK_SECONDS: Final = 0.001

# A message that waits for a handler.
Work = tuple[Claim, Envelope]
T = TypeVar("T")


class Run:
    """Work of a handler thread that is more than one message."""

    # The message that it handles now.
    handling: tuple[Envelope, float] | None = None

    def run(self, slot: int) -> None:
        """Run in the thread of that slot."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End before a thread has started it."""
        raise NotImplementedError


class Pool:
    """Handles at most ``capacity`` messages at a time.

    ``seconds_each`` is a moving average of the time of a message, which decides how many are
    claimed ahead. If the messages before them take longer than that, ``take_back_stalled`` returns
    those that were claimed ahead.
    """

    def __init__(
        self, capacity: int, wake_channel: WakeChannel, board: Board, first_slot: int
    ) -> None:
        self.capacity = capacity
        self.seconds_each = FIRST_SECONDS
        self._completed = 0
        self._ended_at = self._submitted_at = self.looked_at = 0.0
        self._wake_channel = wake_channel
        self._board = board
        self._first_slot = first_slot
        self._slept_at: float | None = None

    def start(self) -> None:
        raise NotImplementedError

    def submit(self, claim: Claim, envelopes: Iterable[Envelope]) -> None:
        """Handle the messages; each ends in the claim's ``done`` or ``failures``."""
        raise NotImplementedError

    def waiting(self) -> int:
        """Return the number of messages that were not started."""
        raise NotImplementedError

    def take_back(self) -> list[Work]:
        """Remove and return the messages that were not started."""
        raise NotImplementedError

    def running(self) -> list[RunningHandler]:
        """Return the handlers that have started; may be called from another thread."""
        raise NotImplementedError

    def stop(self, seconds: float) -> None:
        """Wait up to N seconds for what was started."""
        raise NotImplementedError

    def ahead(self, batch_size: int, unhandled: int, share: float = 1.0) -> int:
        """Return how many messages may be leased beyond the capacity."""
        if batch_size == 1:  # the operator wants one by one
            return 0
        if unhandled and self.stalls_in() <= 0:  # it is unknown when a slot will be free
            return 0
        each = max(self.seconds_each, 1e-9)  # a coarse clock may measure 0
        started_soon = int(self.capacity * AHEAD_SECONDS * share / each)
        return min(started_soon, BATCHES_AHEAD * batch_size)

    def room(self, batch_size: int, unhandled: int, share: float = 1.0) -> int:
        """Return how many messages to claim now: none rather than few, unless the pool is idle.

        ``share`` is the fraction of the time for which messages are leased ahead.
        """
        ahead = self.ahead(batch_size, unhandled, share)
        free = min(self.capacity + ahead - unhandled, batch_size)
        # A claim costs much the same for one message as for fifty. Claim while half of what was
        # leased ahead is left, so that no slot has to wait.
        if free < min(ahead, batch_size) / 2:
            return max(min(self.capacity - unhandled, batch_size), 0)
        return free

    def share(self, batch_size: int, unhandled: int, held: int) -> int:
        """Return how many messages a consumer that holds ``held`` may claim.

        No consumer holds more than it leaves free.
        """
        ahead = self.ahead(batch_size, unhandled)
        free = self.capacity + ahead - unhandled
        if free <= 0:
            return 0
        more = (free - held) // 2
        if not held:
            return min(max(more, 1), batch_size)
        # None rather than few, as above.
        return min(more, batch_size) if more >= min(free + held, ahead) / 4 else 0

    def take_back_stalled(self) -> list[Work]:
        """Return what waits, if nothing has ended for longer than expected."""
        if self.nap() > 0:
            return []
        self.looked_at = time.monotonic()
        return self.take_back()

    def nap(self) -> float:
        """Return the seconds until what waits may have to be taken back."""
        if not self.waiting():
            return math.inf
        # Runs are never taken back, so do not check for them all the time.
        return max(self.stalls_in(), self.looked_at + AHEAD_SECONDS - time.monotonic())

    def stalls_in(self) -> float:
        """Return the seconds until the pool counts as stalled, unless something ends."""
        # Twice the average: messages that started together may end together.
        timeout = max(AHEAD_SECONDS, 2 * self.seconds_each)
        return max(self._ended_at, self._submitted_at) + timeout - time.monotonic()

    def worker_sleeps(self) -> None:
        self._slept_at = time.monotonic()

    def worker_woke(self) -> None:
        self._slept_at = None

    def ended(self, began_at: float, claim: Claim | None = None) -> float:
        """Record that a message ended; wake the worker, unless more results will soon follow."""
        now = time.monotonic()
        spent = now - began_at
        self._ended_at = now
        self._completed += 1
        self.seconds_each += (spent - self.seconds_each) / min(self._completed, AVERAGED)
        if claim is not None:
            claim.took.append(spent)
        slept_at = self._slept_at
        if slept_at is not None and (
            spent > GATHER_SECONDS or now - slept_at > GATHER_SECONDS or not self.waiting()
        ):
            self._slept_at = None  # wake it once
            self._wake_channel.wake()
        return now


def emptied(inbox: deque[T]) -> Iterator[T]:
    """Remove and yield the items of a deque that other threads use, too."""
    try:
        while True:
            yield inbox.popleft()
    except IndexError:
        return


class Slot:
    """One thread's number on the board, its lock to sleep on, and what it handles."""

    def __init__(self, number: int, serve: Callable[[Slot], None]) -> None:
        self.number = number
        self.thread = threading.Thread(
            target=serve, args=(self,), name=f"handler-{number}", daemon=True
        )
        self.wake = threading.Lock()
        self.wake.acquire()
        # The claim, the message and its deadline, if the handler has a timeout.
        self.timed: deque[tuple[Claim, Envelope, float]] = deque()
        self.tidied_at = self.checked_at = self.began_at = 0.0
        self.work: Work | Run | None = None
        # The known connections of its thread.
        self.kept: Sequence[BaseDatabaseWrapper] = ()

    def running(self) -> RunningHandler | None:
        """Return what it handles; ``began_at`` is written before ``work``."""
        work, name = self.work, self.thread.name
        if isinstance(work, Run):
            handling = work.handling
            return None if handling is None else RunningHandler(*handling, name)
        if work is None:
            return None
        claim, envelope = work
        return RunningHandler(envelope, self.began_at, name, claim.timeout)


class Executor(Pool):
    """Threads that run handlers.

    They take messages one by one from a shared deque, so that a slow message delays no other. Only
    as many are woken as the work is worth: for handlers of microseconds, one. Threads are daemons:
    a handler that never returns must not keep the process alive.
    """

    def __init__(
        self, capacity: int, wake_channel: WakeChannel, board: Board, first_slot: int = 0
    ) -> None:
        super().__init__(capacity, wake_channel, board, first_slot)
        self._inbox: deque[Work | Run] = deque()
        self._idle: deque[Slot] = deque()
        # The slots of threads that take work, and of all threads, abandoned ones included.
        self._slots: list[Slot] = []
        self._opened: list[Slot] = []
        self._is_stopped = False

    def start(self) -> None:
        for number in range(self.capacity):
            self._open(self._first_slot + number)

    def _open(self, number: int) -> None:
        slot = Slot(number, self._serve)
        self._slots.append(slot)
        self._opened.append(slot)
        slot.thread.start()

    @property
    def threads(self) -> list[threading.Thread]:
        return [slot.thread for slot in list(self._opened)]

    def running(self) -> list[RunningHandler]:
        found = (slot.running() for slot in list(self._opened) if slot.thread.is_alive())
        return [each for each in found if each is not None]

    def submit(self, claim: Claim, envelopes: Iterable[Envelope]) -> None:
        self._inbox.extend(zip(repeat(claim), envelopes))
        self._submitted_at = time.monotonic()
        waiting = len(self._inbox)
        self._rouse(max(int(waiting * self.seconds_each / CHECK_SECONDS), 1))

    def submit_run(self, run: Run) -> None:
        """Run it in a thread."""
        self._inbox.append(run)
        self._rouse(1)

    def _rouse(self, count: int) -> None:
        for _ in range(min(count, len(self._inbox))):
            try:
                self._idle.popleft().wake.release()
            except IndexError:
                return

    def rouse_if_stalled(self) -> bool:
        """Wake the other threads if work still waits; return whether that is still to come."""
        if not self._idle or not self._inbox:
            return False
        if time.monotonic() - self._submitted_at > GATHER_SECONDS:
            self._rouse(len(self._inbox))
            return False
        return True

    def waiting(self) -> int:
        return len(self._inbox)

    def take_back(self) -> list[Work]:
        taken = list(emptied(self._inbox))
        runs = [each for each in taken if isinstance(each, Run)]
        self._inbox.extend(runs)
        # A thread may have found nothing in between, and sleep.
        self._rouse(len(runs))
        return [each for each in taken if not isinstance(each, Run)]

    def cancel_runs(self) -> None:
        """Cancel the runs that were not started, after messages were taken back."""
        for each in emptied(self._inbox):
            if isinstance(each, Run):
                each.cancel()

    def stop(self, seconds: float) -> None:
        """Wait for the threads, so that they close their connections before the process ends."""
        self._is_stopped = True
        while self._idle:
            self._idle.popleft().wake.release()
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def give_up_late_ones(self) -> int:
        """Fail what exceeded its timeout, and replace the threads; return how many are stuck."""
        now = time.monotonic()
        for slot in list(self._slots):
            if slot.timed and slot.timed[0][2] <= now:
                self._give_up(slot)
        self._opened = [slot for slot in self._opened if slot.thread.is_alive()]
        return len(self._opened) - self.capacity

    def _give_up(self, slot: Slot) -> None:
        try:
            claim, envelope, _ = slot.timed.popleft()
        except IndexError:  # it has just ended
            return
        # A thread cannot be stopped. The handler can check the envelope; its result is ignored.
        envelope.lease_lost = envelope.is_unwanted = True
        claim.failures.append((envelope, HandlerTimeout(f"took longer than {claim.timeout} s")))
        self._slots.remove(slot)
        self._open(slot.number)

    # In a thread

    def _serve(self, slot: Slot) -> None:
        try:
            # A thread that was given up leaves the slot and the board to its replacement.
            while not self._is_stopped and self._work_off(slot):
                self._board.take(slot.number, 0)
                slot.work = None
                self._idle.append(slot)
                # Work that came before the thread was marked idle has not woken it.
                if not self._inbox or not self._withdraw(slot):
                    self._sleep(slot)
        finally:
            connections.close_all()

    def _sleep(self, slot: Slot) -> None:
        if not slot.wake.acquire(timeout=TIDY_SECONDS):
            tidy_connections(idle=True)
            slot.wake.acquire()

    def _withdraw(self, slot: Slot) -> bool:
        """Mark a thread busy again; return False if it is about to be woken."""
        try:
            self._idle.remove(slot)
        except ValueError:
            return False
        return True

    def _work_off(self, slot: Slot) -> bool:
        """Handle what waits; return False if the thread was given up meanwhile."""
        began_at = time.monotonic()
        inbox = self._inbox
        while not self._is_stopped:
            try:
                work = inbox.popleft()
            except IndexError:
                break
            slot.began_at, slot.work = began_at, work
            claim = None
            if isinstance(work, Run):
                work.run(slot.number)
            else:
                claim, envelope = work
                if claim.skips(envelope, began_at):
                    pass
                elif claim.timeout is None:
                    self._handle(slot, claim, envelope)
                elif not self._handle_in_time(slot, claim, envelope, began_at):
                    return False
            began_at = self.ended(began_at, claim)
            if began_at - slot.checked_at > CHECK_SECONDS:
                self._tidy(slot, began_at)
        return True

    def _handle(self, slot: Slot, claim: Claim, envelope: Envelope) -> None:
        self._board.take(slot.number, envelope.message_id)
        if slot.kept:
            expect_first_statement(slot.kept)
        if claim.is_suspect:
            self._board.mark(slot.number, is_suspect=True)
        try:
            current_envelope.set(envelope)
            claim.call(envelope)
        # Also a SystemExit: it would end this thread, and its message would be renewed forever.
        except BaseException as error:
            slot.checked_at = 0.0
            claim.fail(envelope, error)
        else:
            claim.done.append(envelope.message_id)
        if claim.is_suspect:
            self._board.mark(slot.number, is_suspect=False)

    def _handle_in_time(
        self, slot: Slot, claim: Claim, envelope: Envelope, began_at: float
    ) -> bool:
        """Handle; return False if the worker gave it up meanwhile."""
        assert claim.timeout is not None  # noqa: S101 - as the caller asked
        trial = claim.part([envelope])
        slot.timed.append((claim, envelope, began_at + claim.timeout))
        self._handle(slot, trial, envelope)
        try:
            slot.timed.popleft()  # whichever thread takes it settles the message
        except IndexError:
            return False
        claim.done.extend(trial.done)
        claim.failures.extend(trial.failures)
        return True

    def _tidy(self, slot: Slot, now: float) -> None:
        slot.checked_at = now
        is_time = now - slot.tidied_at > TIDY_SECONDS
        if is_time:
            slot.tidied_at = now
        slot.kept = connections.all(initialized_only=True)
        if slot.kept and (is_time or any(each.errors_occurred for each in slot.kept)):
            tidy_connections(idle=is_time)
