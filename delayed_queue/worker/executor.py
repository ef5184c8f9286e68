"""Handler threads: what is claimed goes in, what was handled is found in its claim."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from itertools import repeat
from typing import Any, Final

from django.db import connections

from delayed_queue.db.resilience import tend
from delayed_queue.db.wakeups import Doorbell
from delayed_queue.exceptions import HandlerTimeout
from delayed_queue.messages import Envelope
from delayed_queue.worker.board import Board
from delayed_queue.worker.claims import Claim
from delayed_queue.worker.pools import GATHER_SECONDS, Pool, Work, emptied

# How often a busy thread looks whether its connections have outlived CONN_MAX_AGE, and how long
# an idle one waits for more work before it does. After an error it looks at once.
TIDY_SECONDS: Final = 1.0
# How often it looks whether one of them broke without the handler saying so.
CHECK_SECONDS: Final = 0.001


class Seat:
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

    def __init__(self, capacity: int, bell: Doorbell, board: Board, first_seat: int = 0) -> None:
        super().__init__(capacity, bell, board, first_seat)
        self._inbox: deque[tuple[Claim, Envelope | None]] = deque()
        self._idle: deque[Seat] = deque()
        self._seats: list[Seat] = []
        self._threads: list[threading.Thread] = []
        self._is_stopped = False

    def start(self) -> None:
        for number in range(self.capacity):
            self._open(Seat(self._first_seat + number))

    def _open(self, seat: Seat) -> None:
        thread = threading.Thread(
            target=self._serve, args=(seat,), name=f"handler-{seat.number}", daemon=True
        )
        self._seats.append(seat)
        self._threads.append(thread)
        thread.start()

    def submit(self, claim: Claim, envelopes: Iterable[Envelope]) -> None:
        self._inbox.extend(zip(repeat(claim), envelopes))
        self._submitted_at = time.monotonic()
        waiting = len(self._inbox)
        self._rouse(max(int(waiting * self.seconds_each / CHECK_SECONDS), 1))

    def submit_job(self, job: Any) -> None:
        """Have a thread call ``job.run(seat number)``."""
        self._inbox.append((job, None))
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
        jobs = [each for each in taken if each[1] is None]
        self._inbox.extend(jobs)
        # A thread that found nothing in between sleeps.
        self._rouse(len(jobs))
        return [(claim, envelope) for claim, envelope in taken if envelope is not None]

    def cancel_jobs(self) -> None:
        """Let no job begin that nobody has begun."""
        for job, _ in emptied(self._inbox):
            job.cancel()  # type: ignore[attr-defined]

    def stop(self, seconds: float) -> None:
        """Wait for the threads, so that they close their connections before the process ends."""
        self._is_stopped = True
        while self._idle:
            self._idle.popleft().wake.release()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))

    # Time-outs

    def give_up_late_ones(self) -> int:
        """Fail what outlived its timeout, and replace the threads; return how many are stuck."""
        now = time.monotonic()
        for seat in list(self._seats):
            if seat.timed and seat.timed[0][2] <= now:
                self._give_up(seat)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return len(self._threads) - self.capacity

    def _give_up(self, seat: Seat) -> None:
        try:
            claim, envelope, _ = seat.timed.popleft()
        except IndexError:  # it ended at this very moment
            return
        # Its thread goes on, as threads cannot be stopped; it can ask, and its end is ignored.
        envelope.lease_lost = True
        claim.failures.append((envelope, HandlerTimeout(f"took longer than {claim.timeout} s")))
        self._seats.remove(seat)
        self._open(Seat(seat.number))

    # In a thread

    def _serve(self, seat: Seat) -> None:
        try:
            # One that was given up leaves the seat, and the board, to who took its place.
            while not self._is_stopped and self._work_off(seat):
                self._board.take(seat.number, 0)
                self._idle.append(seat)
                # Work that came before the thread was seen to be idle has woken nobody.
                if not self._inbox or not self._withdraw(seat):
                    self._sleep(seat)
        finally:
            connections.close_all()

    def _sleep(self, seat: Seat) -> None:
        if not seat.wake.acquire(timeout=TIDY_SECONDS):
            tidy_connections(idle=True)
            seat.wake.acquire()

    def _withdraw(self, seat: Seat) -> bool:
        """Return whether the thread is not idle after all, rather than about to be woken."""
        try:
            self._idle.remove(seat)
        except ValueError:
            return False
        return True

    def _work_off(self, seat: Seat) -> bool:
        """Handle what is there; return False when the thread was given up meanwhile."""
        began_at = time.monotonic()
        inbox = self._inbox
        while not self._is_stopped:
            try:
                claim, envelope = inbox.popleft()
            except IndexError:
                break
            if envelope is None:
                claim.run(seat.number)  # type: ignore[attr-defined] # a job
            elif claim.is_overdue(envelope, began_at):
                claim.leave(envelope)
            elif claim.timeout is None:
                self._handle(seat, claim, envelope)
            elif not self._handle_in_time(seat, claim, envelope, began_at):
                return False
            began_at = self._ended(began_at)
            if began_at - seat.checked_at > CHECK_SECONDS:
                self._tidy(seat, began_at)
        return True

    def _handle(self, seat: Seat, claim: Claim, envelope: Envelope) -> None:
        self._board.take(seat.number, envelope.message_id)
        if claim.is_suspect:
            self._board.mark(seat.number, is_suspect=True)
        try:
            claim.call(envelope)
        # Everything: a SystemExit that ended this thread would leave its message leased and
        # renewed for ever.
        except BaseException as error:
            seat.checked_at = 0.0
            claim.failures.append((envelope, error))
        else:
            claim.done.append(envelope.message_id)
        if claim.is_suspect:
            self._board.mark(seat.number, is_suspect=False)

    def _handle_in_time(
        self, seat: Seat, claim: Claim, envelope: Envelope, began_at: float
    ) -> bool:
        """Handle; return False when the worker gave up on it meanwhile."""
        assert claim.timeout is not None  # noqa: S101 - as the caller asked
        trial = Claim(claim.lane, claim.lease_id, [envelope], began_at, is_suspect=claim.is_suspect)
        seat.timed.append((claim, envelope, began_at + claim.timeout))
        self._handle(seat, trial, envelope)
        try:
            seat.timed.popleft()  # who takes it settles the message
        except IndexError:
            return False
        claim.done.extend(trial.done)
        claim.failures.extend(trial.failures)
        return True

    def _tidy(self, seat: Seat, now: float) -> None:
        seat.checked_at = now
        is_time = now - seat.tidied_at > TIDY_SECONDS
        if is_time:
            seat.tidied_at = now
        tidy_connections(idle=is_time)


def tidy_connections(*, idle: bool) -> None:
    """Close this thread's connections that are of no use or, when idle, outlived CONN_MAX_AGE.

    Django does this around each request. Here, with the default CONN_MAX_AGE of 0, it would
    mean a new connection for each message; so age counts only between bursts of work.
    """
    for connection in connections.all(initialized_only=True):
        if idle or connection.errors_occurred:
            tend(connection)
