"""Batches: the messages of one claim, or of one call of a handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from delayed_queue.durations import Duration
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.handlers import Reject, Snooze
from delayed_queue.messages import Envelope, Leases


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Sequence[Envelope]):
    """Envelopes of one queue, in the order of their claim.

    ``try_poll_many`` returns one, under one lease. A handler with ``many=True`` receives one: when
    it returns, all messages are acknowledged that it has not failed, snoozed or rejected.
    """

    envelopes: tuple[Envelope, ...]
    lease_id: str
    leases: Leases

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} messages>"

    def __len__(self) -> int:
        return len(self.envelopes)

    @overload
    def __getitem__(self, index: int) -> Envelope: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Envelope, ...]: ...

    def __getitem__(self, index: int | slice) -> Envelope | tuple[Envelope, ...]:
        return self.envelopes[index]

    @property
    def is_cancelled(self) -> bool:
        """True when the result of the handler's call is no longer wanted: its timeout is over."""
        return False

    def fail(self, envelope: Envelope, error: BaseException | str) -> None:
        """Fail a message: it is retried alone, or becomes a dead letter, by the retry policy."""
        if not isinstance(error, BaseException | str):
            raise InvalidConfiguration(f"error must be an exception or a str, not {error!r}.")
        self._decide(envelope, RuntimeError(error) if isinstance(error, str) else error)

    def snooze(self, envelope: Envelope, delay: Duration) -> None:
        """Deliver a message again after the delay; the attempt does not count."""
        self._decide(envelope, Snooze(delay))

    def reject(self, envelope: Envelope, reason: str) -> None:
        """Move a message to the dead letters."""
        self._decide(envelope, Reject(reason))

    def _decide(self, envelope: Envelope, outcome: BaseException) -> None:
        raise InvalidConfiguration(
            "fail(), snooze() and reject() of a batch are for the handler that receives it "
            "(many=True); settle the messages of a polled batch one by one."
        )

    def acknowledge(self) -> int:
        """Delete every member still under this lease; return how many were deleted."""
        return self.leases.acknowledge_batch(self)

    async def aacknowledge(self) -> int:
        return await self.leases.in_thread(self.acknowledge)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CalledBatch(Batch):
    """The batch of one call of a handler, which ``call`` represents."""

    call: Envelope
    members: frozenset[Envelope]
    # Decisions of the handler about single messages.
    outcomes: dict[Envelope, BaseException] = field(default_factory=dict)

    @classmethod
    def of(cls, envelopes: Sequence[Envelope], call: Envelope) -> CalledBatch:
        some, first = tuple(envelopes), envelopes[0]
        return cls(some, first.lease_id, first.leases, call, frozenset(some))

    @property
    def is_cancelled(self) -> bool:
        return self.call.is_cancelled

    def _decide(self, envelope: Envelope, outcome: BaseException) -> None:
        if envelope not in self.members:
            raise InvalidMessage(f"{envelope!r} is not in this batch, which cannot settle it.")
        self.outcomes[envelope] = outcome

    def acknowledge(self) -> int:
        raise InvalidConfiguration(
            "The batch of a handler is acknowledged when the handler returns."
        )


def one_by_one(function: Callable[[Batch], Any], *, is_async: bool) -> Callable[[Envelope], Any]:
    """Return a function that calls a batch handler with one message, and raises its decision."""

    def call(envelope: Envelope) -> None:
        batch = CalledBatch.of((envelope,), envelope)
        function(batch)
        _raise_outcome(batch)

    async def acall(envelope: Envelope) -> None:
        batch = CalledBatch.of((envelope,), envelope)
        await function(batch)
        _raise_outcome(batch)

    return acall if is_async else call


def _raise_outcome(batch: CalledBatch) -> None:
    for outcome in batch.outcomes.values():
        raise outcome
