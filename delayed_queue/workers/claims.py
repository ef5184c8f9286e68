"""A claim: what one statement leased, and what has become of it so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from delayed_queue.messages import Envelope
from delayed_queue.workers.lanes import Lane


class Claim:
    """The messages of one lease on their way through a worker.

    Handler threads only append to ``done`` and ``failures``; the worker only counts how far it
    has settled them. So no lock is needed, and nothing is done for a message that could be
    done for a batch.
    """

    __slots__ = (
        "acknowledged", "call", "done", "envelopes", "failures", "is_suspect", "judged", "lane",
        "lease_id", "leased_at", "timeout",
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
        self.call: Callable[[Envelope], Any] = lane.call
        self.timeout = lane.timeout
        self.done: list[int] = []
        self.failures: list[tuple[Envelope, BaseException]] = []
        self.acknowledged = 0
        self.judged = 0

    @property
    def unhandled(self) -> int:
        return len(self.envelopes) - len(self.done) - len(self.failures)

    @property
    def is_settled(self) -> bool:
        return self.acknowledged + self.judged == len(self.envelopes)

    @property
    def is_wholly_done(self) -> bool:
        """Whether the lease can be acknowledged as a whole: every member of it was handled.

        The lease of suspects is shared by claims of one message each.
        """
        return (
            not self.is_suspect
            and self.acknowledged == 0
            and len(self.done) == len(self.envelopes)
        )  # fmt: skip

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
