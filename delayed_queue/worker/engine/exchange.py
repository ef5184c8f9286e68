"""Exchanges: the round trips in which a worker settles what was handled and leases more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from django.db import Error

from delayed_queue.db.resilience import is_conflict, through_conflicts
from delayed_queue.db.sql import Row, Step
from delayed_queue.db.statements import Sent, run
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.queue.store.claim import limit_waits_step
from delayed_queue.queue.store.settle import return_leases_step
from delayed_queue.worker.engine.claims import Claim
from delayed_queue.worker.engine.plans import ClaimPlan
from delayed_queue.worker.engine.settling import LOCK_WAIT_MS, Settlement, channels_of

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

# How an exchange fails: an outage or a refusal. Anything else is a bug.
FAILURES: Final = (Error, ResourceUnavailable)


class Exchange:
    """One transaction in one round trip: settlements of claims, and the next claim.

    ``unanswered`` are claims without a reply: what they leased is released. An exchange ends with
    ``replies``, by settlement and by name of the plan's statement, or with an ``error``.
    """

    def __init__(
        self,
        using: str,
        settlements: Sequence[Settlement],
        claims: Sequence[Claim],
        plan: ClaimPlan | None = None,
        unanswered: Sequence[ClaimPlan] = (),
    ) -> None:
        self._using = using
        self.settlements = settlements
        self.claims = claims
        self.plan = plan
        self.unanswered = unanswered
        # Where it was sent.
        self.connection: BaseDatabaseWrapper | None = None
        self.replies: dict[object, list[Row]] = {}
        self.error: Error | ResourceUnavailable | None = None
        self._steps = self._all_steps()
        self._sent: Sent | None = None

    @property
    def claimed(self) -> list[ClaimPlan]:
        """The claims of which it is unknown what they have leased."""
        return [*self.unanswered, *([] if self.plan is None else [self.plan])]

    def send(self, connection: BaseDatabaseWrapper) -> None:
        """Send it on a connection that is used for nothing else until ``receive()``."""
        self.connection = connection
        try:
            self._sent = Sent(connection, *self._work())
        except FAILURES as error:
            self.error = error

    def receive(self) -> None:
        """Wait for the replies; run it here if it was not sent."""
        if self.error is None:
            try:
                self.replies = dict(zip(self._steps, self._tried(), strict=True))
            except FAILURES as error:
                self.error = error
        if self.error is not None and self.connection is not None:
            self.connection.close()

    def _tried(self) -> list[list[Row]]:
        try:
            return self._run() if self._sent is None else self._sent.answers()
        except FAILURES as error:
            if not is_conflict(error):
                raise
        return through_conflicts(self._run)

    def _run(self) -> list[list[Row]]:
        return run(self._using, *self._work())

    def _work(self) -> tuple[list[Step], list[str]]:
        return list(self._steps.values()), channels_of(self.settlements)

    def _all_steps(self) -> dict[object, Step]:
        steps: dict[object, Step] = {}
        if self.unanswered:
            leases = [(each.lease_id, each.retaken_id) for each in self.unanswered]
            steps["returned"] = return_leases_step(*zip(*leases, strict=True))
        steps |= {each: each.step for each in self.settlements}
        if steps:  # claims skip locked rows, but these would wait for them
            steps = {"waits": limit_waits_step(LOCK_WAIT_MS), **steps}
        if self.plan is not None:
            steps.update(self.plan.steps)
        return steps
