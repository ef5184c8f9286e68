"""A lane: one queue as a worker sees it, with its handler and its next time to look."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from delayed_queue.conf import get_settings
from delayed_queue.db.statements import Step
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration
from delayed_queue.handlers import Handler, Registry
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.observe.instruments import wrap
from delayed_queue.queue.queue import DelayedQueue
from delayed_queue.queue.store.claim import (
    NO_FLOOR,
    claiming,
    claiming_past,
    looking_ahead,
    trying_alone,
)
from delayed_queue.retries import RetryPolicy
from delayed_queue.worker.options import WorkerOptions

CRASHED: Final = "crashed: attempts used up without an answer"

# How far below the latest due time the low-water mark stays, in milliseconds: offers commit in
# another order than that of their due times, usually by less than this.
MARGIN_MS: Final = 1_000
# How far below the mark a look back begins: more than most transactions take.
BACK_MS: Final = 15_000
# How much of its time a worker may spend on looks back, and as much again on looks from the
# start of the queue, as one in so many. Little enough to leave the 99th percentile alone.
DEEP_LOOK_SHARE: Final = 200
# At most so many poll intervals pass without a look from the start; without one back, one does.
FULL_LOOK_INTERVALS: Final = 10
# After how long, at most, a strict lane looks again that met another worker's claim: about what
# the commit of one takes.
TURN_SECONDS: Final = 0.005
# When a lane looks for which the scout of a fleet does: not by itself.
DOZING: Final = math.inf
# What a look that took long is believed to cost the first time.
DOUBT_SECONDS: Final = 0.005
# How long, at most, a lane sleeps that passes over messages: it may be to look from before them.
PASSING_SECONDS: Final = 1.0
# How many messages a claim that passes over some looks at: a few milliseconds.
MOST_LOOKED: Final = 5_000


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a queue: where it begins, and whether it asks when the next falls due."""

    limit: int
    floor: int
    looks_ahead: bool
    began_at: float
    looks_back: bool = False
    passed: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        return self.floor == NO_FLOOR


@dataclass(slots=True, eq=False)
class Lane:
    """``look_at`` is the monotonic time before which a look at the queue would find nothing.

    Two looks come before a sleep: one that found less than it asked for, and one that learns,
    in the same round trip but before it claims, when the next message falls due. What commits
    or falls due between the two is in the answer of one of them.

    Looks begin at a low-water mark, below which all was taken; now and then, and before every
    long sleep, one begins well below it, for messages that are due earlier than what was taken
    since: offered by a transaction that committed late. More rarely one begins at the start of
    the queue, for those offered into the past.

    While its handler names messages to pass over, a look begins behind the last one taken since,
    and the marks stay where they are.
    """

    handler: Handler
    queue: DelayedQueue
    policy: RetryPolicy
    call: Callable[[Envelope], Any]
    limit: int
    look_at: float = 0.0
    done: int = 0
    # Of a queue that a source named: it takes turns with the others, holds no more than its share,
    # and while it has nothing the fleet's scout looks for it.
    is_shared: bool = False
    # Where lanes take turns: whether it had its own in this round, and when, in milliseconds of the
    # epoch, what it has next fell due. Where that is not known it is to be looked at first.
    had_turn: bool = False
    head: float = -math.inf
    # How many of its messages the event loop is at, and how many it may be.
    running: int = 0
    window: float = math.inf
    # Of a transactional lane: its transactions in progress, how many there may be, and what
    # one message takes.
    jobs: int = 0
    jobs_wanted: int = 1
    seconds_each: float = 0.05
    _was_short: bool = False
    _floor: int = NO_FLOOR
    _back_look_at: float = 0.0
    _full_look_at: float = 0.0
    _full_seconds: float = 0.0
    _has_looked_back: bool = False
    _has_looked_fully: bool = False
    # What the last look passed over, and the due time and id behind which the next one begins.
    _passed: tuple[str, ...] = ()
    _behind: tuple[int, int] | None = None

    @property
    def is_async(self) -> bool:
        return self.handler.is_async

    @property
    def timeout(self) -> float | None:
        timeout = self.handler.timeout
        return None if timeout is None else timeout.total_seconds()

    @property
    def is_strict(self) -> bool:
        return self.handler.claim == "strict"

    @property
    def is_dozing(self) -> bool:
        return self.look_at == DOZING

    @property
    def scout_floor(self) -> int:
        """Where a scout that does not go through the whole queue begins."""
        return max(self._floor - BACK_MS, NO_FLOOR)

    @property
    def longest_sleep(self) -> float:
        return self.queue.poll_interval.total_seconds()

    def begin_look(self, limit: int) -> Look:
        now = time.monotonic()
        if self._note_passed():
            return Look(limit, self._floor, self._was_short, now, passed=self._passed)
        floor, looks_back = self._floor, now >= self._back_look_at
        if now >= self._full_look_at:
            floor = NO_FLOOR
        elif looks_back:
            floor = max(floor - BACK_MS, NO_FLOOR)
        return Look(limit, floor, self._was_short, now, looks_back or floor == NO_FLOOR)

    def _note_passed(self) -> bool:
        """Ask the handler what to pass over; return whether there is anything."""
        asked = self.handler.passes_over
        if asked is None:
            return False
        passed = tuple(asked())
        if self._passed and not set(self._passed) <= set(passed):
            # What is not passed over any more may be anywhere.
            self._behind = None
        self._passed = passed
        return bool(passed)

    def claim_steps(self, look: Look, lease_id: str, retaken_id: str) -> list[Step]:
        """Return the statements of a look that leases what it finds."""
        claim = self._claim(look, lease_id, retaken_id)
        if not look.looks_ahead:
            return [claim]
        ahead = looking_ahead(self.queue.kind, self.queue.poll_interval // MILLISECOND)
        # Only before a sleep is it worth knowing why nothing was found.
        turn = [trying_alone(self.queue.kind)] if self.is_strict else []
        return [*turn, ahead, claim]

    def _claim(self, look: Look, lease_id: str, retaken_id: str) -> Step:
        lease = self.queue.lease_duration // MILLISECOND
        if look.passed:
            after = self._behind or (look.floor, 0)
            return claiming_past(
                self.queue.kind, look.limit, lease_id, retaken_id, lease, look.passed, after,
                MOST_LOOKED,
            )  # fmt: skip
        return claiming(
            self.queue.kind, look.limit, lease_id, retaken_id, lease,
            floor=look.floor, strict=self.is_strict,
        )  # fmt: skip

    def wait_for_turn(self) -> None:
        """Look again soon: nothing was found because another worker was claiming."""
        self.look_at = time.monotonic() + random.uniform(0.2, 1.0) * TURN_SECONDS  # noqa: S311

    def end_look(
        self,
        look: Look,
        found: int,
        latest: int | None,
        wait_ms: int | None,
        seconds: float | None = None,
        *,
        behind: tuple[int, int] | None = None,
        has_more: bool = False,
    ) -> None:
        """Note what a look found: how many, the latest due time, and the wait for the next.

        And how long it took, if it did not end just now. If it passed over some: behind which due
        time and id the next one goes on, and whether it knows of more there.
        """
        if look.passed:
            self._behind, latest = behind or self._behind, None
        if look.looks_back:
            now = time.monotonic()
            self._note_depth(look, now - look.began_at if seconds is None else seconds)
        if latest is not None:
            # A deep look that met old messages has more of them to expect.
            floor = NO_FLOOR if look.looks_back else self._floor
            self._floor = max(floor, latest - MARGIN_MS)
        is_full = found == look.limit or has_more
        self.head = latest if is_full and latest is not None else -math.inf
        if is_full:
            self._was_short = self._has_looked_back = self._has_looked_fully = False
        elif not look.looks_ahead:
            self._was_short = True
        elif self._was_short:  # nobody has called in between
            self._was_short = False
            self.look_at = self._next_look(look, wait_ms)

    def _note_depth(self, look: Look, spent: float) -> None:
        # One slow answer is not yet a slow look: the belief in it at most doubles.
        if look.is_full:
            self._full_seconds = min(spent, 2 * self._full_seconds + DOUBT_SECONDS)
        # From the beginning: the look after a sleep of one poll interval must be one back.
        pause = (1 + DEEP_LOOK_SHARE) * min(spent, self._full_seconds)
        self._back_look_at = look.began_at + min(pause, self.longest_sleep)
        self._has_looked_back = True
        if look.is_full:
            longest = FULL_LOOK_INTERVALS * self.longest_sleep
            self._full_look_at = look.began_at + min(pause, longest)
            self._has_looked_fully = True

    def _next_look(self, look: Look, wait_ms: int | None) -> float:
        if wait_ms is not None:
            looks = [look.began_at + wait_ms / 1000]
        else:
            looks = [DOZING if self.is_shared else look.began_at + self.longest_sleep]
        if look.passed:
            return min(*looks, look.began_at + PASSING_SECONDS)
        if not self._has_looked_back:
            looks.append(self._back_look_at)
        if not self._has_looked_fully:
            looks.append(self._full_look_at)
        return min(looks)

    def rouse(self, at: float) -> None:
        """Something is due then, as far as a scout could see."""
        self.wake()
        self.look_at = at

    def look_back(self) -> None:
        """Messages are due again that may lie below the mark."""
        self.wake()
        self._back_look_at = 0.0

    def wake(self) -> None:
        """Something may have been offered: look at once."""
        self.look_at = 0.0
        self._was_short = self._has_looked_back = self._has_looked_fully = False


def lanes_of(options: WorkerOptions, registry: Registry) -> list[Lane]:
    """Return the lanes of the named queues, in their order, or of all with a handler."""
    if registry.failures:
        raise InvalidConfiguration(
            f"Handlers are missing. {' '.join(registry.failures.values())} Mend that, then start "
            "the worker again."
        )
    chosen: Iterable[Handler] = () if options.only_sourced else registry
    if options.queues:
        chosen = [registry.get(name) for name in options.queues]
    lanes = [lane_of(each, options) for each in chosen]
    if not lanes and not (options.asks_sources and registry.sources):
        raise HandlerNotFound(
            "No handler is registered, so there is nothing to work on. Declare one with "
            "@handler in a module named handlers of an installed app."
        )
    return lanes


def lane_of(handler: Handler, options: WorkerOptions) -> Lane:
    queue = DelayedQueue(
        handler.queue,
        codec=handler.codec,
        kind=handler.kind,
        using=options.using,
        lease_duration=options.lease or handler.lease,
        poll_interval=options.poll_interval,
        retry_policy=handler.retry,
        claim=handler.claim,
    )
    limit = min(options.batch_size, handler.batch_size or options.batch_size)
    return Lane(handler, queue, queue.retry_policy, wrap(handler), limit)


def shortest_lease(lanes: list[Lane]) -> float:
    """Return the seconds of the shortest lease, or of the default where there is no lane."""
    leases = [lane.queue.lease_duration for lane in lanes]
    return min(leases, default=get_settings().LEASE_DURATION).total_seconds()
