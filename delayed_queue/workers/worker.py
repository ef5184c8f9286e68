"""The worker: claims batches, hands them to threads, settles what comes back."""

from __future__ import annotations

import logging
import random
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.db import Error, connections

from delayed_queue import signals
from delayed_queue.cron import CronKeeper, CronThread
from delayed_queue.exceptions import OutcomeUnknown, ResourceUnavailable
from delayed_queue.handlers import Registry, Reject, Verdict, judge, registry
from delayed_queue.models import Message
from delayed_queue.resilience import repeat
from delayed_queue.wakeups import Doorbell, Listener, StopSignal
from delayed_queue.workers.executor import Executor
from delayed_queue.workers.lanes import Delivery, Lane, lanes_of
from delayed_queue.workers.leasekeeper import LeaseKeeper
from delayed_queue.workers.options import WorkerOptions

logger = logging.getLogger("delayed_queue")

# How far ahead of its threads a worker leases: what they handle in this time. More would keep
# messages from idle workers, less would leave threads waiting for the next claim.
AHEAD_SECONDS: Final = 0.25
CRASHED: Final = "crashed: attempts used up without an answer"


@dataclass(slots=True)
class Tally:
    """What a worker did: deliveries by their end."""

    done: int = 0
    failed: int = 0
    snoozed: int = 0
    dead: int = 0
    lost: int = 0

    @property
    def total(self) -> int:
        return self.done + self.failed + self.snoozed + self.dead + self.lost


class Worker:
    """One process's worth of claiming and handling; ``run()`` returns when it was stopped.

    The thread that runs it owns the database side: claims, acknowledgements, retries, dead
    letters, each for a batch at a time. Handlers run in the executor's threads. ``stop()`` may
    be called from a signal handler or another thread.
    """

    def __init__(self, options: WorkerOptions, handlers: Registry = registry) -> None:
        self.options = options
        self.tally = Tally()
        self._lanes = lanes_of(options, handlers)
        self._stop = StopSignal()
        self._bell = Doorbell()
        self._executor = Executor(options.concurrency, self._bell)
        shortest = min(lane.queue.lease_duration for lane in self._lanes)
        self._keeper = LeaseKeeper(options.using, shortest.total_seconds())
        self._cron = CronThread(CronKeeper(options.using), options.using)
        self._unsettled: list[Delivery] = []
        self._claimed = 0

    def __str__(self) -> str:
        return self.options.worker_id

    @property
    def queues(self) -> list[str]:
        return [lane.queue.name for lane in self._lanes]

    def stop(self) -> None:
        """Claim no more; finish what is in flight, within the shutdown timeout."""
        self._stop.set()

    def run(self) -> Tally:
        """Work until stopped, drained (burst), or done with max_messages."""
        self._executor.start()
        self._keeper.start()
        if self.options.cron and not self.options.burst:
            self._cron.start()
        signals.announce(signals.worker_started, self)
        try:
            self._loop()
        finally:
            self._wind_down()
            signals.announce(signals.worker_stopped, self)
        return self.tally

    def _loop(self) -> None:
        kinds = [lane.queue.kind for lane in self._lanes]
        # An outage must not end the worker: each turn of this loop is one reconnection.
        while not self._is_over():
            try:
                with Listener(kinds, self.options.using) as listener:
                    while not self._is_over():
                        self._turn(listener)
            except (Error, ResourceUnavailable) as error:
                self._sit_out(error)

    def _sit_out(self, error: Exception) -> None:
        logger.error("event=database_unavailable error=%s", error)
        connections[self.options.using].close()
        # Jitter: the workers of a fleet lost their connections together.
        time.sleep(random.uniform(0.1, 1.0))  # noqa: S311

    def _turn(self, listener: Listener) -> None:
        self._settle_finished()
        claimed = self._claim()
        if listener.heard():
            self._wake_lanes()
        elif claimed == 0 and not self._is_over():
            self._sleep(listener)

    def _is_over(self) -> bool:
        if self._stop.is_set():
            return True
        if self._room_left() == 0:
            return not self._in_flight()
        return self.options.burst and self._is_drained()

    def _is_drained(self) -> bool:
        now = time.monotonic()
        return not self._in_flight() and all(now < lane.look_at for lane in self._lanes)

    def _in_flight(self) -> int:
        return len(self._keeper) + len(self._unsettled)

    # Claiming

    def _claim(self) -> int:
        """Lease what there is room for, by priority; return how many were handed over."""
        claimed = 0
        for lane in self._lanes:
            room = self._room()
            if room <= 0 or self._stop.is_set():
                break
            claimed += self._claim_from(lane, room)
        return claimed

    def _room(self) -> int:
        """Free threads, plus what they will want next, within the batch size."""
        ahead = self.options.concurrency * AHEAD_SECONDS / max(self._executor.seconds_each, 1e-6)
        wanted = self.options.concurrency + min(int(ahead), self.options.batch_size)
        free = wanted - len(self._keeper)
        # Not in small change: a claim costs much the same for one message as for fifty.
        if free < min(wanted, self.options.batch_size) / 2 and len(self._keeper):
            free = max(self.options.concurrency - len(self._keeper), 0)
        return min(free, self.options.batch_size, self._room_left())

    def _room_left(self) -> int:
        most = self.options.max_messages
        return 2**31 - 1 if most is None else max(most - self._claimed, 0)

    def _claim_from(self, lane: Lane, limit: int) -> int:
        leased_at = time.monotonic()
        envelopes = lane.claim(limit)
        self._claimed += len(envelopes)
        deliveries = [Delivery(envelope, lane, leased_at) for envelope in envelopes]
        self._keeper.watch(deliveries)
        if envelopes:
            signals.announce(signals.leased, self, envelopes=envelopes)
        for each in deliveries:
            # Every attempt so far ended without an answer, not even a failure: the message
            # kills its workers. It is settled like a handled one, but no handler sees it.
            if each.envelope.attempt > lane.policy.max_attempts:
                each.error = Reject(CRASHED)
        self._unsettled.extend(each for each in deliveries if each.error is not None)
        self._executor.submit([each for each in deliveries if each.error is None])
        return len(envelopes)

    # Settling

    def _settle_finished(self) -> None:
        """Write the results of all handlers that ended: one statement for the good ones."""
        for delivery in self._executor.finished():
            self._unsettled.append(delivery)
        if not self._unsettled:
            return
        # Kept until written: an outage in between repeats the writing, not the handling.
        batch = list(self._unsettled)
        for each in batch:
            self._keeper.forget(each)
        lost = [each for each in batch if each.envelope.lease_lost]
        self.tally.lost += len(lost)
        self._settled(lost)
        self._acknowledge(each for each in batch if not each.envelope.lease_lost)
        for each in batch:
            if each.error is not None and not each.envelope.lease_lost:
                verdict = judge(each.error, each.envelope.attempt, each.lane.policy)
                self._write(each, verdict)
                self._settled([each])

    def _settled(self, deliveries: Iterable[Delivery]) -> None:
        gone = {id(each) for each in deliveries}
        self._unsettled = [each for each in self._unsettled if id(each) not in gone]

    def _acknowledge(self, deliveries: Iterable[Delivery]) -> None:
        by_lease: dict[str, list[Delivery]] = defaultdict(list)
        for each in deliveries:
            if each.error is None:
                by_lease[each.envelope.lease_id].append(each)
        for lease_id, members in by_lease.items():
            self._acknowledge_members(lease_id, members)
            self._settled(members)

    def _acknowledge_members(self, lease_id: str, members: list[Delivery]) -> None:
        ids = [each.envelope.message_id for each in members]
        using = self.options.using
        try:
            deleted = set(
                repeat(
                    using,
                    lambda: Message.objects.acknowledge(lease_id, ids, using=using),
                    doubt=lambda found: len(list(found)) < len(ids),
                )
            )
        except OutcomeUnknown:
            # Deleted by the try whose answer was lost, or taken by others: either way settled.
            deleted = set(ids)
        self.tally.done += len(deleted)
        self.tally.lost += len(ids) - len(deleted)
        done = [each.envelope for each in members if each.envelope.message_id in deleted]
        signals.announce(signals.acknowledged, self, envelopes=done)

    def _write(self, delivery: Delivery, verdict: Verdict) -> None:
        """Retry, snooze or bury; a lease that was lost meanwhile changes nothing."""
        envelope = delivery.envelope
        try:
            written = delivery.lane.queue.settle(envelope, verdict)
        except OutcomeUnknown:
            written = True
        if not written:
            self.tally.lost += 1
        elif verdict.delay is None:
            self.tally.dead += 1
            signals.announce(signals.dead, self, envelope=envelope, reason=verdict.reason)
        elif not verdict.counts:
            self.tally.snoozed += 1
        else:
            self.tally.failed += 1
            signals.announce(
                signals.failed, self, envelope=envelope, error=delivery.error,
                delay=verdict.delay,
            )  # fmt: skip
        if written and verdict.delay is not None and verdict.delay <= self.options.poll_interval:
            delivery.lane.wake()

    # Sleeping and stopping

    def _sleep(self, listener: Listener) -> None:
        """Sleep until a handler ends, a message may be due, or the worker is stopped."""
        self._executor.worker_sleeps = True
        try:
            if not self._executor.has_finished():
                if listener.wait(self._nap(), self._stop, self._bell):
                    self._wake_lanes()
                self._bell.silence()
        finally:
            self._executor.worker_sleeps = False

    def _nap(self) -> float:
        longest = self.options.poll_interval.total_seconds()
        if self._room() <= 0:
            return longest
        return min([longest, *(lane.look_at - time.monotonic() for lane in self._lanes)])

    def _wake_lanes(self) -> None:
        for lane in self._lanes:
            lane.wake()

    def _wind_down(self) -> None:
        """Give back what was not started, finish what was, give back what does not finish."""
        self._cron.stop()
        try:
            self._give_back(self._executor.take_back(), refund=1)
            self._executor.stop()
            self._finish(self.options.shutdown_timeout)
            self._give_back(self._keeper.in_flight(), refund=0)
        except (Error, ResourceUnavailable) as error:
            # Nothing is lost: the leases run out and others take the messages.
            logger.warning("event=shutdown_incomplete error=%s", error)
        finally:
            self._keeper.stop()
            self._executor.join(1.0 if not self._in_flight() else 0.0)
            connections[self.options.using].close()

    def _finish(self, timeout: timedelta) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        with Listener([], self.options.using) as listener:
            while True:
                self._settle_finished()
                left = deadline - time.monotonic()
                if not self._in_flight() or left <= 0:
                    return
                self._executor.worker_sleeps = True
                if not self._executor.has_finished():
                    listener.wait(min(left, 1.0), self._bell)
                self._bell.silence()

    def _give_back(self, deliveries: list[Delivery], *, refund: int) -> None:
        """Release leases so that others take the messages at once."""
        by_lease: dict[tuple[str, Lane], list[int]] = defaultdict(list)
        for each in deliveries:
            self._keeper.forget(each)
            by_lease[each.envelope.lease_id, each.lane].append(each.envelope.message_id)
        for (lease_id, lane), ids in by_lease.items():
            lane.queue.give_back(lease_id, ids, refund=refund)
