"""Calls of handlers that receive many messages: gathered, started, ended, and split (B1 to B6)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from delayed_queue.batch import CalledBatch
from delayed_queue.handlers import Snooze
from delayed_queue.messages import Envelope
from delayed_queue.queue.store.claim import LeasedRow
from delayed_queue.splits import halves
from delayed_queue.worker.engine.claims import Claim
from delayed_queue.worker.engine.consumers import Consumer

# Maximum payload of the messages of one call, in bytes.
MOST_BYTES: Final = 64 * 2**20
# At most N messages are claimed at a time while some of a dead batch are left: each is handled
# alone, and nothing else meanwhile.
MOST_SUSPECTS: Final = 100


def apart(claim: Claim, rows: Sequence[LeasedRow]) -> list[Claim]:
    """Return the claims of a batch handler: one for each call, and one of messages to call alone.

    A message that has failed is called alone, so that it fails no batch again.
    """
    if claim.is_suspect or claim.ticks is not None:
        return [claim]
    sizes = {row.id: len(row.payload) for row in rows}
    is_split = claim.consumer.handler.split
    alone = [each for each in claim.envelopes if is_split and each.attempt > 1]
    together = [each for each in claim.envelopes if not (is_split and each.attempt > 1)]
    parts = _by_bytes(together, sizes)
    if len(parts) == 1 and not alone:
        claim.payload_bytes = sum(sizes[each.message_id] for each in together)
        return [claim]
    claims = [claim.part(alone)] if alone else []
    for part in parts:
        call = claim.part(part)
        call.payload_bytes = sum(sizes[each.message_id] for each in part)
        claims.append(call)
    return claims


def _by_bytes(envelopes: list[Envelope], sizes: dict[int, int]) -> list[list[Envelope]]:
    """Return the messages in parts of at most MOST_BYTES; a larger message is a part."""
    parts: list[list[Envelope]] = []
    size = MOST_BYTES
    for envelope in envelopes:
        size += sizes[envelope.message_id]
        if not parts or size > MOST_BYTES:
            parts.append([])
            size = sizes[envelope.message_id]
        parts[-1].append(envelope)
    return parts


class BatchCall(Claim):
    """One call of a batch handler, as a pool sees it: a claim of one message.

    That ``envelope`` represents the call; its negative id on the board means a batch. The pool
    records how the call ended, and the claim loop settles the messages by it. ``owners`` has these,
    each with its claim.
    """

    __slots__ = ("envelope", "outcomes", "owners")

    def __init__(self, consumer: Consumer, owners: dict[Envelope, Claim]) -> None:
        first = next(iter(owners))
        name = f"{first.key} and {len(owners) - 1} more" if len(owners) > 1 else first.key
        self.envelope = replace(first, key=name, message_id=-first.message_id)
        self.owners = owners
        super().__init__(consumer, first.lease_id, [self.envelope], owners[first].leased_at)
        self.outcomes: dict[Envelope, BaseException] = {}

    def skips(self, envelope: Envelope, now: float) -> bool:
        """Settle the members that must not be started; return whether none is left."""
        self.owners = {
            each: claim for each, claim in self.owners.items() if not claim.skips(each, now)
        }
        if not self.owners:
            self.done.append(0)
            return True
        batch = CalledBatch.of(tuple(self.owners), self.envelope)
        self.outcomes = batch.outcomes
        function = self.consumer.call_many
        self.call = lambda envelope: function(batch)
        return False

    def leave(self, envelope: Envelope) -> int:
        """Release the members, which were not called."""
        for each, claim in self.owners.items():
            claim.leave(each)
        left, self.owners = len(self.owners), {}
        self.done.append(0)
        return left

    def part(self, envelopes: list[Envelope]) -> Claim:
        """Return a claim for a trial of the call, which may be given up."""
        trial = Claim(self.consumer, self.lease_id, envelopes, self.leased_at)
        trial.call = self.call
        return trial

    @property
    def has_ended(self) -> bool:
        return bool(self.done or self.failures)

    def end(self) -> list[dict[Envelope, Claim]]:
        """Record the results of the members, or return the halves to call instead."""
        for claim in list(self.owners.values())[:1]:
            claim.took.extend(self.took)
        if not self.failures:
            self._record(self.outcomes)
            return []
        error = self.failures[0][1]
        is_split = self.consumer.handler.split and not isinstance(error, Snooze)
        if is_split and len(self.owners) > 1:
            return [
                {each: self.owners[each] for each in half}
                for half in halves(tuple(self.owners))
            ]  # fmt: skip
        self._record(dict.fromkeys(self.owners, error))
        return []

    def _record(self, outcomes: dict[Envelope, BaseException]) -> None:
        for envelope, claim in self.owners.items():
            outcome = outcomes.get(envelope)
            if outcome is None:
                claim.done.append(envelope.message_id)
            else:
                claim.failures.append((envelope, outcome))


@dataclass(slots=True)
class _Gathering:
    """Messages of a consumer that wait for a fuller batch, until a monotonic time."""

    until: float
    members: dict[Envelope, Claim] = field(default_factory=dict)
    size: int = 0


class Calls:
    """The calls of a worker's batch handlers, and the messages that wait for a fuller batch.

    All of it happens in the claim loop's thread, except ``cancel``.
    """

    def __init__(self, submit: Callable[[BatchCall], None]) -> None:
        self._submit = submit
        self._active: set[BatchCall] = set()
        self._gathering: dict[Consumer, _Gathering] = {}
        # Until when a transactional consumer waits for more messages, which it does not lease.
        self._begin_at: dict[Consumer, float] = {}
        self._is_stopped = False

    def __iter__(self) -> Iterator[BatchCall]:
        return iter(self._active)

    @property
    def has_ended(self) -> bool:
        return any(each.has_ended for each in self._active)

    def room(self, consumer: Consumer, *, after_crash: bool) -> int:
        """Return how many messages the next call of the consumer can have."""
        gathering = self._gathering.get(consumer)
        room = consumer.limit - (len(gathering.members) if gathering else 0)
        return min(room, MOST_SUSPECTS) if after_crash and consumer.meets_suspects else room

    def add(self, claim: Claim, envelopes: Iterable[Envelope]) -> None:
        """Start a call with the messages of a claim, or let them wait for more."""
        consumer, members = claim.consumer, dict.fromkeys(envelopes, claim)
        linger, size = consumer.handler.linger, claim.payload_bytes or 0
        if linger is None:
            self._start(consumer, members)
            return
        gathering = self._gathering.get(consumer)
        if gathering is not None and gathering.size + size > MOST_BYTES:
            self._start_gathered(consumer)
            gathering = None
        if gathering is None:
            until = claim.leased_at + linger.total_seconds()
            gathering = self._gathering[consumer] = _Gathering(until)
        gathering.members |= members
        gathering.size += size
        if len(gathering.members) >= consumer.limit:
            self._start_gathered(consumer)

    def tend(self, *, is_alone: bool) -> None:
        """Settle the calls that have ended, start their halves, and what has waited long enough.

        Nothing starts beside a suspect or after ``stop``.
        """
        for call in [each for each in self._active if each.has_ended]:
            self._active.discard(call)
            for members in call.end():
                if is_alone or self._is_stopped:
                    leave(members)
                else:
                    self._start(call.consumer, members)
        now = time.monotonic()
        for consumer in [each for each, some in self._gathering.items() if some.until <= now]:
            self._start_gathered(consumer)

    def nap(self) -> float:
        """Return the seconds until there is something to do here."""
        if self.has_ended:
            return 0.0
        until = min((each.until for each in self._gathering.values()), default=math.inf)
        return until - time.monotonic()

    def lingers(self, consumer: Consumer) -> bool:
        """Return whether a transactional consumer waits for a fuller batch before it takes one."""
        linger, now = consumer.handler.linger, time.monotonic()
        if linger is None or consumer.share.overdue_since > -math.inf:  # the last one was full
            return False
        if now < self._begin_at.setdefault(consumer, now + linger.total_seconds()):
            return True
        del self._begin_at[consumer]
        return False

    def begins_at(self, consumer: Consumer) -> float:
        """Return when a transactional consumer has waited long enough; 0 if it does not wait."""
        return self._begin_at.get(consumer, 0.0)

    def cancel(self) -> list[Envelope]:
        """Return the calls all of whose messages are lost; called in the keeper's thread."""
        lost = [each for each in list(self._active) if _are_cancelled(each.owners)]
        for each in lost:
            each.envelope.lease_lost = True
        return [each.envelope for each in lost]

    def leave_gathered(self) -> None:
        """Release the messages that wait for a fuller batch."""
        for gathering in self._gathering.values():
            leave(gathering.members)
        self._gathering.clear()

    def stop(self) -> None:
        """Start nothing more."""
        self._is_stopped = True
        self.leave_gathered()

    def _start_gathered(self, consumer: Consumer) -> None:
        self._start(consumer, self._gathering.pop(consumer).members)

    def _start(self, consumer: Consumer, members: dict[Envelope, Claim]) -> None:
        call = BatchCall(consumer, members)
        self._active.add(call)
        self._submit(call)


def leave(members: dict[Envelope, Claim]) -> None:
    for envelope, claim in members.items():
        claim.leave(envelope)


def _are_cancelled(members: dict[Envelope, Claim]) -> bool:
    return bool(members) and all(each.is_cancelled for each in members)
