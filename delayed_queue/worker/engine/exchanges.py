"""Exchanges: the round trips in which a worker writes what was handled and leases more."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from django.db import Error

from delayed_queue.db.own import own_connection
from delayed_queue.db.resilience import (
    has_stale_plan,
    is_conflict,
    is_unavailable,
    through_conflicts,
    waited_too_long,
)
from delayed_queue.db.sql import Row, Step
from delayed_queue.db.statements import Sent, run
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.handlers import storable
from delayed_queue.queue.store.claim import limit_waits_step
from delayed_queue.queue.store.settle import returning_leases
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.claims import Claim, ClaimPlan, LeaseKeeper
from delayed_queue.worker.engine.database import Outage
from delayed_queue.worker.engine.dispatcher import Dispatcher
from delayed_queue.worker.engine.executor import GATHER_SECONDS
from delayed_queue.worker.engine.refusals import Refusals, WriteRefused
from delayed_queue.worker.engine.settling import (
    LOCK_WAIT_MS,
    LockDeferral,
    Settlement,
    Settler,
    channels_of,
)
from delayed_queue.worker.options import WorkerOptions

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

Answers = list[list[Row]]
# How an exchange fails: an outage or a refusal. Anything else is a bug.
FAILURES: Final = (Error, ResourceUnavailable)


class Exchange:
    """One transaction in one round trip: what it writes, about which claims, and what it leases.

    ``unanswered`` are claims whose answers never came: what they leased is given back. When it
    has ended, it has either ``answers``, to the settlements and to the claim, or an ``error``.
    """

    def __init__(
        self,
        using: str,
        settlements: list[Settlement],
        claims: list[Claim],
        plan: ClaimPlan | None,
        unanswered: list[ClaimPlan],
    ) -> None:
        self._using = using
        self.settlements = settlements
        self.claims = claims
        self.plan = plan
        self.unanswered = unanswered
        self.answers: Answers = []
        self.error: Error | ResourceUnavailable | None = None

    @property
    def asked(self) -> list[ClaimPlan]:
        """The claims of which nobody knows what they have leased."""
        return self.unanswered if self.plan is None else [self.plan, *self.unanswered]

    def make(self) -> None:
        """Make the round trip, on the connection of the thread."""
        self._end(self._run)

    def send(self, connection: BaseDatabaseWrapper) -> None:
        """Begin the round trip on a connection that is used for nothing else."""
        self._connection = connection
        try:
            self._sent = Sent(connection, *self._work())
        except FAILURES as error:
            self.error = error

    def receive(self) -> BaseDatabaseWrapper:
        """Wait for the end of what was begun; return the connection, which is free again."""
        if self.error is None:
            self._end(self._sent.answers)
        if self.error is not None:
            self._connection.close()
        return self._connection

    def _run(self) -> Answers:
        return run(self._using, *self._work())

    def _end(self, first_try: Callable[[], Answers]) -> None:
        try:
            answers = self._repeated(first_try)
        except FAILURES as error:
            self.error = error
        else:
            self.answers = answers[self._unread :]

    def _repeated(self, first_try: Callable[[], Answers]) -> Answers:
        try:
            return first_try()
        except FAILURES as error:
            if not is_conflict(error):
                raise
        return through_conflicts(self._run)

    def _work(self) -> tuple[list[Step], list[str]]:
        """Return the steps, and whom to wake behind them."""
        returned = [(each.lease_id, each.retaken_id) for each in self.unanswered]
        steps = [returning_leases(*zip(*returned, strict=True))] if returned else []
        steps += [each.step for each in self.settlements]
        # Claims pass over what others hold, but these would wait for it.
        waits = [limit_waits_step(LOCK_WAIT_MS)] if steps else []
        self._unread = len(waits) + bool(returned)
        claim = [] if self.plan is None else self.plan.steps
        return [*waits, *steps, *claim], channels_of(self.settlements)


class Exchanges:
    """Makes the exchanges of a worker: one at a time or, where batches fill, two.

    With one, the process and its session in the database take turns: one computes while the other
    waits. Of two, one is under way while the answers to the other are worked off. That is done in
    the worker's thread, as is all the rest; each has a connection that is used for nothing else,
    as what the rest asks must not wait in between. No two write about the same claim.
    """

    def __init__(
        self,
        options: WorkerOptions,
        dispatcher: Dispatcher,
        keeper: LeaseKeeper,
        settler: Settler,
        outage: Outage,
        board: Board,
        refusals: Refusals,
    ) -> None:
        self._using = options.using
        self._most = options.most_claims
        self._dispatcher = dispatcher
        self._keeper = keeper
        self._settler = settler
        self._outage = outage
        self._board = board
        self._refusals = refusals
        self._deferral = LockDeferral(options.using, keeper)
        # Of two at a time, those that nothing was sent on, and what was sent on the others.
        self._free: list[BaseDatabaseWrapper] = []
        self._sent: deque[Exchange] = deque()
        self._under_way: list[Exchange] = []
        # Claims whose answers never came.
        self._unanswered: list[ClaimPlan] = []
        self._ended_at = 0.0
        self._batches_fill = False
        self._was_stale = False

    def start(self) -> None:
        """Be ready for two at a time, in the thread that makes them; they connect when used."""
        if self._most > 1:
            self._free = [own_connection(self._using) for _ in range(self._most)]

    @property
    def has_work(self) -> bool:
        """Whether one is under way, or leases of a lost one are to be given back."""
        return bool(self._under_way or self._unanswered)

    def turn(self, plan: Callable[[], ClaimPlan | None]) -> bool:
        """Make those that there are to make now; return whether more may be to do at once."""
        self._deferral.try_again()
        if not self._sent and not (self._batches_fill and self._free):
            return self._make(plan()) > 0
        self._send(plan)
        if not self._sent:
            return False
        oldest = self._receive()
        # Before the answers are worked off, or only one would be under way meanwhile.
        self._send(plan)
        self._end(oldest)
        return True

    def settle(self) -> None:
        """Write what was handled, and claim nothing."""
        self._deferral.try_again()
        self._make(None)

    def finish(self) -> None:
        """Wait for those that were sent; what has failed is made good by the next."""
        while self._sent:
            with suppress(*FAILURES):
                self._end(self._receive())

    def close(self) -> None:
        for connection in self._free:
            connection.close()

    def is_gathering(self) -> bool:
        """Return whether more results are about to come that can be written together."""
        is_recent = time.monotonic() - self._ended_at < GATHER_SECONDS
        return is_recent and any(pool.waiting() for pool in self._dispatcher.pools)

    def nap(self) -> float:
        """Return the seconds until it is worth trying again what somebody held."""
        return self._deferral.nap()

    # One of them

    def _make(self, plan: ClaimPlan | None) -> int:
        exchange = self._begin(plan)
        if exchange is None:
            return 0
        exchange.make()
        return self._end(exchange)

    def _send(self, plan: Callable[[], ClaimPlan | None]) -> None:
        while self._batches_fill and self._free and (exchange := self._begin(plan())):
            exchange.send(self._free.pop())
            self._sent.append(exchange)

    def _receive(self) -> Exchange:
        oldest = self._sent.popleft()
        self._free.append(oldest.receive())
        return oldest

    def _begin(self, plan: ClaimPlan | None) -> Exchange | None:
        claims = [each for each in self._keeper.claims() if each.has_unwritten]
        if plan is None and not self._unanswered and (not claims or self.is_gathering()):
            return None
        unanswered, self._unanswered = self._unanswered, []
        return self._new(self._settler.settlements(claims), claims, plan, unanswered)

    def _new(
        self,
        settlements: list[Settlement],
        claims: list[Claim],
        plan: ClaimPlan | None = None,
        unanswered: Sequence[ClaimPlan] = (),
    ) -> Exchange:
        exchange = Exchange(self._using, settlements, claims, plan, list(unanswered))
        self._under_way.append(exchange)
        for claim in claims:
            claim.is_being_written = True
        self.tell_board()
        return exchange

    def tell_board(self) -> None:
        """Say what is held if this process dies now."""
        asked = [plan for each in self._under_way for plan in each.asked] + self._unanswered
        held = [each.lease_id for each in asked]
        suspects = [each.retaken_id for each in asked]
        for claim in self._keeper.claims():
            (suspects if claim.is_suspect else held).append(claim.lease_id)
        # Once each: suspects of one lease are a claim each, and the board's room is limited.
        self._board.hold(list(dict.fromkeys(held)), list(dict.fromkeys(suspects)))

    def _end(self, exchange: Exchange) -> int:
        """Note what was answered, and return how many messages it brought."""
        self._leave(exchange)
        error = exchange.error
        if error is None:
            return self._note(exchange)
        if waited_too_long(error):
            self._defer(exchange)
            return 0
        if is_unavailable(error) or self._is_first_stale(error):
            self._unanswered += exchange.asked
            for claim in exchange.claims:
                claim.is_in_doubt = True
            raise error
        self._take_apart(exchange, error)
        return 0

    def _defer(self, exchange: Exchange) -> None:
        # The leases it was to return may be what is held: they run out.
        self.finish()
        self._deferral.begin()
        if exchange.plan is not None:
            self._make(None)  # what nobody holds

    def _is_first_stale(self, error: Error | ResourceUnavailable) -> bool:
        """True once for a prepared statement that is stale: a new connection prepares it anew."""
        was_stale, self._was_stale = self._was_stale, has_stale_plan(error)
        return self._was_stale and not was_stale

    # Refusals: the parts of an exchange are made one by one, and what is written by halves

    def _take_apart(self, exchange: Exchange, error: Error | ResourceUnavailable) -> None:
        """Make the parts of a refused exchange apart, so that only the refused part is left."""
        plan, claims = exchange.plan, exchange.claims
        is_plan_alone = not claims and not exchange.unanswered
        is_all_written = self._return_leases(exchange.unanswered) and self._settle(claims)
        if plan is not None and (is_plan_alone or is_all_written):
            self._refuse_claim(plan, error)

    def _return_leases(self, unanswered: list[ClaimPlan]) -> bool:
        """Return leases whose claims were not answered; those that are refused run out."""
        exchange = self._new([], [], None, unanswered) if unanswered else None
        return exchange is None or self._made(exchange) is None

    def _settle(self, claims: list[Claim]) -> bool:
        """Settle each message of these claims; return whether all could be written."""
        singles = [apart for each in claims for apart in each.set_apart({*each.unwritten_ids()})]
        for claim in singles:
            self._keeper.watch(claim)
        for claim in claims:
            if claim.is_settled:
                self._keeper.forget(claim)
        refused: list[Claim] = []
        self._settle_halves(singles, refused)
        return not refused

    def _settle_halves(self, claims: list[Claim], refused: list[Claim]) -> None:
        self._board.turn()
        if not claims:
            return
        error = self._made(self._new(self._settler.settlements(claims), claims))
        if error is None:
            return
        if len(claims) == 1:
            refused.append(claims[0])
            self._refuse(claims[0], error)
            return
        middle = len(claims) // 2
        self._settle_halves(claims[:middle], refused)
        self._settle_halves(claims[middle:], refused)

    def _refuse(self, claim: Claim, error: Error) -> None:
        """Settle a refused message as failed; else only release it; else let its lease run out."""
        (envelope,) = claim.envelopes
        self._refusals.report(envelope, error)
        failure = WriteRefused(error)
        claim.done, claim.failures = [], [(envelope, failure)]
        for settlements in (
            self._settler.settlements([claim]),
            [self._settler.release_refused(claim, failure, storable(str(failure)))],
            [self._settler.release_refused(claim, failure, None)],
        ):
            if self._made(self._new(settlements, [claim])) is None:
                return
        self._keeper.forget(claim)

    def _made(self, exchange: Exchange) -> Error | None:
        """Make an exchange without a claim; return the refusal, if that is how it ended."""
        exchange.make()
        error = exchange.error
        if isinstance(error, Error) and not (is_unavailable(error) or waited_too_long(error)):
            self._leave(exchange)
            return error
        self._end(exchange)
        return None

    def _refuse_claim(self, plan: ClaimPlan, error: Error | ResourceUnavailable) -> None:
        if not self._dispatcher.put_aside(plan.consumer):
            self._outage.check_refusal(error)
            self._dispatcher.refuse(plan.consumer, error)

    def _leave(self, exchange: Exchange) -> None:
        self._under_way.remove(exchange)
        for claim in exchange.claims:
            claim.is_being_written = False
        if exchange.plan is not None:
            self._dispatcher.end_plan(exchange.plan)

    def _note(self, exchange: Exchange) -> int:
        self._ended_at = time.monotonic()
        self._was_stale = False
        if self._outage.is_on:
            self._outage.end()
        for settlement, rows in zip(exchange.settlements, exchange.answers, strict=False):
            settlement.note(rows)
        for claim in exchange.claims:
            claim.is_in_doubt = False
            if claim.is_settled:
                self._keeper.forget(claim)
        return 0 if exchange.plan is None else self._accept(exchange.plan, exchange.answers)

    def _accept(self, plan: ClaimPlan, answers: Answers) -> int:
        try:
            brought = self._dispatcher.accept(plan, answers)
        except FAILURES as error:
            # A queue with limits is claimed there. Other kinds of it may be leased already.
            self._unanswered.append(plan)
            if is_unavailable(error):
                raise
            self._refuse_claim(plan, error)
            return 0
        # A claim of a queue with limits is made alone.
        self._batches_fill = plan.consumer.walk is None and brought * 2 >= plan.consumer.limit
        return brought
