"""Handler threads: what is claimed goes in, what was handled is found in its claim."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Final

from django.db import connections

from delayed_queue.db.resilience import tidy_connections
from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.exceptions import HandlerTimeout
from delayed_queue.messages import Envelope, current_envelope
from delayed_queue.worker.board import Board
from delayed_queue.worker.claims import Claim
from delayed_queue.worker.pools import GATHER_SECONDS, TIDY_SECONDS, Pool, Run, Work, emptied

# How often it looks whether one of them broke without the handler saying so.
CHECK_SECONDS: Final = 0.001


class Slot:
    """One thread's place: its number on the board, its lock to sleep on, what it handles."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.wake = threading.Lock()
        self.wake.acquire()
        # The claim, the message and the time it must end by, where its handler has a timeout.
        self.timed: deque[tuple[Claim, Envelope, float]] = deque()
        self.tidied_at = self.checked_at = 0.0


class Executor(Pool):
    """Threads that run handlers.

    They take messages one by one from a deque they share, so that a slow one holds up no other,
    and are woken only as many as the work is worth: for handlers of microseconds, one.
    Threads are daemons: a handler that never returns must not keep the process alive.
    """

    def __init__(
        self, capacity: int, wake_channel: WakeChannel, board: Board, first_slot: int = 0
    ) -> None:
        super().__init__(capacity, wake_channel, board, first_slot)
        self._inbox: deque[Work | Run] = deque()
        self._idle: deque[Slot] = deque()
        self._slots: list[Slot] = []
        self.threads: list[threading.Thread] = []
        self._is_stopped = False

    def start(self) -> None:
        for number in range(self.capacity):
            self._open(Slot(self._first_slot + number))

    def _open(self, slot: Slot) -> None:
        thread = threading.Thread(
            target=self._serve, args=(slot,), name=f"handler-{slot.number}", daemon=True
        )
        self._slots.append(slot)
        self.threads.append(thread)
        thread.start()

    def submit(self, claim: Claim, envelopes: Iterable[Envelope]) -> None:
        self._inbox.extend(zip(repeat(claim), envelopes))
        self._submitted_at = time.monotonic()
        waiting = len(self._inbox)
        self._rouse(max(int(waiting * self.seconds_each / CHECK_SECONDS), 1))

    def submit_run(self, run: Run) -> None:
        """Have a thread do what is more than one message."""
        self._inbox.append(run)
        self._rouse(1)

    def _rouse(self, count: int) -> None:
        for _ in range(min(count, len(self._inbox))):
            try:
                self._idle.popleft().wake.release()
            except IndexError:
                return

    def rouse_if_stalled(self) -> bool:
        """Wake the rest if the threads woken did not do; return whether some are left asleep."""
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
        # A thread that found nothing in between sleeps.
        self._rouse(len(runs))
        return [each for each in taken if not isinstance(each, Run)]

    def cancel_runs(self) -> None:
        """Let no run begin that nobody has begun; to be called when messages were taken back."""
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

    # Time-outs

    def give_up_late_ones(self) -> int:
        """Fail what outlived its timeout, and replace the threads; return how many are stuck."""
        now = time.monotonic()
        for slot in list(self._slots):
            if slot.timed and slot.timed[0][2] <= now:
                self._give_up(slot)
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        return len(self.threads) - self.capacity

    def _give_up(self, slot: Slot) -> None:
        try:
            claim, envelope, _ = slot.timed.popleft()
        except IndexError:  # it ended at this very moment
            return
        # Its thread goes on, as threads cannot be stopped; it can ask, and its end is ignored.
        envelope.lease_lost = envelope.is_unwanted = True
        claim.failures.append((envelope, HandlerTimeout(f"took longer than {claim.timeout} s")))
        self._slots.remove(slot)
        self._open(Slot(slot.number))

    # In a thread

    def _serve(self, slot: Slot) -> None:
        try:
            # One that was given up leaves the slot, and the board, to whoever took its place.
            while not self._is_stopped and self._work_off(slot):
                self._board.take(slot.number, 0)
                self._idle.append(slot)
                # Work that came before the thread was seen to be idle has woken nobody.
                if not self._inbox or not self._withdraw(slot):
                    self._sleep(slot)
        finally:
            connections.close_all()

    def _sleep(self, slot: Slot) -> None:
        if not slot.wake.acquire(timeout=TIDY_SECONDS):
            tidy_connections(idle=True)
            slot.wake.acquire()

    def _withdraw(self, slot: Slot) -> bool:
        """Return whether the thread is not idle after all, rather than about to be woken."""
        try:
            self._idle.remove(slot)
        except ValueError:
            return False
        return True

    def _work_off(self, slot: Slot) -> bool:
        """Handle what is there; return False when the thread was given up meanwhile."""
        began_at = time.monotonic()
        inbox = self._inbox
        while not self._is_stopped:
            try:
                work = inbox.popleft()
            except IndexError:
                break
            claim = None
            if isinstance(work, Run):
                work.run(slot.number)
            else:
                claim, envelope = work
                if claim.is_overdue(envelope, began_at):
                    claim.leave(envelope)
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
        if claim.is_suspect:
            self._board.mark(slot.number, is_suspect=True)
        try:
            current_envelope.set(envelope)
            claim.call(envelope)
        # Everything: a SystemExit that ended this thread would leave its message leased and
        # renewed for ever.
        except BaseException as error:
            slot.checked_at = 0.0
            claim.failures.append((envelope, error))
        else:
            claim.done.append(envelope.message_id)
        if claim.is_suspect:
            self._board.mark(slot.number, is_suspect=False)

    def _handle_in_time(
        self, slot: Slot, claim: Claim, envelope: Envelope, began_at: float
    ) -> bool:
        """Handle; return False when the worker gave up on it meanwhile."""
        assert claim.timeout is not None  # noqa: S101 - as the caller asked
        trial = Claim(
            claim.consumer, claim.lease_id, [envelope], began_at, is_suspect=claim.is_suspect
        )
        trial.call = claim.call
        slot.timed.append((claim, envelope, began_at + claim.timeout))
        self._handle(slot, trial, envelope)
        try:
            slot.timed.popleft()  # who takes it settles the message
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
        tidy_connections(idle=is_time)
