"""The dispatcher: decides what to claim, and hands what was claimed to the pools."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from delayed_queue import signals
from delayed_queue.handlers import Reject
from delayed_queue.logs import log_poll
from delayed_queue.managers import Step, earliest_first, without_edge
from delayed_queue.messages import Envelope
from delayed_queue.wakeups import Doorbell
from delayed_queue.workers.board import Board
from delayed_queue.workers.claims import Claim
from delayed_queue.workers.eventloop import EventLoop
from delayed_queue.workers.executor import Executor
from delayed_queue.workers.fleet import Fleet
from delayed_queue.workers.lanes import CRASHED, DOZING, Lane
from delayed_queue.workers.leasekeeper import LeaseKeeper
from delayed_queue.workers.options import WorkerOptions
from delayed_queue.workers.pools import Pool, Work
from delayed_queue.workers.transactions import Job

logger = logging.getLogger("delayed_queue")

Rows = list[tuple[Any, ...]]

# How much a transaction takes at a time: what it handles in so many seconds.
BATCH_SECONDS: Final = 0.25


class ClaimPlan:
    """A claim about to be made: of which lane, under which leases, by which statements."""

    def __init__(self, lane: Lane, limit: int) -> None:
        self.lane = lane
        self.look = lane.begin_look(limit)
        self.lease_id = str(uuid.uuid4())
        self.retaken_id = str(uuid.uuid4())
        self.steps: list[Step] = lane.claim_steps(self.look, self.lease_id, self.retaken_id)

    def was_refused(self, answers: list[Rows]) -> bool:
        """Return whether it is known that another worker was claiming, so that this one did not."""
        return self.lane.is_strict and self.look.looks_ahead and not answers[-3][0][0]


class Dispatcher:
    """Knows the lanes in order of priority, the pools, and how much there is room for."""

    def __init__(
        self,
        sender: Any,
        options: WorkerOptions,
        lanes: list[Lane],
        fleet: Fleet,
        keeper: LeaseKeeper,
        bell: Doorbell,
        board: Board,
    ) -> None:
        self._sender = sender
        self._options = options
        self._keeper = keeper
        self._bell = bell
        self._board = board
        self.lanes = lanes
        self.fleet = fleet
        self._is_fleets_turn = False
        self._is_started = False
        self.executor = Executor(options.concurrency, bell, board)
        self.pools: list[Pool] = [self.executor]
        self._loop: EventLoop | None = None
        if any(lane.is_async for lane in lanes):
            self._open_loop()
        self.jobs_ended: deque[Job] = deque()
        self._jobs: set[Job] = set()
        self._suspects: deque[Work] = deque()
        self._suspect: Claim | None = None
        self._claimed = 0

    def start(self) -> None:
        self._is_started = True
        for pool in self.pools:
            pool.start()

    def _open_loop(self) -> EventLoop:
        options = self._options
        loop = EventLoop(options.async_concurrency, self._bell, self._board, options.concurrency)
        self._loop = loop
        self.pools.append(loop)
        if self._is_started:
            loop.start()
        return loop

    def pool_of(self, lane: Lane) -> Pool:
        return (self._loop or self._open_loop()) if lane.is_async else self.executor

    @property
    def all_lanes(self) -> list[Lane]:
        return [*self.lanes, *self.fleet]

    @property
    def room_left(self) -> int:
        most = self._options.max_messages
        return 2**31 - 1 if most is None else max(most - self._claimed, 0)

    @property
    def in_flight(self) -> int:
        held = sum(claim.unhandled for claim in self._keeper.claims())
        return held + sum(job.look.limit for job in self._jobs)

    @property
    def has_jobs(self) -> bool:
        return bool(self._jobs)

    # Claiming

    def plan(self) -> ClaimPlan | None:
        """Return the claim of the first lane that may have something and there is room for.

        On the way, transactional lanes are given the threads they want.
        """
        now = time.monotonic()
        load = self._load()
        for lane in self._in_turn():
            if now < lane.look_at:
                continue
            if lane.handler.transactional:
                self._start_jobs(lane)
                continue
            limit = self._room(lane, load)
            if limit > 0:
                self.fleet.had_turn(lane)
                self._is_fleets_turn = not lane.is_shared
                return ClaimPlan(lane, limit)
        return None

    def _in_turn(self) -> Iterator[Lane]:
        """Yield the lanes by priority; the fleet as a whole takes turns with the others."""
        if self._is_fleets_turn:
            return chain(self.fleet, self.lanes)
        return chain(self.lanes, self.fleet)

    def _load(self) -> Counter[Pool | Lane]:
        """Return how many messages each pool and each lane of the fleet has in hand."""
        found: Counter[Pool | Lane] = Counter({self.executor: len(self._jobs)})
        for claim in self._keeper.claims():
            found[self.pool_of(claim.lane)] += claim.unhandled
            if claim.lane.is_shared:
                found[claim.lane] += claim.unhandled
        return found

    def _room(self, lane: Lane, load: Counter[Pool | Lane]) -> int:
        pool = self.pool_of(lane)
        if lane.is_shared:
            room = pool.share(lane.limit, load[pool], load[lane], lane.window)
        else:
            room = pool.room(lane.limit, load[pool])
        return min(room, self.room_left)

    def looks_at(self) -> float:
        """Return when the next lane looks for which there is room."""
        if self.room_left == 0:
            return DOZING
        load = self._load()
        return min(
            (
                lane.look_at
                for lane in self.all_lanes
                if lane.look_at != DOZING and self._may_look(lane, load)
            ),
            default=DOZING,
        )

    def _may_look(self, lane: Lane, load: Counter[Pool | Lane]) -> bool:
        if lane.handler.transactional:
            return self._wants_job(lane)
        return self._room(lane, load) > 0

    def accept(self, plan: ClaimPlan, answers: list[Rows]) -> int:
        """Take over what a claim returned; return how many messages that was."""
        answer, edge = without_edge(answers[-1]) if plan.look.passed else (answers[-1], None)
        rows = earliest_first(answer)
        log_poll(plan.lane.queue.name, [row[1] for row in rows])
        if not rows and plan.was_refused(answers):
            plan.lane.wait_for_turn()
            return 0
        ahead = answers[-2] if plan.look.looks_ahead else []
        last = (rows[-1][4], rows[-1][0]) if rows else None
        is_full = len(rows) == plan.look.limit
        plan.lane.end_look(
            plan.look, len(rows), last and last[0], ahead[0][0] if ahead else None,
            behind=last if is_full else edge or last, has_more=edge is not None,
        )  # fmt: skip
        self._claimed += len(rows)
        if rows:
            self._hand_over(plan, rows)
        return len(rows)

    def _hand_over(self, plan: ClaimPlan, rows: Rows) -> None:
        lane, queue = plan.lane, plan.lane.queue
        envelopes = queue.open_rows([row for row in rows if not row[8]], plan.lease_id)
        suspects = queue.open_rows([row for row in rows if row[8]], plan.retaken_id)
        signals.announce(signals.leased, self._sender, envelopes=[*envelopes, *suspects])
        now = plan.look.began_at
        if envelopes:
            claim = Claim(lane, plan.lease_id, envelopes, now)
            self._keeper.watch(claim)
            self.pool_of(lane).submit(claim, self._unspent(claim))
        for envelope in suspects:
            claim = Claim(lane, plan.retaken_id, [envelope], now, is_suspect=True)
            self._keeper.watch(claim)
            self._suspects.extend((claim, each) for each in self._unspent(claim))

    def _unspent(self, claim: Claim) -> list[Envelope]:
        """Return the messages with attempts left; the others are settled without a handler.

        All their attempts ended without an answer, not even a failure: they kill their workers.
        """
        most = claim.lane.policy.max_attempts
        spent = [each for each in claim.envelopes if each.attempt > most]
        if not spent:
            return claim.envelopes
        claim.failures.extend((each, Reject(CRASHED)) for each in spent)
        return [each for each in claim.envelopes if each.attempt <= most]

    def tend(self) -> None:
        """Go on with what was claimed: hand over the next suspect, keep nothing that waits long."""
        self._feed_suspects()
        self._leave_stalled()

    def _feed_suspects(self) -> None:
        """Hand over the next message that may have killed a worker: one at a time.

        So if the process dies again, that message is to blame, and what else was in hand is not.
        """
        if self._suspect is not None and self._suspect.unhandled:
            return
        self._suspect = None
        if self._suspects:
            claim, envelope = self._suspects.popleft()
            self._suspect = claim
            self.pool_of(claim.lane).submit(claim, [envelope])

    def _leave_stalled(self) -> None:
        """Give back what was leased ahead of handlers that take longer than those before them."""
        for pool in self.pools:
            taken = pool.take_back_stalled()
            for claim, envelope in taken:
                if claim.is_suspect:  # given back, it would be nobody's suspect
                    pool.submit(claim, [envelope])
                else:
                    claim.leave(envelope)
                    self._claimed -= 1
            if taken:
                logger.info("event=messages_given_back count=%s", len(taken))

    # Transactional lanes

    def _start_jobs(self, lane: Lane) -> None:
        while self._wants_job(lane) and self.room_left:
            worth = max(int(BATCH_SECONDS / lane.seconds_each), 1)
            look = lane.begin_look(min(lane.limit, worth, self.room_left))
            job = Job(
                lane, look, self.jobs_ended, self._bell, self._board,
                goes_on=self._options.max_messages is None,
            )  # fmt: skip
            lane.jobs += 1
            self._claimed += look.limit
            self._jobs.add(job)
            self.executor.submit_job(job)

    def _wants_job(self, lane: Lane) -> bool:
        # No more than there are threads: one that waited would keep later ones of a lane of
        # higher priority waiting behind it.
        return lane.jobs < lane.jobs_wanted and len(self._jobs) < self._options.concurrency

    def end_job(self, job: Job) -> None:
        """Note what a transaction found, and whether its lane is worth another thread."""
        lane, look = job.lane, job.look
        self._jobs.discard(job)
        lane.jobs -= 1
        self._claimed += job.total - look.limit
        lane.end_look(look, job.found, job.latest, job.wait_ms, job.look_seconds)
        lane.jobs_wanted = min(lane.jobs + 2, lane.jobs_wanted + 1) if job.total else 1
        if job.total:
            weight = min(job.total / 16, 1)
            lane.seconds_each += (job.seconds / job.total - lane.seconds_each) * weight

    # Stopping

    def take_back(self) -> list[Work]:
        """Return what nobody has begun, and begin no more of it."""
        taken = [*self._suspects]
        self._suspects.clear()
        for pool in self.pools:
            taken.extend(pool.take_back())
        self.executor.cancel_jobs()
        return taken

    def stop(self, seconds: float) -> None:
        for pool in self.pools:
            pool.stop(seconds)
