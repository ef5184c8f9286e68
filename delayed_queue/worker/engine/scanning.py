"""Scan schedules: when a worker polls a queue, and from which position."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import Final

from delayed_queue.queue.store.claim import NO_FLOOR

# Distance, in milliseconds, of the scan position from the latest due time. Offers commit in another
# order than that of their due times, usually by less than this.
MARGIN_MS: Final = 1_000
# Distance, in milliseconds, of a rewind from the scan position: longer than most transactions.
REWIND_MS: Final = 15_000
# At most 1/N of a worker's time goes to rewinds, and 1/N to full scans. Few enough to leave the
# 99th percentile alone.
DEEP_POLL_SHARE: Final = 200
# At most N poll intervals pass without a full scan; without a rewind, one. Either takes at most 1/M
# of a worker's time even so.
FULL_SCAN_INTERVALS: Final = 10
MOST_DEEP_POLLS: Final = 20
# Maximum delay, in seconds, of the next poll of a strict queue that another worker was claiming
# from: about the time of a commit.
TURN_SECONDS: Final = 0.005
# At most N messages are claimed after a rest, until one of them was handled: the others would be
# deferred as well.
TRIAL: Final = 10
# Maximum estimate, in seconds, of what a deep poll takes after the first one.
DOUBT_SECONDS: Final = 0.005
# The next poll of a consumer that the idle scan looks after.
IDLE: Final = math.inf
_NONE_TAKEN: Final = (NO_FLOOR, 0)


@dataclass(frozen=True, slots=True)
class Poll:
    """One poll of a queue: where it starts, and whether it reads when the next message is due."""

    limit: int
    position: int
    asks_ahead: bool
    began_at: float
    is_rewind: bool = False
    # If there are several: the most urgent first.
    kinds: tuple[str, ...] = ()
    # The first id among the messages that are due exactly at the position.
    first_id: int = 0

    @property
    def is_full_scan(self) -> bool:
        return self.position == NO_FLOOR


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of a poll: the number of messages, the latest due time and its id.

    ``next_due_in`` is the time until the next message is due, in milliseconds. ``seconds`` is the
    duration of the poll, None if it ended just now.
    """

    found: int
    latest: int | None = None
    next_due_in: int | None = None
    seconds: float | None = None
    # More may be available, although the poll found less than its limit.
    has_more: bool = False
    last_id: int = 0

    def is_full(self, poll: Poll) -> bool:
        """Return whether more may be available now."""
        return self.has_more or self.found == poll.limit


@dataclass(slots=True)
class DeepPolls:
    """Rewinds or full scans: when the next is due, and how long one is estimated to take."""

    at: float = 0.0
    seconds: float = 0.0
    began_at: float = -math.inf
    # True if one was made since a poll reached its limit.
    is_done: bool = False

    def estimate(self, seconds: float) -> None:
        """Correct the estimate; it at most doubles, as one slow reply is not yet a slow scan."""
        self.seconds = min(seconds, 2 * self.seconds + DOUBT_SECONDS)


@dataclass(slots=True)
class Rest:
    """A pause that a handler demanded; after it a few messages are tried first."""

    until: float = 0.0
    is_trying: bool = False


class ScanSchedule:
    """``next_at`` is the monotonic time before which a poll of the queue would find nothing.

    Two polls come before a sleep: one that found less than its limit, and one that reads, in the
    same round trip but before it claims, when the next message is due. A message that commits or
    becomes due between the two is in the reply to one of them.

    Polls start at the scan position: everything before it was taken. While they are full, they
    start at the last message taken, because there may be many dead index entries since the
    position. Now and then, and before each long sleep, a poll is a rewind, which starts well before
    the position, for messages whose transaction committed late. More rarely a poll is a full scan,
    from the start of the queue, for messages offered into the past.

    During a rest nothing wakes the queue; after it, a few messages are tried.
    """

    def __init__(self, longest_sleep: float, *, is_dynamic: bool = False) -> None:
        self.longest_sleep = longest_sleep
        # A dynamic queue that has nothing is left to the idle scan.
        self.is_dynamic = is_dynamic
        self.next_at = IDLE if is_dynamic else 0.0
        self.position = NO_FLOOR
        # The due time and id of the last message taken, if the last poll was full.
        self._last = _NONE_TAKEN
        self.rewinds = DeepPolls()
        self.full_scans = DeepPolls()
        self._rest = Rest()
        self._was_short = False

    @property
    def is_idle(self) -> bool:
        return self.next_at == IDLE

    @property
    def rewound_position(self) -> int:
        """The start of a rewind, and of an idle scan that is not a full one."""
        return max(self.position - REWIND_MS, NO_FLOOR)

    def begin(self, limit: int, kinds: tuple[str, ...] = ()) -> Poll:
        """Return the poll to make now, for at most ``limit`` messages.

        One position cannot stand for several ``kinds``: their polls are full scans.
        """
        now = time.monotonic()
        limit = min(limit, TRIAL) if self._rest.is_trying else limit
        if kinds:
            return Poll(limit, NO_FLOOR, self._was_short, now, is_rewind=True, kinds=kinds)
        if now >= self.full_scans.at:
            return Poll(limit, NO_FLOOR, self._was_short, now, is_rewind=True)
        if now >= self.rewinds.at:
            return Poll(limit, self.rewound_position, self._was_short, now, is_rewind=True)
        is_rewind = self.position == NO_FLOOR
        position, first_id = max((self.position, 0), self._last)
        return Poll(limit, position, self._was_short, now, is_rewind, first_id=first_id)

    def end(self, poll: Poll, result: PollResult) -> None:
        """Record what a poll found, and schedule the next one."""
        latest = None if poll.kinds else result.latest
        if poll.is_rewind:
            self._record_deep_poll(poll, result.seconds)
        if latest is not None:
            # A rewind that found old messages has more of them to expect.
            position = NO_FLOOR if poll.is_rewind else self.position
            self.position = max(position, latest - MARGIN_MS)
        is_full = result.is_full(poll)
        self._last = (latest, result.last_id) if is_full and latest is not None else _NONE_TAKEN
        if is_full:
            self._reset()
        elif not poll.asks_ahead:
            self._was_short = True
        elif self._was_short:  # no wake() in between
            self._was_short = False
            self.next_at = max(self._next(poll, result.next_due_in), self._rest.until)

    def _reset(self) -> None:
        self._was_short = self.rewinds.is_done = self.full_scans.is_done = False

    def _record_deep_poll(self, poll: Poll, seconds: float | None) -> None:
        spent = time.monotonic() - poll.began_at if seconds is None else seconds
        rewinds, full_scans = self.rewinds, self.full_scans
        (full_scans if poll.is_full_scan else rewinds).estimate(spent)
        # From its start: the poll after a sleep of one poll interval must be a rewind.
        pause = (1 + DEEP_POLL_SHARE) * min(spent, full_scans.seconds)
        longest = max(self.longest_sleep, MOST_DEEP_POLLS * rewinds.seconds)
        rewinds.at = poll.began_at + min(pause, longest)
        rewinds.is_done = True
        if poll.is_full_scan:
            pause = full_scan_pause(full_scans.seconds, self.longest_sleep)
            full_scans.at = poll.began_at + pause
            full_scans.began_at = poll.began_at
            full_scans.is_done = True

    def _next(self, poll: Poll, next_due_in: int | None) -> float:
        if next_due_in is not None:
            times = [poll.began_at + next_due_in / 1000]
        else:
            times = [IDLE if self.is_dynamic else poll.began_at + self.longest_sleep]
        times += [each.at for each in (self.rewinds, self.full_scans) if not each.is_done]
        return min(times)

    def scan_fully(self, since: float) -> bool:
        """Make the next poll a full scan, unless there was one since; return whether it will be.

        Not during a rest, nor for an idle queue.
        """
        rests = time.monotonic() < self._rest.until
        if self.is_idle or rests or self.full_scans.began_at >= since:
            return False
        if self.full_scans.at:
            self.full_scans.at = 0.0
            self.wake()
        return True

    def wait_for_turn(self) -> None:
        """Poll again soon: nothing was found because another worker was claiming."""
        self.next_at = time.monotonic() + random.uniform(0.2, 1.0) * TURN_SECONDS  # noqa: S311

    def wake(self, at: float = 0.0) -> None:
        """Poll then, at once by default: something may have been offered or become due."""
        self.next_at = max(at, self._rest.until)
        self._reset()

    def rest(self, seconds: float) -> None:
        """Poll nothing for N seconds, in spite of new offers; then a few at a time."""
        self._rest.is_trying = True
        self._rest.until = max(self._rest.until, time.monotonic() + seconds)
        self.next_at = max(self.next_at, self._rest.until)

    def end_trial(self) -> None:
        """A message was handled: poll for as many as there is room for."""
        self._rest.is_trying = False

    def rewind(self) -> None:
        """Poll from before the scan position, where messages may be due again."""
        self.wake()
        self.rewinds.at = 0.0


def full_scan_pause(seconds: float, interval: float) -> float:
    """Return the delay of the next full scan, where one takes ``seconds``."""
    longest = max(FULL_SCAN_INTERVALS * interval, MOST_DEEP_POLLS * seconds)
    return min((1 + DEEP_POLL_SHARE) * seconds, longest)
