"""A lane: one queue as a worker sees it, with its handler and its next time to look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from delayed_queue.exceptions import HandlerNotFound
from delayed_queue.handlers import Handler, Registry
from delayed_queue.instruments import wrap
from delayed_queue.managers import NO_FLOOR, Step, claiming, looking_ahead
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.queues import DelayedQueue
from delayed_queue.retries import RetryPolicy
from delayed_queue.workers.options import WorkerOptions

CRASHED: Final = "crashed: attempts used up without an answer"

# How much of its time a worker may spend on looks from the start of the queue, as one in so
# many. The other looks begin at the low-water mark.
FULL_LOOK_SHARE: Final = 20
# How far below the latest due time the low-water mark stays, in milliseconds: offers commit in
# another order than that of their due times, usually by less than this.
MARGIN_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a queue: where it begins, and whether it asks when the next falls due."""

    limit: int
    floor: int
    looks_ahead: bool
    began_at: float

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
    long sleep, one begins at the start of the queue, for messages that are due earlier than
    what was taken since: offered into the past, or by a transaction that committed late.
    """

    handler: Handler
    queue: DelayedQueue
    policy: RetryPolicy
    call: Callable[[Envelope], Any]
    limit: int
    look_at: float = 0.0
    done: int = 0
    # Of a transactional lane: its transactions in progress, how many there may be, and what
    # one message takes.
    jobs: int = 0
    jobs_wanted: int = 1
    seconds_each: float = 0.05
    _was_short: bool = False
    _floor: int = NO_FLOOR
    _full_look_at: float = 0.0
    _was_fully_looked: bool = False

    @property
    def timeout(self) -> float | None:
        timeout = self.handler.timeout
        return None if timeout is None else timeout.total_seconds()

    @property
    def longest_sleep(self) -> float:
        return self.queue.poll_interval.total_seconds()

    def begin_look(self, limit: int) -> Look:
        now = time.monotonic()
        floor = NO_FLOOR if now >= self._full_look_at else self._floor
        return Look(limit, floor, self._was_short, now)

    def claim_steps(self, look: Look, lease_id: str, retaken_id: str) -> list[Step]:
        """Return the statements of a look that leases what it finds."""
        claim = claiming(
            self.queue.kind, look.limit, lease_id, retaken_id,
            self.queue.lease_duration // MILLISECOND, floor=look.floor,
        )  # fmt: skip
        if not look.looks_ahead:
            return [claim]
        return [looking_ahead(self.queue.kind, self.queue.poll_interval // MILLISECOND), claim]

    def end_look(self, look: Look, found: int, latest: int | None, wait_ms: int | None) -> None:
        """Note what a look found: how many, the latest due time, and the wait for the next."""
        now = time.monotonic()
        if look.is_full:
            spent = now - look.began_at
            self._full_look_at = now + min(FULL_LOOK_SHARE * spent, self.longest_sleep)
            self._was_fully_looked = True
        if latest is not None:
            # A full look that met old messages has more of them to expect.
            floor = NO_FLOOR if look.is_full else self._floor
            self._floor = max(floor, latest - MARGIN_MS)
        if found == look.limit:
            self._was_short = self._was_fully_looked = False
        elif not look.looks_ahead:
            self._was_short = True
        elif self._was_short:  # nobody has called in between
            self._was_short = False
            self.look_at = self._next_look(look, wait_ms)

    def _next_look(self, look: Look, wait_ms: int | None) -> float:
        next_look = look.began_at + (self.longest_sleep if wait_ms is None else wait_ms / 1000)
        return next_look if self._was_fully_looked else min(next_look, self._full_look_at)

    def wake(self) -> None:
        """Something may have been offered: look at once."""
        self.look_at = 0.0
        self._was_short = self._was_fully_looked = False


def lanes_of(options: WorkerOptions, registry: Registry) -> list[Lane]:
    """Return the lanes of the named queues, or of all with a handler, in order of priority."""
    chosen: Iterable[Handler] = registry
    if options.queues:
        chosen = [registry.get(name) for name in options.queues]
    lanes = [_lane(each, options) for each in chosen]
    if not lanes:
        raise HandlerNotFound(
            "No handler is registered, so there is nothing to work on. Declare one with "
            "@handler in a module named handlers of an installed app."
        )
    return lanes


def _lane(handler: Handler, options: WorkerOptions) -> Lane:
    queue = DelayedQueue(
        handler.queue,
        codec=handler.codec,
        kind=handler.kind,
        using=options.using,
        lease_duration=options.lease or handler.lease,
        poll_interval=options.poll_interval,
        retry_policy=handler.retry,
    )
    limit = min(options.batch_size, handler.batch_size or options.batch_size)
    return Lane(handler, queue, queue.retry_policy, wrap(handler), limit)
