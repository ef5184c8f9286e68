"""The claim loop: settles what was handled, claims, and starts what was leased."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.db import Error

from delayed_queue.db.own import own_connection
from delayed_queue.db.resilience import has_stale_plan, is_unavailable, waited_too_long
from delayed_queue.db.wakeups import StopSignal, WakeChannel
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.handlers import Registry, judge, storable
from delayed_queue.logs import described, log, log_poll, logger
from delayed_queue.observe import signals
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.claims import Claim
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.database import Outage
from delayed_queue.worker.engine.dispatcher import Dispatcher
from delayed_queue.worker.engine.exchange import FAILURES, Exchange
from delayed_queue.worker.engine.executor import GATHER_SECONDS
from delayed_queue.worker.engine.leases import LeaseKeeper
from delayed_queue.worker.engine.plans import ClaimPlan
from delayed_queue.worker.engine.refusals import CLAIM_PAUSE, Refusals, WriteRefused, put_aside
from delayed_queue.worker.engine.serving import Turns, declare_groups
from delayed_queue.worker.engine.settling import Counts, LockDeferral, Settlement, Settler
from delayed_queue.worker.engine.transactions import TransactionalRun
from delayed_queue.worker.options import WorkerOptions

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class ClaimLoop:
    """The claim loop of a worker: ``tick()`` is one iteration.

    With one exchange at a time, the process and its database session take turns: one computes
    while the other waits. While batches fill, there are two: one is under way while the replies to
    the other are applied. Each of the two has a connection that is used for nothing else. No two
    write about the same claim. All of this happens in the worker's thread.
    """

    def __init__(
        self, worker: Any, options: WorkerOptions, handlers: Registry, board: Board
    ) -> None:
        self._worker = worker
        self._options = options
        self._board = board
        self.counts = Counts()
        self.stop = StopSignal()
        self.wake_channel = WakeChannel()
        self.outage = Outage(options.using, is_finite=options.burst)
        self.refusals = Refusals(worker)
        self.turns = Turns(options, handlers)
        self.keeper = LeaseKeeper(
            options.using,
            self.turns.shortest_lease,
            cancel=lambda some: self.dispatcher.cancel(some),
            refused=self.refusals.report,
        )
        self.dispatcher = Dispatcher(options, self.turns, self.keeper, self.wake_channel, board)
        self._settler = Settler(worker, self.counts)
        self._deferral = LockDeferral(options.using, self.keeper)
        # Connections for two exchanges at a time, as far as nothing is sent on them.
        self._free: list[BaseDatabaseWrapper] = []
        self._sent: deque[Exchange] = deque()
        self._under_way: list[Exchange] = []
        # Claims whose replies never came.
        self._unanswered: list[ClaimPlan] = []
        self._are_batches_full = self._was_stale = False
        self._replied_at = 0.0
        # When the last message is known to have been in flight.
        self._busy_at = 0.0

    def start(self) -> None:
        """Start the pools and the keeper, in the thread that will call ``tick()``."""
        if self._options.most_claims > 1:  # they connect when they are used
            self._free = [
                own_connection(self._options.using) for _ in range(self._options.most_claims)
            ]
        self.dispatcher.start_pools()
        self.keeper.start()

    @property
    def has_work(self) -> bool:
        """True while messages are in flight, or exchanges or releases are outstanding."""
        return bool(
            self.keeper.claims() or self.dispatcher.has_runs or self._under_way or self._unanswered
        )

    @property
    def has_results(self) -> bool:
        """True if something was handled that is not settled."""
        calls = self.dispatcher.calls
        return calls.has_ended or any(each.has_unwritten for each in self.keeper.claims())

    def tick(self) -> bool:
        """Settle what was handled, claim, and start what was leased: one round trip.

        Returns whether the next iteration should follow at once.
        """
        self._board.turn()
        self._end_runs()
        self.dispatcher.end_calls()
        if not self.stop.is_set():
            self._declare_groups()
            self.dispatcher.tend()
        self._deferral.retry()
        self._send()
        if not self._sent:
            return False
        exchange = self._receive()
        if self._is_double and not self.stop.is_set():
            self._send()  # the server works while the replies are applied
        return self._apply(exchange) or bool(self._sent)

    def settle(self) -> None:
        """Write all results, except those of locked messages."""
        while any(claim.has_unwritten for claim in self.keeper.claims()):
            self.tick()

    def finish(self) -> None:
        """Wait for what was sent; the next exchange makes up for what has failed."""
        while self._sent:
            with suppress(*FAILURES):
                self._apply(self._receive())

    def close(self) -> None:
        self.tell_board()
        for connection in self._free:
            connection.close()

    def is_gathering(self) -> bool:
        """Return whether more results will come soon that can be written together."""
        is_recent = time.monotonic() - self._replied_at < GATHER_SECONDS
        return is_recent and any(pool.waiting() for pool in self.dispatcher.pools)

    def is_drained(self) -> bool:
        """Return whether nothing is left, as a full scan since the last message has shown."""
        now = time.monotonic()
        if self.keeper.claims():
            self._busy_at = now
        is_quiet = self.turns.next_at > now and not self.has_work
        return is_quiet and not self.turns.scan_fully(self._busy_at)

    def nap(self) -> float:
        """Return the seconds until there is something to do, if nothing else happens."""
        claims = self.keeper.claims()
        if self.dispatcher.runs_ended:
            return 0
        if self.has_results:
            return GATHER_SECONDS if self.is_gathering() else 0
        if self.dispatcher.executor.rouse_if_stalled():
            return GATHER_SECONDS
        now, timeouts = time.monotonic(), {claim.timeout for claim in claims}
        return min(
            *(min(each / 4, 1.0) for each in timeouts if each is not None),
            *(pool.nap() for pool in self.dispatcher.pools),
            self._deferral.nap(),
            self.dispatcher.calls.nap(),
            self.dispatcher.next_poll_at() - now,
            self.turns.dynamic.next_at - now,
        )

    # One exchange

    @property
    def _is_double(self) -> bool:
        return self._are_batches_full and self._options.most_claims > 1

    def _send(self) -> None:
        """Send exchanges while there is work and a free connection."""
        while self._free if self._is_double else not self._sent:
            exchange = self._next_exchange()
            if exchange is None:
                return
            if self._is_double:
                exchange.send(self._free.pop())
            self._sent.append(exchange)

    def _next_exchange(self) -> Exchange | None:
        plan = None if self.stop.is_set() else self.dispatcher.plan()
        claims = [each for each in self.keeper.claims() if each.has_unwritten]
        if plan is None and not self._unanswered and (not claims or self.is_gathering()):
            return None
        unanswered, self._unanswered = self._unanswered, []
        return self._exchange(self._settler.settlements(claims), claims, plan, unanswered)

    def _exchange(
        self,
        settlements: list[Settlement],
        claims: list[Claim],
        plan: ClaimPlan | None = None,
        unanswered: Sequence[ClaimPlan] = (),
    ) -> Exchange:
        exchange = Exchange(self._options.using, settlements, claims, plan, unanswered)
        self._under_way.append(exchange)
        for claim in claims:
            claim.is_being_written = True
        self.tell_board()
        return exchange

    def tell_board(self) -> None:
        """Record what is held if this process dies now."""
        plans = [plan for each in self._under_way for plan in each.claimed] + self._unanswered
        suspects = [each.retaken_id for each in plans]
        held: list[str] = []
        # A batch that dies with its process is called one by one, like suspects. It may die as soon
        # as its claim is answered.
        for plan in plans:
            (suspects if plan.consumer.handler.many else held).append(plan.lease_id)
        for claim in self.keeper.claims():
            is_suspect = claim.is_suspect or claim.payload_bytes is not None
            (suspects if is_suspect else held).append(claim.lease_id)
        # Once each: suspects of one lease are a claim each, and the board's room is limited.
        self._board.hold(list(dict.fromkeys(held)), list(dict.fromkeys(suspects)))

    def _receive(self) -> Exchange:
        exchange = self._sent.popleft()
        exchange.receive()
        if exchange.connection is not None:
            self._free.append(exchange.connection)
        return exchange

    def _apply(self, exchange: Exchange) -> bool:
        """Count what was settled and start what was leased; return whether anything was."""
        self._leave(exchange)
        plan, error = exchange.plan, exchange.error
        if error is None:
            self._note_settled(exchange)
            return plan is not None and self._start(plan, exchange)
        if waited_too_long(error):
            self._defer(exchange)
        elif is_unavailable(error) or self._is_first_stale(error):
            self._unanswered += exchange.claimed
            for claim in exchange.claims:
                claim.is_in_doubt = True
            raise error
        else:
            self._take_apart(exchange, error)
        return False

    def _leave(self, exchange: Exchange) -> None:
        self._under_way.remove(exchange)
        for claim in exchange.claims:
            claim.is_being_written = False
        if exchange.plan is not None:
            self.dispatcher.end_plan(exchange.plan)

    def _note_settled(self, exchange: Exchange) -> None:
        self._replied_at = time.monotonic()
        self._was_stale = False
        self.outage.end()
        for settlement in exchange.settlements:
            settlement.note(exchange.replies[settlement])
        for claim in exchange.claims:
            claim.is_in_doubt = False
            if claim.is_settled:
                self.keeper.forget(claim)

    def _start(self, plan: ClaimPlan, exchange: Exchange) -> bool:
        """Start what a claim has leased; return whether it was anything."""
        try:
            rows = plan.finish(exchange.replies)
            if logger.isEnabledFor(logging.DEBUG):
                log_poll(plan.consumer.queue.name, [row.key for row in rows])
            self.dispatcher.claimed += len(rows)
            claims = plan.open(rows)
            if claims and signals.leased.has_listeners():
                envelopes = [each for claim in claims for each in claim.envelopes]
                signals.announce(signals.leased, self._worker, envelopes=envelopes)
            self.dispatcher.start(claims)
        except FAILURES as error:
            # Claims of queues with limits are made here, and other kinds may be leased already.
            self._unanswered.append(plan)
            self._refuse_claim(plan.consumer, error)
            return False
        # The claim of a queue with limits is made alone.
        is_full = len(rows) * 2 >= plan.consumer.limit
        self._are_batches_full = plan.consumer.walk is None and is_full
        return bool(rows)

    # Refusals: the parts of an exchange are made one by one, and what is written by halves

    def _defer(self, exchange: Exchange) -> None:
        # The leases it was to return may be locked themselves: they run out.
        self.finish()
        self._deferral.defer()
        claims = [each for each in self.keeper.claims() if each.has_unwritten]
        if exchange.plan is not None and claims:
            rest = self._exchange(self._settler.settlements(claims), claims)
            rest.receive()
            self._apply(rest)

    def _is_first_stale(self, error: Error | ResourceUnavailable) -> bool:
        """True once for a prepared statement that is stale: a new connection prepares it anew."""
        was_stale, self._was_stale = self._was_stale, has_stale_plan(error)
        return self._was_stale and not was_stale

    def _take_apart(self, exchange: Exchange, error: Error | ResourceUnavailable) -> None:
        """Make the parts of a refused exchange apart, so that only the refused part is left."""
        is_plan_alone = not exchange.claims and not exchange.unanswered
        is_all_written = self._return_leases(exchange.unanswered) and self._settle(exchange.claims)
        if exchange.plan is not None and (is_plan_alone or is_all_written):
            self._refuse_claim(exchange.plan.consumer, error)

    def _return_leases(self, unanswered: Sequence[ClaimPlan]) -> bool:
        """Return leases whose claims were not answered; those that are refused run out."""
        exchange = self._exchange([], [], None, unanswered) if unanswered else None
        return exchange is None or self._refusal_of(exchange) is None

    def _settle(self, claims: Sequence[Claim]) -> bool:
        """Settle each message of these claims; return whether all could be written."""
        singles = [apart for each in claims for apart in each.set_apart({*each.unwritten_ids()})]
        for claim in singles:
            self.keeper.watch(claim)
        for claim in claims:
            if claim.is_settled:
                self.keeper.forget(claim)
        return self._settle_halves(singles)

    def _settle_halves(self, claims: list[Claim]) -> bool:
        self._board.turn()
        if not claims:
            return True
        error = self._refusal_of(self._exchange(self._settler.settlements(claims), claims))
        if error is None:
            return True
        if len(claims) == 1 and claims[0].ticks is not None:
            # Rather lose the record of a run than run it again.
            claims[0].ticks = None
            log(logging.WARNING, "run_not_recorded", error=described(error))
            self._settle_halves(claims)
            return False
        if len(claims) == 1:
            self._refuse(claims[0], error)
            return False
        middle = len(claims) // 2
        is_first_written = self._settle_halves(claims[:middle])
        return self._settle_halves(claims[middle:]) and is_first_written

    def _refuse(self, claim: Claim, error: Error) -> None:
        """Settle a refused message as failed; else only release it; else let its lease run out."""
        (envelope,) = claim.envelopes
        self.refusals.report(envelope, error)
        failure = WriteRefused(error)
        claim.done, claim.failures = [], [(envelope, failure)]
        for settlements in (
            self._settler.settlements([claim]),
            [self._settler.release_refused(claim, failure, storable(str(failure)))],
            [self._settler.release_refused(claim, failure, None)],
        ):
            if self._refusal_of(self._exchange(settlements, [claim])) is None:
                return
        self.keeper.forget(claim)

    def _refusal_of(self, exchange: Exchange) -> Error | None:
        """Make an exchange without a claim; return the refusal, if that is how it ended."""
        exchange.receive()
        error = exchange.error
        if isinstance(error, Error) and not (is_unavailable(error) or waited_too_long(error)):
            self._leave(exchange)
            return error
        self._apply(exchange)
        return None

    def _refuse_claim(self, consumer: Consumer, error: Exception) -> None:
        """Leave a queue alone whose claim is refused; raise anything else.

        If single messages are the reason, these are moved instead.
        """
        if not isinstance(error, Error) or is_unavailable(error):
            raise error
        treatment, queue = consumer.handler.treatment, consumer.queue
        kinds = [queue.kind] if treatment is None else [queue.kind, *treatment.kinds()]
        wait = max([*consumer.policy.delays[:1], CLAIM_PAUSE])
        moved = put_aside(kinds, wait, queue.using)
        for key, place, refusal in moved:
            self.refusals.report_claim(queue.name, refusal, key=key, moved_to=place)
        if moved:
            consumer.rewind()
            return
        self.outage.check_refusal(error)
        self.refusals.report_claim(queue.name, error)
        consumer.schedule.rest(CLAIM_PAUSE.total_seconds())

    # Limits and transactions

    def _declare_groups(self) -> None:
        """Write the limits of queues before their first claim."""
        for consumer in self.turns.fixed:
            if not consumer.is_declared and time.monotonic() >= consumer.schedule.next_at:
                try:
                    declare_groups(consumer)
                except Error as error:
                    self._refuse_claim(consumer, error)

    def _end_runs(self) -> None:
        while self.dispatcher.runs_ended:
            self._end_run(self.dispatcher.runs_ended.popleft())

    def _end_run(self, run: TransactionalRun) -> None:
        """Count what a transaction did."""
        self.dispatcher.end_run(run)
        expired = [each for each in run.done if each.message_id in run.expired]
        self._settler.count_expired(run.consumer, expired)
        done = [each for each in run.done if each.message_id not in run.expired]
        self._settler.count_done(run.consumer, done)
        if run.done or run.failures:
            self._busy_at = time.monotonic()
        run.note_times()
        run.record_failures()
        for envelope, refusal in run.refused:
            self.refusals.report(envelope, refusal)
        for envelope, error in run.failures:
            verdict = judge(error, envelope.attempt, run.consumer.policy)
            self._settler.count_failure(run.consumer, envelope, error, verdict)
        if run.error is not None:
            self._refuse_claim(run.consumer, run.error)
