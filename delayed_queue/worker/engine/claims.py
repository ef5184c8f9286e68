"""Claims: the messages of one lease on their way through a worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from delayed_queue.db.kept import is_unconnected
from delayed_queue.handlers import Manner, Snooze, attempts_used_up
from delayed_queue.logs import log
from delayed_queue.messages import Envelope
from delayed_queue.worker.engine.consumers import Consumer

# Retry delay of a message whose handler could not connect to the database of its queue.
UNCONNECTED: Final = timedelta(seconds=1)


class NotBegun(Snooze):
    """Nobody has begun the message: it goes back to its place in the queue, for anybody."""

    def __init__(self) -> None:
        super().__init__(timedelta(0))


class Claim:
    """The messages of one lease on their way through a worker.

    Handler threads only append to ``done`` and ``failures``; the worker only counts how far it
    has settled them. So no lock is needed, and nothing is done for a message that could be
    done for a batch.
    """

    __slots__ = (
        "acknowledged",
        "call",
        "consumer",
        "deferred_until",
        "done",
        "envelopes",
        "failures",
        "is_async",
        "is_being_written",
        "is_in_doubt",
        "is_suspect",
        "judged",
        "lease_id",
        "lease_seconds",
        "leased_at",
        "shares_lease",
        "timeout",
        "took",
    )  # fmt: skip

    def __init__(
        self,
        consumer: Consumer,
        lease_id: str,
        envelopes: list[Envelope],
        leased_at: float,
        *,
        is_suspect: bool = False,
    ) -> None:
        self.consumer = consumer
        self.lease_id = lease_id
        self.envelopes = envelopes
        self.leased_at = leased_at
        # Leased after a delivery that ended without an answer: it may have killed its worker.
        self.is_suspect = is_suspect
        # Whether other claims have members of the lease: those of suspects are one each.
        self.shares_lease = is_suspect
        # Whether an exchange that has not ended writes about it.
        self.is_being_written = False
        # Whether one that never ended did, so that what is gone may have been settled by it.
        self.is_in_doubt = False
        # The monotonic time before which it is not settled, as somebody else holds its message.
        self.deferred_until = 0.0
        self.call: Callable[[Envelope], Any] = consumer.call
        self.is_async, self.timeout = consumer.is_async, consumer.timeout
        self.lease_seconds = consumer.queue.lease_duration.total_seconds()
        # The seconds that handlers took, until they are counted.
        self.took: list[float] = []
        self.done: list[int] = []
        self.failures: list[tuple[Envelope, BaseException]] = []
        self.acknowledged = 0
        self.judged = 0

    def is_overdue(self, envelope: Envelope, now: float) -> bool:
        """Return whether a message may be another's by now: the process was stopped for long.

        Then it is not to be begun.
        """
        return envelope.lease_lost or now > self.leased_at + self.lease_seconds

    def leave(self, envelope: Envelope) -> None:
        """Have a message given back that nobody has begun, if the lease still holds it."""
        self.failures.append((envelope, NotBegun()))

    def fail(self, envelope: Envelope, error: BaseException) -> None:
        """Record an error; where the handler could not connect, the message waits, uncounted."""
        if is_unconnected(error, self.consumer.queue.using):
            fields = {"queue": envelope.queue, "key": envelope.key}
            log(logging.WARNING, "handler_unconnected", **fields, error=type(error).__name__)
            error = Snooze(UNCONNECTED)
        self.failures.append((envelope, error))

    def by_manner(self) -> list[Claim]:
        """Return it, or a claim for each manner in which its messages are to be handled."""
        treatment = self.consumer.handler.treatment
        if treatment is None:
            return [self]
        manners = [treatment.manner(each) for each in self.envelopes]
        if manners.count(manners[0]) == len(manners):
            return [self._of_manner(manners[0], self.envelopes, 1)]
        groups: dict[Manner, list[Envelope]] = {}
        for manner, envelope in zip(manners, self.envelopes, strict=True):
            groups.setdefault(manner, []).append(envelope)
        return [self._of_manner(each, some, len(groups)) for each, some in groups.items()]

    def _of_manner(self, manner: Manner, envelopes: list[Envelope], groups: int) -> Claim:
        claim = self if groups == 1 else Claim(
            self.consumer, self.lease_id, envelopes, self.leased_at, is_suspect=self.is_suspect
        )  # fmt: skip
        claim.shares_lease = self.shares_lease or groups > 1
        claim.is_async, claim.timeout = manner
        if manner.is_async:
            claim.call = self.consumer.acall
        return claim

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
    def is_wholly_done(self) -> bool:
        """Whether the lease can be acknowledged as a whole: every member of it was handled."""
        return (
            not self.shares_lease
            and self.acknowledged == 0
            and len(self.done) == len(self.envelopes)
        )  # fmt: skip

    @property
    def has_unwritten(self) -> bool:
        """Whether something is to be settled, and may be by now."""
        if self.is_being_written:
            return False
        is_handled = len(self.done) > self.acknowledged or len(self.failures) > self.judged
        return is_handled and self.deferred_until <= time.monotonic()

    def unwritten_ids(self) -> list[int]:
        failed = [envelope.message_id for envelope, _ in self.failures[self.judged :]]
        return [*self.done[self.acknowledged :], *failed]

    def set_apart(self, ids: set[int]) -> list[Claim]:
        """Move handled members that are not settled yet to claims of their own."""
        gone = [each for each in self.envelopes if each.message_id in ids]
        self.remove(gone)
        self.shares_lease = self.shares_lease or bool(gone)
        return [self._apart(envelope) for envelope in gone]

    def _apart(self, envelope: Envelope) -> Claim:
        apart = Claim(
            self.consumer, self.lease_id, [envelope], self.leased_at, is_suspect=self.is_suspect
        )
        apart.shares_lease, apart.is_in_doubt = True, self.is_in_doubt
        apart.is_async, apart.timeout, apart.call = self.is_async, self.timeout, self.call
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
        """Yield the members that no handler has answered for yet."""
        handled = self.handled_ids()
        return (each for each in self.envelopes if each.message_id not in handled)

    def remove(self, envelopes: list[Envelope]) -> None:
        """Have nothing more to do with members that were given back."""
        gone = {id(each) for each in envelopes}
        self.envelopes = [each for each in self.envelopes if id(each) not in gone]
