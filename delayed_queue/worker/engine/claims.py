"""Claims: the messages of one lease on their way through a worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby
from typing import Any, Final

from delayed_queue.cron.runs import has_ticks, is_tick
from delayed_queue.db.kept import is_unconnected
from delayed_queue.handlers import Manner, Reject, Snooze, attempts_used_up
from delayed_queue.logs import log
from delayed_queue.messages import Envelope, has_expired
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.ticks import TickTimes

# Retry delay of a message whose handler could not connect to the database of its queue.
UNCONNECTED: Final = timedelta(seconds=1)


class NotBegun(Snooze):
    """The message was not started: it returns to its position in the queue."""

    def __init__(self) -> None:
        super().__init__(timedelta(0))


@dataclass(slots=True, eq=False)
class Claim:
    """The messages of one lease in a worker.

    Handler threads only append to ``done`` and ``failures``; the claim loop counts how far it has
    settled them. So no lock is needed, and nothing is done for a message that can be done for a
    batch.
    """

    consumer: Consumer
    lease_id: str
    envelopes: list[Envelope]
    leased_at: float
    # An earlier delivery ended without a result, so the message may have killed its worker.
    is_suspect: bool = False
    # True if other claims have messages of the same lease, as with suspects.
    shares_lease: bool = field(init=False)
    # True while an exchange under way settles it.
    is_being_written: bool = field(init=False, default=False)
    # True after an exchange without a reply: missing messages may be settled.
    is_in_doubt: bool = field(init=False, default=False)
    # It is not settled before this monotonic time, as its message is locked.
    deferred_until: float = field(init=False, default=0.0)
    call: Callable[[Envelope], Any] = field(init=False)
    is_async: bool = field(init=False)
    timeout: float | None = field(init=False)
    # The payload of messages that are handled in one call; None if each is handled by itself.
    payload_bytes: int | None = field(init=False, default=None)
    # The times of its messages, if they are ticks of schedules.
    ticks: TickTimes | None = field(init=False, default=None)
    lease_seconds: float = field(init=False)
    # Seconds that handlers took, until they are counted.
    took: list[float] = field(init=False, default_factory=list)
    done: list[int] = field(init=False, default_factory=list)
    failures: list[tuple[Envelope, BaseException]] = field(init=False, default_factory=list)
    # Those of ``done`` that were not started, because they had expired.
    expired: set[int] = field(init=False, default_factory=set)
    acknowledged: int = field(init=False, default=0)
    judged: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        consumer = self.consumer
        self.shares_lease = self.is_suspect
        self.call, self.is_async, self.timeout = consumer.call, consumer.is_async, consumer.timeout
        self.lease_seconds = consumer.queue.lease_duration.total_seconds()

    def skips(self, envelope: Envelope, now: float) -> bool:
        """Settle a message that must not be started any more; return whether it is one.

        It is released if its lease is lost or may have run out, and removed if it has expired.
        """
        if envelope.lease_lost or now > self.leased_at + self.lease_seconds:
            self.leave(envelope)
            return True
        if not has_expired(envelope, now - self.leased_at):
            return False
        if self.consumer.handler.on_expired == "dead":
            self.failures.append((envelope, Reject("expired")))
        else:
            self.expired.add(envelope.message_id)
            self.done.append(envelope.message_id)
        return True

    def leave(self, envelope: Envelope) -> int:
        """Release a message that was not started, if the lease still holds it; return how many."""
        self.failures.append((envelope, NotBegun()))
        return 1

    def fail(self, envelope: Envelope, error: BaseException) -> None:
        """Record an error; a handler that could not connect is retried without counting."""
        if is_unconnected(error, self.consumer.queue.using):
            fields = {"queue": envelope.queue, "key": envelope.key}
            log(logging.WARNING, "handler_unconnected", **fields, error=type(error).__name__)
            error = Snooze(UNCONNECTED)
        self.failures.append((envelope, error))

    def by_manner(self) -> list[Claim]:
        """Return one claim for each manner of handling its messages."""
        treatment = self.consumer.handler.treatment
        if treatment is None:
            return [self]
        groups: dict[Manner, list[Envelope]] = {}
        for envelope in self.envelopes:
            groups.setdefault(treatment.manner(envelope), []).append(envelope)
        claims = [self] if len(groups) == 1 else [self.part(each) for each in groups.values()]
        for claim, manner in zip(claims, groups, strict=True):
            claim.is_async, claim.timeout = manner
            if manner.is_async:
                claim.call = self.consumer.acall
        return claims

    def by_tick(self) -> list[Claim]:
        """Return ticks of schedules apart, whose runs are recorded, in the order of messages."""
        if not has_ticks(self.envelopes):
            return [self]
        found = []
        for are_ticks, envelopes in groupby(self.envelopes, is_tick):
            part = self.part(list(envelopes))
            if are_ticks:
                part.ticks = TickTimes(part.call, is_async=part.is_async)
                part.call = part.ticks.call
            found.append(part)
        return found

    def part(self, envelopes: list[Envelope]) -> Claim:
        """Return a claim of some of its messages, under the same lease."""
        part = replace(self, envelopes=envelopes)
        part.call, part.is_async, part.timeout = self.call, self.is_async, self.timeout
        part.expired = self.expired
        part.ticks, part.shares_lease, part.is_in_doubt = self.ticks, True, self.is_in_doubt
        return part

    def take_unspent(self) -> list[Envelope]:
        """Return the messages with attempts left; fail the others, without a handler.

        Either they kill their workers, or the database refused their dead letters.
        """
        most = self.consumer.policy.max_attempts
        spent = [each for each in self.envelopes if each.attempt > most]
        self.failures.extend((each, attempts_used_up(each)) for each in spent)
        return (
            [each for each in self.envelopes if each.attempt <= most] if spent else self.envelopes
        )

    @property
    def unhandled(self) -> int:
        return len(self.envelopes) - len(self.done) - len(self.failures)

    @property
    def is_settled(self) -> bool:
        return self.acknowledged + self.judged == len(self.envelopes)

    @property
    def has_unwritten(self) -> bool:
        """True if handled messages can be settled now."""
        if self.is_being_written:
            return False
        is_handled = len(self.done) > self.acknowledged or len(self.failures) > self.judged
        return is_handled and self.deferred_until <= time.monotonic()

    def unwritten_ids(self) -> list[int]:
        failed = [envelope.message_id for envelope, _ in self.failures[self.judged :]]
        return [*self.done[self.acknowledged :], *failed]

    def set_apart(self, ids: set[int]) -> list[Claim]:
        """Move handled members that are not settled to claims of their own."""
        gone = [each for each in self.envelopes if each.message_id in ids]
        self.remove(gone)
        self.shares_lease = self.shares_lease or bool(gone)
        return [self._apart(envelope) for envelope in gone]

    def _apart(self, envelope: Envelope) -> Claim:
        apart = self.part([envelope])
        apart.failures = [each for each in self.failures if each[0] is envelope]
        if apart.failures:
            self.failures.remove(apart.failures[0])
        else:
            apart.done = [envelope.message_id]
            self.done.remove(envelope.message_id)
        return apart

    def members(self, ids: Sequence[int]) -> list[Envelope]:
        if len(ids) == len(self.envelopes):
            return self.envelopes
        wanted = set(ids)
        return [each for each in self.envelopes if each.message_id in wanted]

    def handled_ids(self) -> set[int]:
        return {*self.done, *(envelope.message_id for envelope, _ in self.failures)}

    def in_flight(self) -> Iterator[Envelope]:
        """Return the members without a result."""
        handled = self.handled_ids()
        return (each for each in self.envelopes if each.message_id not in handled)

    def remove(self, envelopes: list[Envelope]) -> None:
        """Forget members that were released."""
        gone = {id(each) for each in envelopes}
        self.envelopes = [each for each in self.envelopes if id(each) not in gone]
