"""Decide when a consumer polls its queue next, and from which scan position."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import Final

from delayed_queue.queue.store.claim import NO_FLOOR

# How far below the latest due time the scan position stays, in milliseconds: offers commit in
# another order than that of their due times, usually by less than this.
MARGIN_MS: Final = 1_000
# How far below the scan position a rewind begins: more than most transactions take.
REWIND_MS: Final = 15_000
# How much of its time a worker may spend on rewinds, and as much again on full scans, as one in
# so many. Little enough to leave the 99th percentile alone.
DEEP_POLL_SHARE: Final = 200
# At most so many poll intervals pass without a full scan; without a rewind, one does.
FULL_SCAN_INTERVALS: Final = 10
# After how long, at most, a strict consumer polls again that met another worker's claim: about
# what the commit of one takes.
TURN_SECONDS: Final = 0.005
# For how many messages a poll asks after a rest, until one of them was handled: the others would
# be deferred as well.
TRIAL: Final = 10
# When a consumer polls for which the idle scan does: not by itself.
IDLE: Final = math.inf
# What a poll that took long is believed to cost the first time.
DOUBT_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class Poll:
    """One poll of a queue: where it begins, and whether it asks when the next falls due."""

    limit: int
    position: int
    asks_ahead: bool
    began_at: float
    is_rewind: bool = False
    # Where there are several: the most urgent first.
    kinds: tuple[str, ...] = ()

    @property
    def is_full_scan(self) -> bool:
        return self.position == NO_FLOOR


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of a poll: how many, the latest due time, and milliseconds until the next is due.

    ``seconds`` is how long it took, None if it ended just now.
    """

    found: int
    latest: int | None = None
    next_due_in: int | None = None
    seconds: float | None = None
    # Whether it was told so.
    has_more: bool = False

    def is_full(self, poll: Poll) -> bool:
        """Return whether there may be more right now."""
        return self.has_more or self.found == poll.limit


class ScanSchedule:
    """``next_at`` is the monotonic time before which a poll of the queue would find nothing.

    Two polls come before a sleep: one that found less than it asked for, and one that learns,
    in the same round trip but before it claims, when the next message falls due. What commits
    or falls due between the two is in the answer of one of them.

    Polls begin at the scan position, below which all was taken; now and then, and before every
    long sleep, one is a rewind, which begins well below it, for messages that are due earlier than
    what was taken since: offered by a transaction that committed late. More rarely one is a full
    scan, from the start of the queue, for those offered into the past.

    While it rests, because its handler said so, nothing wakes it; then it begins with a few.
    """

    def __init__(self, longest_sleep: float, *, is_dynamic: bool = False) -> None:
        self.longest_sleep = longest_sleep
        # Of a dynamic queue, which the idle scan looks after while it has nothing.
        self.is_dynamic = is_dynamic
        self.next_at = IDLE if is_dynamic else 0.0  # the idle scan, which is due, knows better
        self.position = NO_FLOOR
        self.rewind_at = self.full_scan_at = 0.0
        self._full_scan_seconds = 0.0
        self._was_short = False
        self._has_rewound = self._has_scanned_fully = False
        self._rests_until = 0.0
        self._is_trying = False

    @property
    def is_idle(self) -> bool:
        return self.next_at == IDLE

    @property
    def rewound_position(self) -> int:
        """Where a rewind begins, and an idle scan that does not go through the whole queue."""
        return max(self.position - REWIND_MS, NO_FLOOR)

    def begin(self, limit: int, kinds: tuple[str, ...] = ()) -> Poll:
        """Return the poll to make now, of so many messages at most.

        One position cannot stand for several ``kinds``: their polls are full scans.
        """
        now = time.monotonic()
        limit = min(limit, TRIAL) if self._is_trying else limit
        if kinds:
            return Poll(limit, NO_FLOOR, self._was_short, now, is_rewind=True, kinds=kinds)
        if now >= self.full_scan_at:
            return Poll(limit, NO_FLOOR, self._was_short, now, is_rewind=True)
        if now >= self.rewind_at:
            return Poll(limit, self.rewound_position, self._was_short, now, is_rewind=True)
        is_rewind = self.position == NO_FLOOR
        return Poll(limit, self.position, self._was_short, now, is_rewind)

    def end(self, poll: Poll, result: PollResult) -> None:
        """Note what a poll found, and say when the next one is worth it."""
        latest = None if poll.kinds else result.latest
        if poll.is_rewind:
            self._note_depth(poll, result.seconds)
        if latest is not None:
            # A rewind that met old messages has more of them to expect.
            position = NO_FLOOR if poll.is_rewind else self.position
            self.position = max(position, latest - MARGIN_MS)
        if result.is_full(poll):
            self._was_short = self._has_rewound = self._has_scanned_fully = False
        elif not poll.asks_ahead:
            self._was_short = True
        elif self._was_short:  # nobody has called in between
            self._was_short = False
            self.next_at = max(self._next(poll, result.next_due_in), self._rests_until)

    def _note_depth(self, poll: Poll, seconds: float | None) -> None:
        spent = time.monotonic() - poll.began_at if seconds is None else seconds
        # One slow answer is not yet a slow scan: the belief in it at most doubles.
        if poll.is_full_scan:
            self._full_scan_seconds = min(spent, 2 * self._full_scan_seconds + DOUBT_SECONDS)
        # From the beginning: the poll after a sleep of one poll interval must be a rewind.
        pause = (1 + DEEP_POLL_SHARE) * min(spent, self._full_scan_seconds)
        self.rewind_at = poll.began_at + min(pause, self.longest_sleep)
        self._has_rewound = True
        if poll.is_full_scan:
            longest = FULL_SCAN_INTERVALS * self.longest_sleep
            self.full_scan_at = poll.began_at + min(pause, longest)
            self._has_scanned_fully = True

    def _next(self, poll: Poll, next_due_in: int | None) -> float:
        if next_due_in is not None:
            times = [poll.began_at + next_due_in / 1000]
        else:
            times = [IDLE if self.is_dynamic else poll.began_at + self.longest_sleep]
        if not self._has_rewound:
            times.append(self.rewind_at)
        if not self._has_scanned_fully:
            times.append(self.full_scan_at)
        return min(times)

    def wait_for_turn(self) -> None:
        """Poll again soon: nothing was found because another worker was claiming."""
        self.next_at = time.monotonic() + random.uniform(0.2, 1.0) * TURN_SECONDS  # noqa: S311

    def wake(self, at: float = 0.0) -> None:
        """Something may have been offered, or falls due then: poll at once, or then."""
        self.next_at = max(at, self._rests_until)
        self._was_short = self._has_rewound = self._has_scanned_fully = False

    def rest(self, seconds: float) -> None:
        """Poll nothing for so long, whatever is offered meanwhile; then for a few at a time."""
        self._is_trying = True
        self._rests_until = max(self._rests_until, time.monotonic() + seconds)
        self.next_at = max(self.next_at, self._rests_until)

    def end_trial(self) -> None:
        """A message was handled: poll for as many as there is room for."""
        self._is_trying = False

    def rewind(self) -> None:
        """Messages are due again that may lie below the scan position."""
        self.wake()
        self.rewind_at = 0.0
