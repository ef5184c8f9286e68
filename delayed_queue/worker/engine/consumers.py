"""Consumers: the queues of a worker, and what handles their messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from delayed_queue.db.sql import Step
from delayed_queue.facade import DelayedQueue
from delayed_queue.handlers import Handler, Verdict, judge
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.observe.history import Tally
from delayed_queue.queue.group_claims import GroupWalk
from delayed_queue.queue.store.claim import (
    claim_step,
    next_due_step,
    try_lock_step,
)
from delayed_queue.queue.store.limits import rules_step
from delayed_queue.retries import RetryPolicy
from delayed_queue.worker.engine.scanning import Poll, PollResult, ScanSchedule

# Seconds of work that a transaction takes at a time.
BATCH_SECONDS: Final = 0.25
# Fraction of the usual time for which a worker leases ahead from a queue with limits.
LIMITED_AHEAD: Final = 0.25
# Number of messages in the moving average.
AVERAGED: Final = 16


class SlowestScan(NamedTuple):
    """The queue with the slowest full scan of a worker; empty before the first scan."""

    scanned: str = ""
    scan_seconds: float = 0.0


@dataclass(slots=True)
class FairShare:
    """The turns and slots of one consumer, limited so that others get theirs.

    ``had_turn``: in this round. ``overdue_since``: the due time of its next message, in
    milliseconds of the epoch; if unknown, it is polled first. ``running``: its messages that the
    event loop handles now.
    """

    had_turn: bool = False
    overdue_since: float = -math.inf
    running: int = 0


@dataclass(slots=True)
class TransactionLoad:
    """The transactions in progress of a consumer, and how many are worth it."""

    running: int = 0
    wanted: int = 1
    seconds_each: float = 0.05

    @property
    def batch_size(self) -> int:
        return max(int(BATCH_SECONDS / self.seconds_each), 1)

    def begin(self) -> None:
        self.running += 1

    def end(self, handled: int, seconds: float) -> None:
        """Want another thread after a transaction that found something, one in all after none."""
        self.running -= 1
        self.wanted = min(self.running + 2, self.wanted + 1) if handled else 1
        if handled:
            weight = min(handled / AVERAGED, 1)
            self.seconds_each += (seconds / handled - self.seconds_each) * weight


@dataclass(slots=True, eq=False)
class Consumer:
    """One queue of a worker, and what handles its messages.

    At most ``limit`` messages are claimed at a time. ``is_dynamic``: a source named the queue. It
    takes turns with the others, holds no more than its share, and is left to the idle scan while
    it has nothing.
    """

    handler: Handler
    queue: DelayedQueue
    policy: RetryPolicy
    call: Callable[[Envelope], Any]
    limit: int
    # Called on the event loop, if messages of the queue differ.
    acall: Callable[[Envelope], Any]
    # Called with a batch; ``call`` passes it a batch of one message.
    call_many: Any = None
    is_dynamic: bool = False
    is_async: bool = field(init=False)
    tally: Tally = field(init=False)
    share: FairShare = field(default_factory=FairShare)
    transactions: TransactionLoad = field(default_factory=TransactionLoad)
    schedule: ScanSchedule = field(init=False)
    rules: Step = field(init=False)
    # The progress of claims by group, while the queue is known to have limits; and whether one of
    # these is a rate, whose permits are for messages that start now.
    walk: GroupWalk | None = field(init=False, default=None)
    is_rated: bool = field(init=False, default=True)
    # True if its last claim found suspects; unknown before the first.
    meets_suspects: bool = field(init=False, default=True)
    # Nothing is claimed before the limits that the handler declares are written.
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
        """Return what becomes of a failed message, by its treatment or else by the policy."""
        treatment = self.handler.treatment
        verdict = None if treatment is None else treatment.judge(error, envelope)
        return judge(error, envelope.attempt, self.policy) if verdict is None else verdict

    def begin_poll(self, limit: int) -> Poll:
        """Return the poll to make now; several kinds are always polled from their start."""
        treatment = self.handler.treatment
        kinds = () if treatment is None else tuple(treatment.kinds())
        if self.walk is not None:
            kinds = kinds or (self.queue.kind,)
        return self.schedule.begin(limit, kinds if self.walk is not None or len(kinds) > 1 else ())

    def end_poll(self, poll: Poll, result: PollResult) -> None:
        """Schedule the next poll, and record how overdue the queue is."""
        self.schedule.end(poll, result)
        self.share.overdue_since = -math.inf
        if result.is_full(poll) and result.latest is not None:
            self.share.overdue_since = result.latest

    def claim_steps(self, poll: Poll, lease_id: str, retaken_id: str) -> dict[str, Step]:
        """Return the statements of a poll by name.

        If the queue has limits, its claims follow, in a transaction each.
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
        """Fraction of the usual time to lease ahead: small with limits, none with a rate."""
        if self.walk is None:
            return 1.0
        return 0.0 if self.is_rated else LIMITED_AHEAD

    def rewind(self) -> None:
        """Poll from an earlier position, where messages may be due again."""
        self.schedule.rewind()
        if self.walk is not None:
            self.walk.ungrouped.rewind()

    def note_slot(self) -> None:
        """A lease has ended, so if leases are limited, another message may be leased now."""
        if self.walk is not None:
            self.schedule.wake()

    def _claim(self, poll: Poll, lease_id: str, retaken_id: str) -> Step:
        lease = self.queue.lease_duration // MILLISECOND
        return claim_step(
            self.queue.kind, poll.limit, lease_id, retaken_id, lease, kinds=poll.kinds,
            floor=poll.position, floor_id=poll.first_id, strict=self.is_strict,
        )  # fmt: skip


def slowest_scan(consumers: Iterable[Consumer]) -> SlowestScan:
    """Return the queue with the slowest full scan; may be called from another thread."""
    found = ((each.schedule.full_scans.seconds, each.queue.name) for each in consumers)
    seconds, name = max(found, default=(0.0, ""))
    return SlowestScan(name, seconds) if seconds else SlowestScan()
