"""The dispatcher: plans what to claim, and starts what was claimed."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex

from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.logs import log
from delayed_queue.messages import Envelope
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.batch_runs import BatchRun
from delayed_queue.worker.engine.calls import Calls
from delayed_queue.worker.engine.claims import Claim
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.eventloop import EventLoop
from delayed_queue.worker.engine.executor import Executor, Pool, Work
from delayed_queue.worker.engine.leases import LeaseKeeper
from delayed_queue.worker.engine.plans import ClaimPlan
from delayed_queue.worker.engine.running import Load
from delayed_queue.worker.engine.scanning import IDLE, Poll
from delayed_queue.worker.engine.serving import Turns
from delayed_queue.worker.engine.transactions import TransactionalRun
from delayed_queue.worker.options import WorkerOptions


class Dispatcher:
    """The pools, what is in flight in them, and how much they have room for."""

    def __init__(
        self,
        options: WorkerOptions,
        turns: Turns,
        keeper: LeaseKeeper,
        wake_channel: WakeChannel,
        board: Board,
    ) -> None:
        self._options = options
        self._turns = turns
        self._keeper = keeper
        self._wake_channel = wake_channel
        self._board = board
        self._is_started = False
        self.executor = Executor(options.concurrency, wake_channel, board)
        self.pools: list[Pool] = [self.executor]
        self.calls = Calls(lambda call: self.pool_of(call).submit(call, [call.envelope]))
        self._loop: EventLoop | None = None
        if any(each.is_async or each.handler.treatment for each in turns.fixed):
            self._open_loop()
        self.runs_ended: deque[TransactionalRun] = deque()
        self._runs: set[TransactionalRun] = set()
        # Claims under way: the room for what they may bring is taken.
        self._plans: set[ClaimPlan] = set()
        self._suspects: deque[Work] = deque()
        # Transactional consumers that found suspects, and how many messages to take one by one.
        self._suspect_runs: deque[tuple[Consumer, int]] = deque()
        # Nothing else starts before this time, as a suspect is alone or waits to be.
        self._alone_until = 0.0
        # Messages claimed since the start, for --max-messages.
        self.claimed = 0
        # The start of its lease ids.
        self.holder = token_hex(4)
        board.set_holder(self.holder)

    def start_pools(self) -> None:
        self._is_started = True
        for pool in self.pools:
            pool.start()

    @contextmanager
    def sleeping(self) -> Iterator[None]:
        """Let the pools wake the worker while the block runs."""
        for pool in self.pools:
            pool.worker_sleeps()
        try:
            yield
        finally:
            for pool in self.pools:
                pool.worker_woke()

    def _open_loop(self) -> EventLoop:
        options = self._options
        loop = EventLoop(
            options.async_concurrency, self._wake_channel, self._board, options.concurrency
        )
        self._loop = loop
        self.pools.append(loop)
        if self._is_started:
            loop.start()
        return loop

    def pool_of(self, work: Consumer | Claim) -> Pool:
        return (self._loop or self._open_loop()) if work.is_async else self.executor

    @property
    def room_left(self) -> int:
        most = self._options.max_messages
        if most is None:
            return 2**31 - 1
        asked = sum(plan.poll.limit for plan in self._plans)
        return max(most - self.claimed - asked, 0)

    @property
    def in_flight(self) -> int:
        held = sum(claim.unhandled for claim in self._keeper.claims())
        return held + sum(run.poll.limit for run in self._runs)

    def load(self) -> Load:
        """Return what runs; may be called from another thread."""
        in_tasks = [] if self._loop is None else self._loop.running()
        return Load(self.executor.running(), in_tasks, len(self.executor.threads))

    @property
    def has_runs(self) -> bool:
        return bool(self._runs)

    # Claiming

    def plan(self) -> ClaimPlan | None:
        """Return the claim of the first consumer that may have something and has room.

        Transactional consumers before it get the threads they want.
        """
        if self._alone_until or self._board.is_drained:
            return None
        now = time.monotonic()
        load = self._load()
        for consumer in self._turns:
            is_due = consumer.is_declared and now >= consumer.schedule.next_at
            if not is_due or self._waits_for_plan(consumer):
                continue
            if consumer.handler.transactional:
                self._start_runs(consumer)
                continue
            limit = self._room(consumer, load)
            if limit > 0:
                self._turns.record(consumer)
                plan = ClaimPlan(consumer, limit, self.holder)
                self._plans.add(plan)
                return plan
        return None

    def end_plan(self, plan: ClaimPlan) -> None:
        """Free the room that was kept for a claim: it was made, or failed."""
        self._plans.discard(plan)

    def _waits_for_plan(self, consumer: Consumer) -> bool:
        """Return whether a claim is under way that must end before the consumer's next one."""
        is_alone = consumer.is_strict or consumer.walk is not None
        return is_alone and any(plan.consumer is consumer for plan in self._plans)

    def _load(self) -> Counter[Pool | Consumer]:
        """Return the number of messages in flight, by pool and by dynamic queue."""
        found: Counter[Pool | Consumer] = Counter({self.executor: len(self._runs)})
        for call in self.calls:
            found[self.pool_of(call)] += 1
        for claim in self._keeper.claims():
            if claim.payload_bytes is not None:  # in a call
                continue
            found[self.pool_of(claim)] += claim.unhandled
            if claim.consumer.is_dynamic:
                found[claim.consumer] += claim.unhandled
        for plan in self._plans:
            found[self.pool_of(plan.consumer)] += plan.load
            if plan.consumer.is_dynamic:
                found[plan.consumer] += plan.poll.limit
        return found

    def _room(self, consumer: Consumer, load: Counter[Pool | Consumer]) -> int:
        pool = self.pool_of(consumer)
        if consumer.handler.many:
            # One more call than the pool can start, if it will soon be able to.
            is_free = pool.room(2, load[pool], consumer.ahead_share) > 0
            after_crash = self._board.alone_seconds > 0
            room = self.calls.room(consumer, after_crash=after_crash)
            return min(room, self.room_left) if is_free else 0
        if consumer.is_dynamic:
            room = pool.share(consumer.limit, load[pool], load[consumer])
        else:
            room = pool.room(consumer.limit, load[pool], consumer.ahead_share)
        if consumer.walk is not None and consumer.is_rated:
            # A permit is for a message that starts now.
            room = min(room, max(pool.capacity - load[pool], 0))
        return min(room, self.room_left)

    def next_poll_at(self) -> float:
        """Return when the next consumer with room polls, or a suspect may start."""
        if self._alone_until:
            return self._alone_until if self._has_others() else 0.0
        if self.room_left == 0 or self._board.is_drained:
            return IDLE
        load = self._load()
        return min(
            (
                max(consumer.schedule.next_at, self.calls.begins_at(consumer))
                for consumer in self._turns.all
                if consumer.schedule.next_at != IDLE and self._may_poll(consumer, load)
            ),
            default=IDLE,
        )

    def _may_poll(self, consumer: Consumer, load: Counter[Pool | Consumer]) -> bool:
        if consumer.handler.transactional:
            return self._wants_run(consumer)
        return self._room(consumer, load) > 0

    def start(self, claims: Sequence[Claim]) -> None:
        """Hand claims to the pools; suspects may have to wait until they are alone."""
        for claim in claims:
            self._keeper.watch(claim)
            if claim.is_suspect:
                self._suspects.extend((claim, each) for each in claim.take_unspent())
        if self._suspects:
            self._isolate()
        for claim in claims:
            if not claim.is_suspect:
                self._start(claim)

    def _start(self, claim: Claim) -> None:
        if claim.consumer.handler.treatment and any(each.attempt > 1 for each in claim.envelopes):
            self._keeper.check({claim.lease_id})  # it may have become unwanted before
        ready = claim.take_unspent()
        if self._alone_until:
            self._leave((claim, each) for each in ready)
        elif claim.payload_bytes is not None and ready:
            self.calls.add(claim, ready)
        else:
            self.pool_of(claim).submit(claim, ready)

    def tend(self) -> None:
        """Start the next suspect, and release what was leased ahead of a stalled pool."""
        self._start_suspects()
        for pool in self.pools:
            if taken := pool.take_back_stalled():
                self._leave(taken)
                log(logging.INFO, "messages_given_back", count=len(taken))

    def _leave(self, taken: Iterable[Work]) -> None:
        """Release what was leased ahead and not started."""
        for claim, envelope in taken:
            if claim.is_suspect:  # after a release it would not be known as a suspect
                self.pool_of(claim).submit(claim, [envelope])
            else:
                self.claimed -= claim.leave(envelope)

    # Suspects: messages that may have killed a process

    def _isolate(self) -> None:
        """Start nothing else until the waiting suspects have started, each alone.

        If the process dies again, the message is identified. Until a process of this worker has
        died, suspects are like other messages.
        """
        if self._board.alone_seconds == 0:
            while self._suspects:
                self._start_suspect()
        elif not self._alone_until:
            self._alone_until = time.monotonic() + self._board.alone_seconds
            self.calls.leave_gathered()
            for pool in self.pools:
                self._leave(pool.take_back())

    def _start_suspects(self) -> None:
        """Start the next one if nothing else is in flight, or after the maximum wait.

        A message that takes hours delays neither a suspect nor the others for longer.
        """
        now = time.monotonic()
        if not self._alone_until or (self._has_others() and now < self._alone_until):
            return
        self._alone_until = now + self._board.alone_seconds
        if self._suspects:
            self._start_suspect()
        elif self._suspect_runs and self.room_left:
            consumer, count = self._suspect_runs.popleft()
            self._start_run(
                consumer, consumer.schedule.begin(min(count, self.room_left)), is_alone=True
            )
        else:
            self._suspect_runs.clear()
            self._alone_until = 0.0

    def _start_suspect(self) -> None:
        claim, envelope = self._suspects.popleft()
        self.pool_of(claim).submit(claim, [envelope])

    def _has_others(self) -> bool:
        """Return whether anything but the waiting suspects is in flight or not yet settled."""
        return bool(self._runs) or len(self._keeper.claims()) > len(self._suspects)

    # Transactional consumers

    def _start_runs(self, consumer: Consumer) -> None:
        if self.calls.lingers(consumer):
            return
        while self._wants_run(consumer) and self.room_left:
            limit = min(consumer.limit, self.room_left)
            if not consumer.handler.many:
                limit = min(limit, consumer.transactions.batch_size)
            self._start_run(consumer, consumer.schedule.begin(limit))
            self._turns.record(consumer)

    def _start_run(self, consumer: Consumer, poll: Poll, *, is_alone: bool = False) -> None:
        make = BatchRun if consumer.handler.many else TransactionalRun
        run = make(
            consumer, poll, self.runs_ended, self._wake_channel, self._board,
            worker=self._options.worker_id, goes_on=self._options.max_messages is None,
            is_alone=is_alone,
        )  # fmt: skip
        consumer.transactions.begin()
        self.claimed += poll.limit
        self._runs.add(run)
        self.executor.submit_run(run)

    def _wants_run(self, consumer: Consumer) -> bool:
        # At most one per thread: a waiting run would delay a later one of higher priority.
        load = consumer.transactions
        return load.running < load.wanted and len(self._runs) < self._options.concurrency

    def end_run(self, run: TransactionalRun) -> None:
        """Record what a run found, and whether its consumer is worth another thread."""
        consumer = run.consumer
        self._runs.discard(run)
        consumer.transactions.end(run.total, run.seconds)
        self.claimed += run.total - run.poll.limit
        if run.suspects:
            self._suspect_runs.append((consumer, run.suspects))
            self._isolate()
        if run.suspects or run.is_alone or run.met_conflict:
            consumer.schedule.wake()  # the run has read only part of the queue
        else:
            consumer.end_poll(run.poll, run.result)

    def end_calls(self) -> None:
        """Settle the calls of batch handlers that have ended, or start their halves."""
        self.calls.tend(is_alone=bool(self._alone_until))

    def cancel(self, envelopes: list[Envelope]) -> None:
        """Cancel the coroutines that handle these messages."""
        if self._loop is not None and envelopes:
            self._loop.cancel([*envelopes, *self.calls.cancel()])

    # Stopping

    def take_back(self) -> list[Work]:
        """Remove and return what was not started."""
        self.calls.stop()
        taken = [*self._suspects]
        self._suspects.clear()
        for pool in self.pools:
            taken.extend(pool.take_back())
        self.executor.cancel_runs()
        return taken

    def stop(self, seconds: float) -> None:
        for pool in self.pools:
            pool.stop(seconds)
