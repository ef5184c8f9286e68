"""A claim: what one statement leased, and what has become of it so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from delayed_queue.handlers import Snooze
from delayed_queue.messages import Envelope
from delayed_queue.worker.lanes import Lane


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
        "acknowledged", "call", "done", "envelopes", "failures", "is_suspect", "judged", "lane",
        "lease_id", "lease_seconds", "leased_at", "put_off_until", "shares_lease", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        lane: Lane,
        lease_id: str,
        envelopes: list[Envelope],
        leased_at: float,
        *,
        is_suspect: bool = False,
    ) -> None:
        self.lane = lane
        self.lease_id = lease_id
        self.envelopes = envelopes
        self.leased_at = leased_at
        # Leased after a delivery that ended without an answer: it may have killed its worker.
        self.is_suspect = is_suspect
        # Whether other claims have members of the lease: those of suspects are one each.
        self.shares_lease = is_suspect
        # The monotonic time before which it is not settled, as somebody else holds its message.
        self.put_off_until = 0.0
        self.call: Callable[[Envelope], Any] = lane.call
        self.timeout = lane.timeout
        self.lease_seconds = lane.queue.lease_duration.total_seconds()
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
        is_handled = len(self.done) > self.acknowledged or len(self.failures) > self.judged
        return is_handled and self.put_off_until <= time.monotonic()

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
            self.lane, self.lease_id, [envelope], self.leased_at, is_suspect=self.is_suspect
        )
        apart.shares_lease = True
        apart.failures = [each for each in self.failures if each[0] is envelope]
        if apart.failures:
            self.failures.remove(apart.failures[0])
        else:
            apart.done = [envelope.message_id]
            self.done.remove(envelope.message_id)
        return apart

    def handled_ids(self) -> set[int]:
        return {*self.done, *(envelope.message_id for envelope, _ in self.failures)}

    def in_hand(self) -> Iterator[Envelope]:
        """Yield the members that no handler has answered for yet."""
        handled = self.handled_ids()
        return (each for each in self.envelopes if each.message_id not in handled)

    def remove(self, envelopes: list[Envelope]) -> None:
        """Have nothing more to do with members that were given back."""
        gone = {id(each) for each in envelopes}
        self.envelopes = [each for each in self.envelopes if id(each) not in gone]
