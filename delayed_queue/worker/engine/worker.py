"""The worker: one process's claim loop."""

from __future__ import annotations

import logging
import random
import select
import time
from collections import Counter, defaultdict
from datetime import timedelta
from functools import partial
from typing import Final

from django.db import Error, connections

from delayed_queue.conf import get_settings
from delayed_queue.cron.keeper import CronKeeper, CronThread
from delayed_queue.db.own import using_own_connection
from delayed_queue.db.resilience import is_unavailable, write_by_halves
from delayed_queue.db.wakeups import Listener, StopSignal, WakeChannel
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.handlers import Registry, judge, registry
from delayed_queue.logs import described, log
from delayed_queue.messages import Envelope
from delayed_queue.observe import signals
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.claims import Claim, ClaimPlan, LeaseKeeper
from delayed_queue.worker.engine.consumers import Consumer, slowest_scan
from delayed_queue.worker.engine.database import Outage, check_schema
from delayed_queue.worker.engine.dispatcher import Dispatcher
from delayed_queue.worker.engine.exchanges import Exchanges
from delayed_queue.worker.engine.executor import GATHER_SECONDS
from delayed_queue.worker.engine.heartbeat import Heartbeat, Snapshot
from delayed_queue.worker.engine.refusals import Refusals
from delayed_queue.worker.engine.serving import (
    DynamicQueues,
    consumers_of,
    declare_groups,
    shortest_lease,
)
from delayed_queue.worker.engine.settling import Counts, Settler
from delayed_queue.worker.engine.transactions import TransactionalRun
from delayed_queue.worker.options import WorkerOptions

# How often a worker that never sleeps asks for notifications, which are for its other queues.
HEARING_SECONDS: Final = 0.05


class Worker:
    """One process's worth of claiming and handling; ``run()`` returns when it was stopped.

    The thread that runs it owns the database side: in each turn one round trip that writes
    what was handled since the last and leases what there is room for. Handlers run in the
    pools: threads, and an event loop for those that are ``async def``. ``stop()`` may be called
    from a signal handler or another thread.
    """

    def __init__(
        self,
        options: WorkerOptions,
        handlers: Registry = registry,
        board: Board | None = None,
        process: int = 0,
    ) -> None:
        self.options = options
        self.counts = Counts()
        self.board = board or Board.new(options.slots)
        self._stop = StopSignal()
        self._wake_channel = WakeChannel()
        consumers = consumers_of(options, handlers)
        self.dynamic = DynamicQueues(
            options, handlers, [consumer.queue.kind for consumer in consumers]
        )
        self._refusals = Refusals(self)
        self._keeper = LeaseKeeper(
            options.using,
            shortest_lease(consumers),
            cancel=lambda some: self.dispatcher.cancel(some),
            refused=self._refusals.report,
        )
        self.dispatcher = Dispatcher(
            self, options, consumers, self.dynamic, self._keeper, self._wake_channel, self.board,
            self._refusals,
        )  # fmt: skip
        self._settler = Settler(self, self.counts)
        self._cron = CronThread(CronKeeper(options.using), options.using)
        self._process = process
        self._heartbeat = Heartbeat(options.using, self.describe)
        self._heard_at = 0.0
        self._busy_at = 0.0
        self._stuck = 0
        self._outage = Outage(options.using, is_finite=options.burst)
        self._exchanges = Exchanges(
            options, self.dispatcher, self._keeper, self._settler, self._outage, self.board,
            self._refusals,
        )  # fmt: skip

    def __str__(self) -> str:
        return self.options.worker_id

    @property
    def consumers(self) -> list[Consumer]:
        return self.dispatcher.all_consumers

    @property
    def queues(self) -> list[str]:
        return list(dict.fromkeys(consumer.queue.name for consumer in self.consumers))

    @property
    def serves(self) -> list[str]:
        """What there is to say of it before it has asked its sources."""
        return [*self.queues, *(f"the {name}" for name in self.dynamic.names)]

    @property
    def is_used_up(self) -> bool:
        """Whether as many threads are stuck in handlers as the process was to have."""
        return self._stuck >= self.options.concurrency

    @property
    def in_flight(self) -> int:
        return self.dispatcher.in_flight

    def describe(self) -> Snapshot:
        """Return what an operator is shown; may be asked from another thread."""
        counts = self.counts
        done: Counter[str] = Counter()
        for consumer in self.consumers:
            done[consumer.queue.name] += consumer.tally.done
        return Snapshot(
            name=str(self),
            process=self._process,
            holder=self.dispatcher.holder,
            queues=self.queues,
            in_flight=self.in_flight,
            done=counts.done,
            failed=counts.failed,
            dead=counts.dead,
            lost=counts.lost,
            done_by_queue=done,
            tallies=[consumer.tally for consumer in self.consumers],
            lease_ids=list(dict.fromkeys(each.lease_id for each in self._keeper.claims())),
            scan=slowest_scan(self.consumers),
            refused=self._refusals.shown(),
        )

    def stop(self) -> None:
        """Claim no more; finish what is in flight, within the shutdown timeout."""
        self._stop.set()

    def run(self) -> Counts:
        """Work until stopped, drained (burst), or done with max_messages."""
        with using_own_connection(self.options.using):
            self._run()
        return self.counts

    def _run(self) -> None:
        try:
            self._exchanges.start()
            self.dispatcher.start()
            self._keeper.start()
            self._heartbeat.start()
            if self.options.cron and not self.options.burst:
                self._cron.start()
            signals.announce(signals.worker_started, self)
            self._loop()
        finally:
            self._wind_down()
            signals.announce(signals.worker_stopped, self)

    def _loop(self) -> None:
        # An outage must not end the worker: each turn of this loop is one reconnection.
        while not self._is_over():
            try:
                if self._outage.is_at_start:
                    self._check_schema()
                with Listener(self._kinds(), self.options.using, hears_leases=True) as listener:
                    # Of leases that were ended before it listens, nobody tells it any more.
                    self._keeper.check(listener.touched_leases())
                    self.dispatcher.note_overdue()
                    while not self._is_over():
                        self._turn(listener)
            except (Error, ResourceUnavailable) as error:
                self._sit_out(error)

    def _check_schema(self) -> None:
        if differences := check_schema(self.options.using):
            log(logging.WARNING, "schema_differs", **differences)

    def _declare_groups(self) -> None:
        """Write the limits of queues before their first claim; a refusal holds up its queue."""
        for consumer in self.dispatcher.consumers:
            if not consumer.is_declared and time.monotonic() >= consumer.schedule.next_at:
                try:
                    declare_groups(consumer)
                except Error as error:
                    self._note_error(consumer, error)

    def _kinds(self) -> list[str]:
        return [*self.dynamic.wake_channels, *(consumer.queue.kind for consumer in self.consumers)]

    def _tend_dynamic(self, listener: Listener) -> None:
        """Take on consumers that came, let go of those that went, and scan for the idle ones."""
        if self.dynamic.ask():
            listener.listen_to(self._kinds())
            self._keeper.shorten(shortest_lease(self.consumers))
        self.dynamic.idle_scan()

    def _sit_out(self, error: Exception) -> None:
        self.board.turn()
        self._outage.note(error)
        connections[self.options.using].close()
        self._wake_consumers()  # what was announced meanwhile, nobody heard
        select.select([self._stop], [], [], random.uniform(0.1, 1.0))  # noqa: S311 # one by one

    def _turn(self, listener: Listener) -> None:
        self.board.turn()
        self._count()
        self._give_up_late_ones()
        self._note_runs()
        self._declare_groups()
        self.dispatcher.tend()
        if self.dynamic.sources and not self._stop.is_set():
            self._tend_dynamic(listener)
        goes_on = self._exchanges.turn(self._plan)
        now = time.monotonic()
        if now - self._heard_at > HEARING_SECONDS:
            self._heard_at = now
            if listener.heard():
                self._hear(listener)
        if not goes_on and not self._is_over():
            self._sleep(listener)

    def _count(self) -> None:
        self.board.count((*self.counts.numbers, self.in_flight))

    def _give_up_late_ones(self) -> None:
        self._stuck = self.dispatcher.executor.give_up_late_ones()
        self.board.set_strays(max(self._stuck, 0))
        if self.is_used_up and not self._stop.is_set():
            log(logging.ERROR, "threads_stuck", worker=self, threads=self._stuck)
            self.stop()

    def _plan(self) -> ClaimPlan | None:
        return None if self._stop.is_set() else self.dispatcher.plan()

    def _is_over(self) -> bool:
        if self._stop.is_set():
            return True
        if self.dispatcher.room_left == 0:
            return not self._has_work()
        return self.options.burst and self._is_drained()

    def _is_drained(self) -> bool:
        now = time.monotonic()
        if self._keeper.claims():
            self._busy_at = now
        is_quiet = now < self.dynamic.next_at and all(
            now < consumer.schedule.next_at for consumer in self.consumers
        )
        return is_quiet and not self._has_work() and not self._scans_again()

    def _scans_again(self) -> bool:
        """Have every queue scanned from its start, unless that was since the last work ended.

        What committed late, or was locked meanwhile, may lie below where polls begin.
        """
        asked = [consumer.schedule.scan_fully(self._busy_at) for consumer in self.consumers]
        return self.dynamic.scan_fully(self._busy_at) or any(asked)

    def _has_work(self) -> bool:
        has_claims = bool(self._keeper.claims()) or self.dispatcher.has_runs
        return has_claims or self._exchanges.has_work

    # Transactions

    def _note_runs(self) -> None:
        """Count what the transactions did that ended."""
        while self.dispatcher.runs_ended:
            self._note_run(self.dispatcher.runs_ended.popleft())

    def _note_run(self, run: TransactionalRun) -> None:
        self.dispatcher.end_run(run)
        self._settler.count_done(run.consumer, run.done)
        if run.done or run.failures:
            self._busy_at = time.monotonic()
        run.note_times()
        for envelope, refusal in run.refused:
            self._refusals.report(envelope, refusal)
        for envelope, error in run.failures:
            verdict = judge(error, envelope.attempt, run.consumer.policy)
            self._settler.count_failure(run.consumer, envelope, error, verdict)
        if run.error is not None:
            self._note_error(run.consumer, run.error)

    def _note_error(self, consumer: Consumer, error: Exception) -> None:
        """Leave a queue alone whose claim is refused; raise anything else."""
        if not isinstance(error, Error) or is_unavailable(error):
            raise error
        if not self.dispatcher.put_aside(consumer):
            self._outage.check_refusal(error)
            self.dispatcher.refuse(consumer, error)

    # Sleeping and stopping

    def _sleep(self, listener: Listener) -> None:
        """Sleep until a handler ends, a message may be due, or the worker is stopped."""
        pools = self.dispatcher.pools
        for pool in pools:
            pool.worker_sleeps()
        try:
            nap = self._nap()
            if nap > 0 and listener.wait(nap, self._stop, self._wake_channel):
                self._hear(listener)
            self._wake_channel.clear()
        finally:
            for pool in pools:
                pool.worker_woke()

    def _nap(self) -> float:
        if self.dispatcher.runs_ended:
            return 0
        if any(claim.has_unwritten for claim in self._keeper.claims()):
            return GATHER_SECONDS if self._exchanges.is_gathering() else 0
        if self.dispatcher.executor.rouse_if_stalled():
            return GATHER_SECONDS
        return max(min(self._naps()), 0)

    def _naps(self) -> list[float]:
        now = time.monotonic()
        timeouts = {claim.timeout for claim in self._keeper.claims()}
        return [
            *(min(each / 4, 1.0) for each in timeouts if each is not None),
            self.options.poll_interval.total_seconds(),
            get_settings().WATCHDOG.total_seconds() / 4,
            self._exchanges.nap(),
            *(pool.nap() for pool in self.dispatcher.pools),
            self.dispatcher.next_poll_at() - now,
            *([self.dynamic.next_at - now] if self.dynamic.sources else ()),
        ]

    def _hear(self, listener: Listener) -> None:
        self._wake_consumers(listener.announced())
        self._keeper.check(listener.touched_leases())

    def _wake_consumers(self, kinds: set[str] | None = None) -> None:
        for consumer in self.dispatcher.consumers:
            if kinds is None or consumer.queue.kind in kinds:
                consumer.schedule.wake()
        if self.dynamic.sources:
            self.dynamic.wake(kinds)

    def _wind_down(self) -> None:
        """Give back what was not started, finish what was, give back what does not finish.

        An orderly stop uses up no attempt (W15), so all of it is given back uncounted.
        """
        self._cron.stop()
        try:
            self._exchanges.finish()
            self._give_back_unstarted()
            if self._has_work():
                self._finish(self.options.shutdown_timeout)
            for claim in self._keeper.claims():
                self._give_back(claim, list(claim.in_flight()))
        except (Error, ResourceUnavailable) as error:
            # Nothing is lost: the leases run out.
            log(logging.WARNING, "shutdown_incomplete", error=described(error))
        finally:
            self._keeper.stop()
            self._heartbeat.stop()
            self.dispatcher.stop(1.0 if not self._has_work() else 0.0)
            self._exchanges.tell_board()
            self._exchanges.close()
            self._count()
            connections[self.options.using].close()

    def _give_back_unstarted(self) -> None:
        by_claim: dict[Claim, list[Envelope]] = defaultdict(list)
        for claim, envelope in self.dispatcher.take_back():
            by_claim[claim].append(envelope)
        for claim, envelopes in by_claim.items():
            self._give_back(claim, envelopes)

    def _finish(self, timeout: timedelta) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        with Listener([], self.options.using) as listener:
            while True:
                self.board.turn()
                self._give_up_late_ones()
                self._note_runs()
                self._exchanges.settle()
                left = deadline - time.monotonic()
                if not self._has_work() or left <= 0:
                    return
                self._await_results(listener, min(left, 1.0))

    def _await_results(self, listener: Listener, seconds: float) -> None:
        for pool in self.dispatcher.pools:
            pool.worker_sleeps()
        if not any(claim.has_unwritten for claim in self._keeper.claims()):
            listener.wait(seconds, self._wake_channel)
        self._wake_channel.clear()

    def _give_back(self, claim: Claim, envelopes: list[Envelope]) -> None:
        """Release leases, uncounted, so that others take the messages at once."""
        ids = [each.message_id for each in envelopes]
        claim.remove(envelopes)
        if claim.is_settled:
            self._keeper.forget(claim)
        release = partial(claim.consumer.queue._release_unacknowledged, claim.lease_id, refund=1)
        if ids:
            write_by_halves(ids, release, self._keep_lease)

    def _keep_lease(self, message_id: int, error: Error) -> None:
        """Leave a message that cannot be released to the end of its lease."""
        log(logging.WARNING, "release_refused", id=message_id, error=described(error))
