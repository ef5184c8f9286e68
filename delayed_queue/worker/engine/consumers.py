"""Consumers: the queues as a worker sees them, when it polls each, and what it counts of it."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from delayed_queue.db.sql import Step
from delayed_queue.facade import DelayedQueue
from delayed_queue.handlers import Handler, Verdict, judge
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.observe.history import Tally
from delayed_queue.queue.group_claims import GroupWalk
from delayed_queue.queue.store.claim import (
    NO_FLOOR,
    claim_step,
    next_due_step,
    try_lock_step,
)
from delayed_queue.queue.store.limits import rules_step
from delayed_queue.retries import RetryPolicy
from delayed_queue.worker.store import NOT_SCANNED, SlowestScan

# How much a transaction takes at a time: what it handles in so many seconds.
BATCH_SECONDS: Final = 0.25
# What part of the slots a dynamic queue may take before it has shown that it gives them back soon.
FIRST_WINDOW: Final = 1 / 8
# For what part of the time for which a worker leases ahead it does so of a queue with limits.
LIMITED_AHEAD: Final = 0.25
# Of how many messages, at most, the moving average is.
AVERAGED: Final = 16
# How far below the latest due time the scan position stays, in milliseconds: offers commit in
# another order than that of their due times, usually by less than this.
MARGIN_MS: Final = 1_000
# How far below the scan position a rewind begins: more than most transactions take.
REWIND_MS: Final = 15_000
# How much of its time a worker may spend on rewinds, and as much again on full scans, as one in
# so many. Little enough to leave the 99th percentile alone.
DEEP_POLL_SHARE: Final = 200
# At most so many poll intervals pass without a full scan; without a rewind, one does. But never
# more of its time than one in so many goes to either.
FULL_SCAN_INTERVALS: Final = 10
MOST_DEEP_POLLS: Final = 20
# After how long, at most, a strict consumer polls again that met another worker's claim: about
# what the commit of one takes.
TURN_SECONDS: Final = 0.005
# For how many messages a poll asks after a rest, until one of them was handled: the others would
# be deferred as well.
TRIAL: Final = 10
_NONE_TAKEN: Final = (NO_FLOOR, 0)
# When a consumer polls for which the idle scan does: not by itself.
IDLE: Final = math.inf
# What a poll that took long is believed to cost the first time.
DOUBT_SECONDS: Final = 0.005


@dataclass(slots=True)
class FairShare:
    """The limits that keep one consumer from taking the turns and the slots of others.

    ``had_turn``: in this round. ``overdue_since``: when, in milliseconds of the epoch, what it
    has next fell due; where that is not known it is to be polled first. ``running``: how many of
    its messages the event loop is at, of ``window`` at most.
    """

    had_turn: bool = False
    overdue_since: float = -math.inf
    running: int = 0
    window: float = math.inf


@dataclass(slots=True)
class TransactionLoad:
    """Of a transactional consumer: its transactions in progress, and how many are worth it."""

    running: int = 0
    wanted: int = 1
    seconds_each: float = 0.05

    @property
    def batch_size(self) -> int:
        return max(int(BATCH_SECONDS / self.seconds_each), 1)

    def begin(self) -> None:
        self.running += 1

    def end(self, handled: int, seconds: float) -> None:
        """Want one thread more after a transaction that found something, one after none."""
        self.running -= 1
        self.wanted = min(self.running + 2, self.wanted + 1) if handled else 1
        if handled:
            weight = min(handled / AVERAGED, 1)
            self.seconds_each += (seconds / handled - self.seconds_each) * weight


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
    # Of what is due just at the position, from which on.
    first_id: int = 0

    @property
    def is_full_scan(self) -> bool:
        return self.position == NO_FLOOR


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of a poll: how many, the latest due time, and milliseconds until the next is due.

    ``seconds`` is how long it took, None if it ended just now; ``last_id`` is that of the latest.
    """

    found: int
    latest: int | None = None
    next_due_in: int | None = None
    seconds: float | None = None
    # Whether it was told so.
    has_more: bool = False
    last_id: int = 0

    def is_full(self, poll: Poll) -> bool:
        """Return whether there may be more right now."""
        return self.has_more or self.found == poll.limit


class ScanSchedule:
    """``next_at`` is the monotonic time before which a poll of the queue would find nothing.

    Two polls come before a sleep: one that found less than it asked for, and one that learns,
    in the same round trip but before it claims, when the next message falls due. What commits
    or falls due between the two is in the answer of one of them.

    Polls begin at the scan position, below which all was taken; while they fill, at the very
    last message taken, for of those that died since the position there may be very many. Now and
    then, and before every long sleep, one is a rewind, which begins well below it, for messages
    that are due earlier than what was taken since: offered by a transaction that committed late.
    More rarely one is a full scan, from the start of the queue, for those offered into the past.

    While it rests, because its handler said so, nothing wakes it; then it begins with a few.
    """

    def __init__(self, longest_sleep: float, *, is_dynamic: bool = False) -> None:
        self.longest_sleep = longest_sleep
        # Of a dynamic queue, which the idle scan looks after while it has nothing.
        self.is_dynamic = is_dynamic
        self.next_at = IDLE if is_dynamic else 0.0  # the idle scan, which is due, knows better
        self.position = NO_FLOOR
        # The due time and id of the last message taken, if the last poll was full.
        self._last = _NONE_TAKEN
        self.rewind_at = self.full_scan_at = 0.0
        self._scanned_at = -math.inf
        # What one is believed to take.
        self.full_scan_seconds = self._rewind_seconds = 0.0
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
        position, first_id = max((self.position, 0), self._last)
        return Poll(limit, position, self._was_short, now, is_rewind, first_id=first_id)

    def end(self, poll: Poll, result: PollResult) -> None:
        """Note what a poll found, and say when the next one is worth it."""
        latest = None if poll.kinds else result.latest
        if poll.is_rewind:
            self._note_depth(poll, result.seconds)
        if latest is not None:
            # A rewind that met old messages has more of them to expect.
            position = NO_FLOOR if poll.is_rewind else self.position
            self.position = max(position, latest - MARGIN_MS)
        is_full = result.is_full(poll)
        self._last = (latest, result.last_id) if is_full and latest is not None else _NONE_TAKEN
        if is_full:
            self._was_short = self._has_rewound = self._has_scanned_fully = False
        elif not poll.asks_ahead:
            self._was_short = True
        elif self._was_short:  # nobody has called in between
            self._was_short = False
            self.next_at = max(self._next(poll, result.next_due_in), self._rests_until)

    def _note_depth(self, poll: Poll, seconds: float | None) -> None:
        spent = time.monotonic() - poll.began_at if seconds is None else seconds
        if poll.is_full_scan:
            self.full_scan_seconds = _believed(self.full_scan_seconds, spent)
        else:
            self._rewind_seconds = _believed(self._rewind_seconds, spent)
        # From the beginning: the poll after a sleep of one poll interval must be a rewind.
        pause = (1 + DEEP_POLL_SHARE) * min(spent, self.full_scan_seconds)
        longest = max(self.longest_sleep, MOST_DEEP_POLLS * self._rewind_seconds)
        self.rewind_at = poll.began_at + min(pause, longest)
        self._has_rewound = True
        if poll.is_full_scan:
            pause = full_scan_pause(self.full_scan_seconds, self.longest_sleep)
            self.full_scan_at = poll.began_at + pause
            self._scanned_at = poll.began_at
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

    def scan_fully(self, since: float) -> bool:
        """Have the next poll be a full scan, unless one was since; return whether it will be.

        Not while it rests. An idle queue is the idle scan's.
        """
        rests = time.monotonic() < self._rests_until
        if self.is_idle or rests or self._scanned_at >= since:
            return False
        if self.full_scan_at:
            self.full_scan_at = 0.0
            self.wake()
        return True

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


@dataclass(slots=True, eq=False)
class Consumer:
    """Takes messages of one queue, ``limit`` at a time at most, and has ``call`` handle them.

    ``is_dynamic``: of a queue that a source named. It takes turns with the others, holds no more
    than its share, and while it has nothing the idle scan looks for it.
    """

    handler: Handler
    queue: DelayedQueue
    policy: RetryPolicy
    call: Callable[[Envelope], Any]
    limit: int
    # What is called on the event loop, where messages differ.
    acall: Callable[[Envelope], Any]
    is_dynamic: bool = False
    is_async: bool = field(init=False)
    tally: Tally = field(init=False)
    share: FairShare = field(default_factory=FairShare)
    transactions: TransactionLoad = field(default_factory=TransactionLoad)
    schedule: ScanSchedule = field(init=False)
    rules: Step = field(init=False)
    # How far claims by group have come, while the queue is known to have limits; and whether one
    # of these is a rate: a permit is for a message that starts now.
    walk: GroupWalk | None = field(init=False, default=None)
    is_rated: bool = field(init=False, default=True)
    # Whether the limits that the handler declares are written: nothing is claimed before.
    is_declared: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_async = self.handler.is_async
        self.is_declared = self.is_dynamic
        self.rules = rules_step(self.queue.kind)
        self.tally = Tally(self.queue.kind)
        self.schedule = ScanSchedule(
            self.queue.poll_interval.total_seconds(), is_dynamic=self.is_dynamic
        )

    @property
    def timeout(self) -> float | None:
        timeout = self.handler.timeout
        return None if timeout is None else timeout.total_seconds()

    @property
    def is_strict(self) -> bool:
        return self.handler.claim == "strict"

    def judge(self, error: BaseException, envelope: Envelope) -> Verdict:
        """Return what becomes of a failed message: as its treatment says, else by the policy."""
        treatment = self.handler.treatment
        verdict = None if treatment is None else treatment.judge(error, envelope)
        return judge(error, envelope.attempt, self.policy) if verdict is None else verdict

    def begin_poll(self, limit: int) -> Poll:
        """Return the poll to make now; of several kinds always from the start of each."""
        treatment = self.handler.treatment
        kinds = () if treatment is None else tuple(treatment.kinds())
        if self.walk is not None:
            kinds = kinds or (self.queue.kind,)
        return self.schedule.begin(limit, kinds if self.walk is not None or len(kinds) > 1 else ())

    def end_poll(self, poll: Poll, result: PollResult) -> None:
        """Note what a poll found: when the next is worth it, and how overdue the queue is."""
        self.schedule.end(poll, result)
        self.share.overdue_since = -math.inf
        if result.is_full(poll) and result.latest is not None:
            self.share.overdue_since = result.latest

    def claim_steps(self, poll: Poll, lease_id: str, retaken_id: str) -> dict[str, Step]:
        """Return, by what it answers, each statement of a poll that leases what it finds.

        Of a queue with limits those before the claims, each of which is a transaction of its own.
        """
        if self.walk is not None:
            return {"rules": self.rules, **self._ahead(poll)}
        claim = self._claim(poll, lease_id, retaken_id)
        if not poll.asks_ahead:
            return {"claimed": claim}
        # Only before a sleep is it worth knowing why nothing was found.
        turn = {"is_alone": try_lock_step(self.queue.kind)} if self.is_strict else {}
        return {**turn, "rules": self.rules, **self._ahead(poll), "claimed": claim}

    def _ahead(self, poll: Poll) -> dict[str, Step]:
        horizon = self.queue.poll_interval // MILLISECOND
        if not poll.asks_ahead:
            return {}
        return {"next_due_in": next_due_step(poll.kinds or [self.queue.kind], horizon)}

    @property
    def ahead_share(self) -> float:
        """For how much of the usual time to lease ahead: briefly where others wait for their turn.

        And not where there is a rate.
        """
        if self.walk is None:
            return 1.0
        return 0.0 if self.is_rated else LIMITED_AHEAD

    def rewind(self) -> None:
        """Messages are due again that may lie below where it has come to."""
        self.schedule.rewind()
        if self.walk is not None:
            self.walk.rewind()

    def note_slot(self) -> None:
        """A lease has ended: where leases are limited, something else may be leased now."""
        if self.walk is not None:
            self.schedule.wake()

    def _claim(self, poll: Poll, lease_id: str, retaken_id: str) -> Step:
        lease = self.queue.lease_duration // MILLISECOND
        return claim_step(
            self.queue.kind, poll.limit, lease_id, retaken_id, lease, kinds=poll.kinds,
            floor=poll.position, floor_id=poll.first_id, strict=self.is_strict,
        )  # fmt: skip


def _believed(before: float, spent: float) -> float:
    """Return what a scan takes: one slow answer is not yet a slow scan, so it at most doubles."""
    return min(spent, 2 * before + DOUBT_SECONDS)


def full_scan_pause(seconds: float, interval: float) -> float:
    """Return after how long the next full scan is due, where one takes so long."""
    longest = max(FULL_SCAN_INTERVALS * interval, MOST_DEEP_POLLS * seconds)
    return min((1 + DEEP_POLL_SHARE) * seconds, longest)


def slowest_scan(consumers: Iterable[Consumer]) -> SlowestScan:
    """Return of which queue a full scan takes the longest; may be asked from another thread."""
    found = ((each.schedule.full_scan_seconds, each.queue.name) for each in consumers)
    seconds, name = max(found, default=(0.0, ""))
    return SlowestScan(name, seconds) if seconds else NOT_SCANNED
