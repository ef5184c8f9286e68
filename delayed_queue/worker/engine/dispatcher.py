"""The dispatcher: decides what to claim, and hands what was claimed to the pools."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from secrets import token_hex
from typing import Any

from delayed_queue.db.clock import database_now
from delayed_queue.db.sql import Row
from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.handlers import attempts_used_up
from delayed_queue.logs import log, log_poll, logger
from delayed_queue.messages import MILLISECOND, Envelope, to_milliseconds
from delayed_queue.observe import signals
from delayed_queue.queue.models import Message
from delayed_queue.queue.store.claim import NO_FLOOR, LeasedRow, RankedRow
from delayed_queue.worker.board import Board
from delayed_queue.worker.engine.claims import Claim, ClaimPlan, LeaseKeeper
from delayed_queue.worker.engine.consumers import IDLE, Consumer, Poll, PollResult
from delayed_queue.worker.engine.eventloop import EventLoop
from delayed_queue.worker.engine.executor import Executor, Pool, Work
from delayed_queue.worker.engine.refusals import CLAIM_PAUSE, Refusals, put_aside
from delayed_queue.worker.engine.serving import DynamicQueues
from delayed_queue.worker.engine.transactions import TransactionalRun
from delayed_queue.worker.options import WorkerOptions


class Dispatcher:
    """Knows the consumers and whose turn it is, the pools, and how much there is room for."""

    def __init__(
        self,
        sender: Any,
        options: WorkerOptions,
        consumers: list[Consumer],
        dynamic: DynamicQueues,
        keeper: LeaseKeeper,
        wake_channel: WakeChannel,
        board: Board,
        refusals: Refusals,
    ) -> None:
        self._sender = sender
        self._refusals = refusals
        self._options = options
        self._keeper = keeper
        self._wake_channel = wake_channel
        self._board = board
        self.consumers = consumers
        self.dynamic = dynamic
        self._is_dynamic_turn = False
        self._is_started = False
        self.executor = Executor(options.concurrency, wake_channel, board)
        self.pools: list[Pool] = [self.executor]
        self._loop: EventLoop | None = None
        if any(each.is_async or each.handler.treatment for each in consumers):
            self._open_loop()
        self.runs_ended: deque[TransactionalRun] = deque()
        self._runs: set[TransactionalRun] = set()
        # Claims that are being made: there is no room any more for what they may bring.
        self._plans: set[ClaimPlan] = set()
        self._suspects: deque[Work] = deque()
        # Transactional consumers that have met suspects, and how many messages to take one by one.
        self._suspect_runs: deque[tuple[Consumer, int]] = deque()
        # Until when, at most, nothing else begins, as a suspect is alone or waits to be.
        self._alone_until = 0.0
        self._claimed = 0
        # What its lease ids begin with.
        self.holder = token_hex(4)
        board.set_holder(self.holder)

    def start(self) -> None:
        self._is_started = True
        for pool in self.pools:
            pool.start()

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
    def all_consumers(self) -> list[Consumer]:
        return [*self.consumers, *self.dynamic.turns]

    @property
    def room_left(self) -> int:
        most = self._options.max_messages
        if most is None:
            return 2**31 - 1
        asked = sum(plan.poll.limit for plan in self._plans)
        return max(most - self._claimed - asked, 0)

    @property
    def in_flight(self) -> int:
        held = sum(claim.unhandled for claim in self._keeper.claims())
        return held + sum(run.poll.limit for run in self._runs)

    @property
    def has_runs(self) -> bool:
        return bool(self._runs)

    # Claiming

    def plan(self) -> ClaimPlan | None:
        """Return the claim of the first consumer that may have something and there is room for.

        On the way, transactional consumers are given the threads they want.
        """
        if self._alone_until:
            return None
        now = time.monotonic()
        load = self._load()
        for consumer in self._in_turn():
            is_ready = consumer.is_declared or consumer.is_dynamic
            if now < consumer.schedule.next_at or not is_ready or self._waits_for_plan(consumer):
                continue
            if consumer.handler.transactional:
                self._start_runs(consumer)
                continue
            limit = self._room(consumer, load)
            if limit > 0:
                self._note_turn(consumer)
                plan = ClaimPlan(consumer, limit, self.holder)
                self._plans.add(plan)
                return plan
        return None

    def end_plan(self, plan: ClaimPlan) -> None:
        """Have no room kept any more for what a claim may bring: it has been made, or failed."""
        self._plans.discard(plan)

    def put_aside(self, consumer: Consumer) -> bool:
        """Put aside messages whose lease the database refuses; return whether there were any."""
        treatment, queue = consumer.handler.treatment, consumer.queue
        kinds = [queue.kind] if treatment is None else [queue.kind, *treatment.kinds()]
        wait = max([*consumer.policy.delays[:1], CLAIM_PAUSE])
        found = put_aside(kinds, wait, queue.using)
        for key, place, error in found:
            self._refusals.report_claim(queue.name, error, key=key, moved_to=place)
        if found:
            consumer.rewind()
        return bool(found)

    def refuse(self, consumer: Consumer, error: BaseException) -> None:
        """Report that the database refuses a claim, and leave the queue alone for a while."""
        self._refusals.report_claim(consumer.queue.name, error)
        consumer.schedule.rest(CLAIM_PAUSE.total_seconds())

    def _waits_for_plan(self, consumer: Consumer) -> bool:
        """Return whether a claim is being made beside which the consumer cannot make another."""
        is_alone = consumer.is_strict or consumer.walk is not None
        return is_alone and any(plan.consumer is consumer for plan in self._plans)

    def _in_turn(self) -> Iterator[Consumer]:
        """Yield the consumers in the order they are to claim in.

        Named ones by priority. Others by rounds, in each of which every consumer that has something
        has one turn, the most overdue first. The dynamic queues as a whole take turns with them.
        """
        consumers = self.consumers
        if not self._options.queues and len(consumers) > 1:
            consumers = sorted(consumers, key=_rank)
        return (
            chain(self.dynamic.turns, consumers)
            if self._is_dynamic_turn
            else chain(consumers, self.dynamic.turns)
        )

    def _note_turn(self, consumer: Consumer) -> None:
        if consumer.is_dynamic:
            self.dynamic.had_turn(consumer)
        self._is_dynamic_turn = not consumer.is_dynamic
        if consumer.share.had_turn:  # the others that have something had theirs: the next round
            for each in self.consumers:
                each.share.had_turn = False
        consumer.share.had_turn = not consumer.is_dynamic

    def note_overdue(self) -> None:
        """Ask which consumers are the most overdue, where nobody knows yet."""
        if self._options.queues or len(self.consumers) < 2:
            return
        waits = Message.objects.next_due_of_kinds(
            [consumer.queue.kind for consumer in self.consumers], [NO_FLOOR] * len(self.consumers),
            0, using=self._options.using,
        )  # fmt: skip
        now = to_milliseconds(database_now(self._options.using))
        for consumer in self.consumers:
            consumer.share.overdue_since = now + waits.get(consumer.queue.kind, 0)

    def _load(self) -> Counter[Pool | Consumer]:
        """Return how many messages each pool and each dynamic queue has in flight."""
        found: Counter[Pool | Consumer] = Counter({self.executor: len(self._runs)})
        for claim in self._keeper.claims():
            found[self.pool_of(claim)] += claim.unhandled
            if claim.consumer.is_dynamic:
                found[claim.consumer] += claim.unhandled
        for plan in self._plans:
            found[self.pool_of(plan.consumer)] += plan.poll.limit
            if plan.consumer.is_dynamic:
                found[plan.consumer] += plan.poll.limit
        return found

    def _room(self, consumer: Consumer, load: Counter[Pool | Consumer]) -> int:
        pool = self.pool_of(consumer)
        if consumer.is_dynamic:
            room = pool.share(consumer.limit, load[pool], load[consumer], consumer.share.window)
        else:
            room = pool.room(consumer.limit, load[pool], consumer.ahead_share)
        if consumer.walk is not None and consumer.is_rated:
            # A permit is for a message that is started now.
            room = min(room, max(pool.capacity - load[pool], 0))
        return min(room, self.room_left)

    def next_poll_at(self) -> float:
        """Return when the next consumer polls for which there is room, or a suspect may begin."""
        if self._alone_until:
            return self._alone_until if self._has_others() else 0.0
        if self.room_left == 0:
            return IDLE
        load = self._load()
        return min(
            (
                consumer.schedule.next_at
                for consumer in self.all_consumers
                if consumer.schedule.next_at != IDLE and self._may_poll(consumer, load)
            ),
            default=IDLE,
        )

    def _may_poll(self, consumer: Consumer, load: Counter[Pool | Consumer]) -> bool:
        if consumer.handler.transactional:
            return self._wants_run(consumer)
        return self._room(consumer, load) > 0

    def accept(self, plan: ClaimPlan, answers: Sequence[list[Row]]) -> int:
        """Take over what a claim returned; return how many messages that was."""
        turn = plan.read(answers)
        rows = turn.claimed
        if logger.isEnabledFor(logging.DEBUG):
            log_poll(plan.consumer.queue.name, [row.key for row in rows])
        if not rows and not turn.is_alone:
            plan.consumer.schedule.wait_for_turn()
            return 0
        latest, last_id = (rows[-1].due_at, rows[-1].id) if rows else (None, 0)
        result = PollResult(
            len(rows), latest, turn.next_due_in, has_more=turn.has_more, last_id=last_id
        )
        plan.consumer.end_poll(plan.poll, result)
        self._claimed += len(rows)
        if rows:
            _note_lateness(plan.consumer, rows)
            self._hand_over(plan, rows)
        return len(rows)

    def _hand_over(self, plan: ClaimPlan, rows: Sequence[LeasedRow | RankedRow]) -> None:
        consumer, queue = plan.consumer, plan.consumer.queue
        envelopes = queue._open_rows([row for row in rows if not row.is_retaken], plan.lease_id)
        suspects = queue._open_rows([row for row in rows if row.is_retaken], plan.retaken_id)
        if signals.leased.has_listeners():
            signals.announce(signals.leased, self._sender, envelopes=[*envelopes, *suspects])
        now = plan.poll.began_at
        for envelope in suspects:
            suspect = Claim(consumer, plan.retaken_id, [envelope], now, is_suspect=True)
            (claim,) = suspect.by_manner()
            self._keeper.watch(claim)
            self._suspects.extend((claim, each) for each in self._unspent(claim))
        if self._suspects:
            self._isolate()
        if envelopes:
            for claim in Claim(consumer, plan.lease_id, envelopes, now).by_manner():
                self._begin(claim)

    def _begin(self, claim: Claim) -> None:
        self._keeper.watch(claim)
        if claim.consumer.handler.treatment and any(each.attempt > 1 for each in claim.envelopes):
            self._keeper.check({claim.lease_id})  # what was unwanted before may be so still
        ready = self._unspent(claim)
        if self._alone_until:
            self._leave((claim, each) for each in ready)
        else:
            self.pool_of(claim).submit(claim, ready)

    def _unspent(self, claim: Claim) -> list[Envelope]:
        """Return the messages with attempts left; the others are settled without a handler.

        Either they kill their workers, or the database refused their dead letters.
        """
        most = claim.consumer.policy.max_attempts
        spent = [each for each in claim.envelopes if each.attempt > most]
        if not spent:
            return claim.envelopes
        claim.failures.extend((each, attempts_used_up(each)) for each in spent)
        return [each for each in claim.envelopes if each.attempt <= most]

    def tend(self) -> None:
        """Go on with what was claimed: hand over the next suspect, keep nothing that waits long."""
        self._begin_suspects()
        for pool in self.pools:
            if taken := pool.take_back_stalled():
                self._leave(taken)
                log(logging.INFO, "messages_given_back", count=len(taken))

    def _leave(self, taken: Iterable[Work]) -> None:
        """Give back what was leased ahead and nobody has begun."""
        for claim, envelope in taken:
            if claim.is_suspect:  # given back, it would be nobody's suspect
                self.pool_of(claim).submit(claim, [envelope])
            else:
                claim.leave(envelope)
                self._claimed -= 1

    # Suspects: messages that may have killed a process

    def _isolate(self) -> None:
        """Begin nothing more until the suspects that wait have begun, each alone.

        So if the process dies again, it is known of what. They are like any other message until
        a process of this worker has died.
        """
        if self._board.alone_seconds == 0:
            while self._suspects:
                self._begin_suspect()
        elif not self._alone_until:
            self._alone_until = time.monotonic() + self._board.alone_seconds
            for pool in self.pools:
                self._leave(pool.take_back())

    def _begin_suspects(self) -> None:
        """Begin the next one if nothing else is in flight, or has been for too long.

        Neither it nor the others wait longer: messages that take hours hold nobody up.
        """
        now = time.monotonic()
        if not self._alone_until or (self._has_others() and now < self._alone_until):
            return
        self._alone_until = now + self._board.alone_seconds
        if self._suspects:
            self._begin_suspect()
        elif self._suspect_runs and self.room_left:
            consumer, count = self._suspect_runs.popleft()
            self._start_run(
                consumer, consumer.schedule.begin(min(count, self.room_left)), is_alone=True
            )
        else:
            self._suspect_runs.clear()
            self._alone_until = 0.0

    def _begin_suspect(self) -> None:
        claim, envelope = self._suspects.popleft()
        self.pool_of(claim).submit(claim, [envelope])

    def _has_others(self) -> bool:
        """Return whether more is in flight, or not yet settled, than the suspects that wait."""
        return bool(self._runs) or len(self._keeper.claims()) > len(self._suspects)

    # Transactional consumers

    def _start_runs(self, consumer: Consumer) -> None:
        while self._wants_run(consumer) and self.room_left:
            limit = min(consumer.limit, consumer.transactions.batch_size, self.room_left)
            self._start_run(consumer, consumer.schedule.begin(limit))
            self._note_turn(consumer)

    def _start_run(self, consumer: Consumer, poll: Poll, *, is_alone: bool = False) -> None:
        run = TransactionalRun(
            consumer, poll, self.runs_ended, self._wake_channel, self._board,
            goes_on=self._options.max_messages is None, is_alone=is_alone,
        )  # fmt: skip
        consumer.transactions.begin()
        self._claimed += poll.limit
        self._runs.add(run)
        self.executor.submit_run(run)

    def _wants_run(self, consumer: Consumer) -> bool:
        # No more than there are threads: one that waited would keep later ones of a consumer of
        # higher priority waiting behind it.
        load = consumer.transactions
        return load.running < load.wanted and len(self._runs) < self._options.concurrency

    def end_run(self, run: TransactionalRun) -> None:
        """Note what transactions found, and whether their consumer is worth another thread."""
        consumer = run.consumer
        self._runs.discard(run)
        consumer.transactions.end(run.total, run.seconds)
        self._claimed += run.total - run.poll.limit
        if run.suspects:
            self._suspect_runs.append((consumer, run.suspects))
            self._isolate()
        if run.suspects or run.is_alone or run.met_conflict:
            consumer.schedule.wake()  # it has seen only part of the queue
        else:
            consumer.end_poll(run.poll, run.result)

    def cancel(self, envelopes: list[Envelope]) -> None:
        """Cancel the coroutines that handle them; the functions can ask."""
        if self._loop is not None and envelopes:
            self._loop.cancel(envelopes)

    # Stopping

    def take_back(self) -> list[Work]:
        """Return what nobody has begun, and begin no more of it."""
        taken = [*self._suspects]
        self._suspects.clear()
        for pool in self.pools:
            taken.extend(pool.take_back())
        self.executor.cancel_runs()
        return taken

    def stop(self, seconds: float) -> None:
        for pool in self.pools:
            pool.stop(seconds)


def _note_lateness(consumer: Consumer, rows: Sequence[LeasedRow | RankedRow]) -> None:
    # The database's clock when they were leased, all by one statement.
    now = rows[0].leased_until - consumer.queue.lease_duration // MILLISECOND
    consumer.tally.note_lateness([now - row.due_at for row in rows])


def _rank(consumer: Consumer) -> tuple[bool, float]:
    return consumer.share.had_turn, consumer.share.overdue_since
