"""Pools to which a worker hands messages: threads, or an event loop."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.messages import Envelope
from delayed_queue.worker.board import Board
from delayed_queue.worker.claims import Claim

# How far ahead of a pool a worker leases: what it begins within this time, but two batches at
# most. More would keep messages from idle workers, less would leave it waiting for claims.
AHEAD_SECONDS: Final = 0.1
# What a message is believed to take before one has ended: so long that a few slots lease nothing
# ahead, since nobody knows yet how long it would wait.
FIRST_SECONDS: Final = 1.0
# Of how many messages, at most, the moving average is.
AVERAGED: Final = 16
# How long a sleeping worker lets results gather before it is woken to acknowledge them.
GATHER_SECONDS: Final = 0.002
# How often a busy thread looks whether its connections have outlived CONN_MAX_AGE, and how long
# an idle one waits for more work before it does. After an error it looks at once.
TIDY_SECONDS: Final = 1.0

# How many times what is left free one dynamic queue may hold: one alone eight ninths.
FAIR_FACTOR: Final = 8
# What part it may have that takes longer, and does what it was given.
SLOW_WINDOW: Final = 1 / 2
# What it takes at most to have given a slot back soon.
SOON_SECONDS: Final = 1.0

# A message on its way to a handler.
Work = tuple[Claim, Envelope]
T = TypeVar("T")


class Run:
    """A unit of a handler thread's work that is more than one message."""

    def run(self, slot: int) -> None:
        """Do it, in the thread of that slot."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End it before a thread has begun it."""
        raise NotImplementedError


class Pool:
    """``capacity`` is how many messages it handles at the same time.

    ``seconds_each`` is a moving average of what a message takes, the basis of how much to
    claim ahead. What was claimed ahead and is not begun, because the messages before it take
    longer than those by which it was reckoned, is to be given back: see ``take_back_stalled``.
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
        """Have the messages handled; each ends in the claim's ``done`` or ``failures``."""
        raise NotImplementedError

    def waiting(self) -> int:
        """Return how many messages nobody has begun."""
        raise NotImplementedError

    def take_back(self) -> list[Work]:
        """Return the messages that nobody has begun, to be given back."""
        raise NotImplementedError

    def stop(self, seconds: float) -> None:
        """Let what is begun end, for so long; then leave it."""
        raise NotImplementedError

    def ahead(self, batch_size: int, unhandled: int) -> int:
        """Return how many messages may be leased beyond what the pool handles at a time."""
        if batch_size == 1:  # one by one was asked for
            return 0
        if unhandled and self.stalls_in() <= 0:  # nobody knows when it has a slot to give
            return 0
        each = max(self.seconds_each, 1e-9)  # by a coarse clock it may be none
        return min(int(self.capacity * AHEAD_SECONDS / each), 2 * batch_size)

    def room(self, batch_size: int, unhandled: int) -> int:
        """Return how many messages to claim now: none rather than few, unless it is idle."""
        ahead = self.ahead(batch_size, unhandled)
        free = min(self.capacity + ahead - unhandled, batch_size)
        # Not in small change: a claim costs much the same for one message as for fifty. But while
        # half of what was leased ahead is there yet, so that no slot has to wait for it.
        if free < min(ahead, batch_size) / 2:
            return max(min(self.capacity - unhandled, batch_size), 0)
        return free

    def share(self, batch_size: int, unhandled: int, held: int, window: float) -> int:
        """Return how many messages a consumer that holds so many may claim, with room for others.

        No consumer holds more than ``FAIR_FACTOR`` times what is left free behind it, nor more than
        its window and what goes with that.
        """
        ahead = self.ahead(batch_size, unhandled)
        wanted = self.capacity + ahead
        free = wanted - unhandled
        if free <= 0:
            return 0
        target = min(window / self.capacity, 1) * wanted
        more = int(min((FAIR_FACTOR * free - held) / (1 + FAIR_FACTOR), target - held))
        if not held:
            return min(max(more, 1), batch_size)
        # Not in small change, as above.
        return min(more, batch_size) if more >= min(free + held, target, ahead) / 4 else 0

    # What was leased ahead is not kept

    def take_back_stalled(self) -> list[Work]:
        """Return what waits although nothing has ended for longer than it was meant to wait."""
        if self.nap() > 0:
            return []
        self.looked_at = time.monotonic()
        return self.take_back()

    def nap(self) -> float:
        """Return the seconds until what is waiting, if anything is, may have to be taken back."""
        if not self.waiting():
            return math.inf
        # What is not taken back, as runs are, is no reason to look all the time.
        return max(self.stalls_in(), self.looked_at + AHEAD_SECONDS - time.monotonic())

    def stalls_in(self) -> float:
        """Return the seconds until nothing will have ended for too long, if nothing does."""
        # Twice: who handles many at a time may have all of them end at the same moment.
        timeout = max(AHEAD_SECONDS, 2 * self.seconds_each)
        return max(self._ended_at, self._submitted_at) + timeout - time.monotonic()

    # The worker sleeps, and is woken

    def worker_sleeps(self) -> None:
        self._slept_at = time.monotonic()

    def worker_woke(self) -> None:
        self._slept_at = None

    def ended(self, began_at: float, claim: Claim | None = None) -> float:
        """Note that a message ended; wake the worker, unless more results are about to follow."""
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
            self._slept_at = None  # one ring is enough
            self._wake_channel.wake()
        return now


def emptied(inbox: deque[T]) -> Iterator[T]:
    """Yield what is taken out of a deque that others may take from as well, until it is empty."""
    try:
        while True:
            yield inbox.popleft()
    except IndexError:
        return
