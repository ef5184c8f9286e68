"""The dispatcher: decides what to claim, and hands what was claimed to the pools."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from delayed_queue.db.statements import Step
from delayed_queue.db.wakeups import Doorbell
from delayed_queue.handlers import Reject
from delayed_queue.messages import Envelope
from delayed_queue.models import Message
from delayed_queue.observe import signals
from delayed_queue.observe.logs import log_poll
from delayed_queue.queue.store.claim import NO_FLOOR, earliest_first, without_edge
from delayed_queue.worker.board import Board
from delayed_queue.worker.claims import Claim
from delayed_queue.worker.eventloop import EventLoop
from delayed_queue.worker.executor import Executor
from delayed_queue.worker.fleet import Fleet
from delayed_queue.worker.lanes import CRASHED, DOZING, Lane, Look
from delayed_queue.worker.leasekeeper import LeaseKeeper
from delayed_queue.worker.options import WorkerOptions
from delayed_queue.worker.pools import Pool, Work
from delayed_queue.worker.transactions import Job

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
    """Knows the lanes and whose turn it is, the pools, and how much there is room for."""

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
        # Transactional lanes that have met suspects, and how many messages to take one by one.
        self._suspect_lanes: deque[tuple[Lane, int]] = deque()
        # Until when, at most, nothing else begins, as a suspect is alone or waits to be.
        self._alone_until = 0.0
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
        if self._alone_until:
            return None
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
                self._note_turn(lane)
                return ClaimPlan(lane, limit)
        return None

    def _in_turn(self) -> Iterator[Lane]:
        """Yield the lanes in the order they are to claim in.

        Named ones by priority. Others by rounds, in each of which every lane that has something
        has one turn, the most overdue first. The fleet as a whole takes turns with them.
        """
        lanes = self.lanes
        if not self._options.queues and len(lanes) > 1:
            lanes = sorted(lanes, key=_rank)
        return chain(self.fleet, lanes) if self._is_fleets_turn else chain(lanes, self.fleet)

    def _note_turn(self, lane: Lane) -> None:
        self.fleet.had_turn(lane)
        self._is_fleets_turn = not lane.is_shared
        if lane.had_turn:  # the others that have something had theirs: the next round
            for each in self.lanes:
                each.had_turn = False
        lane.had_turn = not lane.is_shared

    def note_heads(self) -> None:
        """Ask which lanes are the most overdue, where nobody knows yet."""
        if self._options.queues or len(self.lanes) < 2:
            return
        waits = Message.objects.next_due_of_kinds(
            [lane.queue.kind for lane in self.lanes], [NO_FLOOR] * len(self.lanes), 0,
            using=self._options.using,
        )  # fmt: skip
        now = time.time() * 1000
        for lane in self.lanes:
            lane.head = now + waits.get(lane.queue.kind, 0)

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
        """Return when the next lane looks for which there is room, or a suspect may begin."""
        if self._alone_until:
            return self._alone_until if self._has_others() else 0.0
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
        for envelope in suspects:
            claim = Claim(lane, plan.retaken_id, [envelope], now, is_suspect=True)
            self._keeper.watch(claim)
            self._suspects.extend((claim, each) for each in self._unspent(claim))
        if self._suspects:
            self._isolate()
        if envelopes:
            claim = Claim(lane, plan.lease_id, envelopes, now)
            self._keeper.watch(claim)
            ready = self._unspent(claim)
            if self._alone_until:
                self._leave((claim, each) for each in ready)
            else:
                self.pool_of(lane).submit(claim, ready)

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
        self._begin_suspects()
        for pool in self.pools:
            if taken := pool.take_back_stalled():
                self._leave(taken)
                logger.info("event=messages_given_back count=%s", len(taken))

    def _leave(self, taken: Iterable[Work]) -> None:
        """Give back what was leased ahead and nobody has begun."""
        for claim, envelope in taken:
            if claim.is_suspect:  # given back, it would be nobody's suspect
                self.pool_of(claim.lane).submit(claim, [envelope])
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
        """Begin the next one if nothing else is in hand, or has been for too long.

        Neither it nor the others wait longer: messages that take hours hold nobody up.
        """
        now = time.monotonic()
        if not self._alone_until or (self._has_others() and now < self._alone_until):
            return
        self._alone_until = now + self._board.alone_seconds
        if self._suspects:
            self._begin_suspect()
        elif self._suspect_lanes and self.room_left:
            lane, count = self._suspect_lanes.popleft()
            self._start_job(lane, lane.begin_look(min(count, self.room_left)), is_alone=True)
        else:
            self._suspect_lanes.clear()
            self._alone_until = 0.0

    def _begin_suspect(self) -> None:
        claim, envelope = self._suspects.popleft()
        self.pool_of(claim.lane).submit(claim, [envelope])

    def _has_others(self) -> bool:
        """Return whether there is more than the suspects that wait: in hand, or not yet settled."""
        return bool(self._jobs) or len(self._keeper.claims()) > len(self._suspects)

    # Transactional lanes

    def _start_jobs(self, lane: Lane) -> None:
        while self._wants_job(lane) and self.room_left:
            worth = max(int(BATCH_SECONDS / lane.seconds_each), 1)
            self._start_job(lane, lane.begin_look(min(lane.limit, worth, self.room_left)))
            self._note_turn(lane)

    def _start_job(self, lane: Lane, look: Look, *, is_alone: bool = False) -> None:
        job = Job(
            lane, look, self.jobs_ended, self._bell, self._board,
            goes_on=self._options.max_messages is None, is_alone=is_alone,
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
        if job.suspects:
            self._suspect_lanes.append((lane, job.suspects))
            self._isolate()
        if job.suspects or job.is_alone or job.met_conflict:
            lane.wake()  # it has seen only part of the queue
        else:
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


def _rank(lane: Lane) -> tuple[bool, float]:
    return lane.had_turn, lane.head
