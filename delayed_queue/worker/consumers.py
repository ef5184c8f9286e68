"""Consumers: the queues as a worker sees them, those that it knows and those that come and go."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import Error

from delayed_queue.conf import get_settings
from delayed_queue.db.statements import Step
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration, ResourceUnavailable
from delayed_queue.handlers import Handler, Registry, Source, Verdict, judge
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.models import Message
from delayed_queue.observe.history import Tally
from delayed_queue.observe.instruments import awrap, wrap
from delayed_queue.observe.logs import log
from delayed_queue.queue.groups import GroupWalk
from delayed_queue.queue.queue import DelayedQueue
from delayed_queue.queue.store.claim import (
    NO_FLOOR,
    claiming,
    claiming_ranked,
    looking_ahead,
    looking_ahead_ranked,
    trying_alone,
)
from delayed_queue.queue.store.limits import reading_rules
from delayed_queue.retries import RetryPolicy
from delayed_queue.worker.options import WorkerOptions
from delayed_queue.worker.scanning import (
    DEEP_POLL_SHARE,
    FULL_SCAN_INTERVALS,
    IDLE,
    Poll,
    PollResult,
    ScanSchedule,
)

CRASHED: Final = "crashed: attempts used up without an answer"

# How much a transaction takes at a time: what it handles in so many seconds.
BATCH_SECONDS: Final = 0.25
# What part of the slots a dynamic queue may take before it has shown that it gives them back soon.
FIRST_WINDOW: Final = 1 / 8
# For what part of the time for which a worker leases ahead it does so of a queue with limits.
LIMITED_AHEAD: Final = 0.25
# Of how many messages, at most, the moving average is.
AVERAGED: Final = 16


# How often sources are asked where no NOTIFY says that they have changed.
ASK_SECONDS: Final = 5.0


@dataclass(slots=True)
class FairShare:
    """The limits that keep one consumer from taking the turns and the slots of others.

    ``had_turn``: in this round. ``overdue_since``: when, in milliseconds of the epoch, what it
    has next fell due; where that is not known it is to be polled first. ``running``: how many of
    its messages the event loop is at, of ``window`` at most.
    """

    had_turn: bool = False
    overdue_since: float = -math.inf
    running: int = 0
    window: float = math.inf


@dataclass(slots=True)
class TransactionLoad:
    """Of a transactional consumer: its transactions in progress, and how many are worth it."""

    running: int = 0
    wanted: int = 1
    seconds_each: float = 0.05

    @property
    def batch_size(self) -> int:
        return max(int(BATCH_SECONDS / self.seconds_each), 1)

    def begin(self) -> None:
        self.running += 1

    def end(self, handled: int, seconds: float) -> None:
        """Want one thread more after a transaction that found something, one after none."""
        self.running -= 1
        self.wanted = min(self.running + 2, self.wanted + 1) if handled else 1
        if handled:
            weight = min(handled / AVERAGED, 1)
            self.seconds_each += (seconds / handled - self.seconds_each) * weight


@dataclass(slots=True, eq=False)
class Consumer:
    """Takes messages of one queue, ``limit`` at a time at most, and has ``call`` handle them.

    ``is_dynamic``: of a queue that a source named. It takes turns with the others, holds no more
    than its share, and while it has nothing the idle scan looks for it.
    """

    handler: Handler
    queue: DelayedQueue
    policy: RetryPolicy
    call: Callable[[Envelope], Any]
    limit: int
    # What is called on the event loop, where messages differ.
    acall: Callable[[Envelope], Any]
    is_dynamic: bool = False
    is_async: bool = field(init=False)
    tally: Tally = field(init=False)
    share: FairShare = field(default_factory=FairShare)
    transactions: TransactionLoad = field(default_factory=TransactionLoad)
    schedule: ScanSchedule = field(init=False)
    rules: Step = field(init=False)
    # How far claims by group have come, while the queue is known to have limits; and whether one
    # of these is a rate: a permit is for a message that starts now.
    walk: GroupWalk | None = field(init=False, default=None)
    is_rated: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        self.is_async = self.handler.is_async
        self.rules = reading_rules(self.queue.kind)
        self.tally = Tally(self.queue.kind)
        self.schedule = ScanSchedule(
            self.queue.poll_interval.total_seconds(), is_dynamic=self.is_dynamic
        )

    @property
    def timeout(self) -> float | None:
        timeout = self.handler.timeout
        return None if timeout is None else timeout.total_seconds()

    @property
    def is_strict(self) -> bool:
        return self.handler.claim == "strict"

    def judge(self, error: BaseException, envelope: Envelope) -> Verdict:
        """Return what becomes of a failed message: as its treatment says, else by the policy."""
        treatment = self.handler.treatment
        verdict = None if treatment is None else treatment.judge(error, envelope)
        return judge(error, envelope.attempt, self.policy) if verdict is None else verdict

    def begin_poll(self, limit: int) -> Poll:
        """Return the poll to make now; of several kinds always from the start of each."""
        treatment = self.handler.treatment
        kinds = () if treatment is None else tuple(treatment.kinds())
        if self.walk is not None:
            kinds = kinds or (self.queue.kind,)
        return self.schedule.begin(limit, kinds if self.walk is not None or len(kinds) > 1 else ())

    def end_poll(self, poll: Poll, result: PollResult) -> None:
        """Note what a poll found: when the next is worth it, and how overdue the queue is."""
        self.schedule.end(poll, result)
        self.share.overdue_since = -math.inf
        if result.is_full(poll) and result.latest is not None:
            self.share.overdue_since = result.latest

    def claim_steps(self, poll: Poll, lease_id: str, retaken_id: str) -> dict[str, Step]:
        """Return, by what it answers, each statement of a poll that leases what it finds.

        Of a queue with limits those before the claim, which is a transaction of its own.
        """
        if self.walk is not None:
            return {"rules": self.rules, **self._ahead(poll)}
        claim = self._claim(poll, lease_id, retaken_id)
        if not poll.asks_ahead:
            return {"claimed": claim}
        # Only before a sleep is it worth knowing why nothing was found.
        turn = {"is_alone": trying_alone(self.queue.kind)} if self.is_strict else {}
        return {**turn, "rules": self.rules, **self._ahead(poll), "claimed": claim}

    def _ahead(self, poll: Poll) -> dict[str, Step]:
        horizon = self.queue.poll_interval // MILLISECOND
        if not poll.asks_ahead:
            return {}
        if poll.kinds:
            return {"next_due_in": looking_ahead_ranked(poll.kinds, horizon)}
        return {"next_due_in": looking_ahead(self.queue.kind, horizon)}

    @property
    def ahead_share(self) -> float:
        """For how much of the usual time to lease ahead: briefly where others wait for their turn.

        And not where there is a rate.
        """
        if self.walk is None:
            return 1.0
        return 0.0 if self.is_rated else LIMITED_AHEAD

    def note_slot(self) -> None:
        """A lease has ended: where leases are limited, something else may be leased now."""
        if self.walk is not None:
            self.schedule.wake()

    def _claim(self, poll: Poll, lease_id: str, retaken_id: str) -> Step:
        lease = self.queue.lease_duration // MILLISECOND
        if poll.kinds:
            return claiming_ranked(
                self.queue.kind, poll.kinds, poll.limit, lease_id, retaken_id, lease
            )  # fmt: skip
        return claiming(
            self.queue.kind, poll.limit, lease_id, retaken_id, lease,
            floor=poll.position, strict=self.is_strict,
        )  # fmt: skip


def consumers_of(options: WorkerOptions, registry: Registry) -> list[Consumer]:
    """Return the consumers of the named queues, in their order, or of all with a handler."""
    if registry.failures:
        raise InvalidConfiguration(
            f"Handlers are missing. {' '.join(registry.failures.values())} Mend that, then start "
            "the worker again."
        )
    chosen: Iterable[Handler] = () if options.only_sourced else registry
    if options.queues:
        chosen = [registry.get(name) for name in options.queues]
    consumers = [consumer_of(each, options) for each in chosen]
    if not consumers and not (options.asks_sources and registry.sources):
        raise HandlerNotFound(
            "No handler is registered, so there is nothing to work on. Declare one with "
            "@handler in a module named handlers of an installed app."
        )
    return consumers


def consumer_of(handler: Handler, options: WorkerOptions, *, is_dynamic: bool = False) -> Consumer:
    queue = DelayedQueue(
        handler.queue,
        codec=handler.codec,
        kind=handler.kind,
        using=options.using,
        lease_duration=options.lease or handler.lease,
        poll_interval=options.poll_interval,
        retry_policy=handler.retry,
        claim=handler.claim,
    )
    limit = min(options.batch_size, handler.batch_size or options.batch_size)
    call, acall = wrap(handler), awrap(handler)
    return Consumer(handler, queue, queue.retry_policy, call, limit, acall, is_dynamic)


def declare_groups(consumers: Iterable[Consumer]) -> None:
    """Write the limits that handlers declare, where they declare others than the last time."""
    for consumer in consumers:
        consumer.queue.groups.declare(consumer.handler.groups)
        if consumer.handler.groups is not None:
            consumer.walk = GroupWalk()


def shortest_lease(consumers: list[Consumer]) -> float:
    """Return the seconds of the shortest lease, or of the default where there is no consumer."""
    leases = [consumer.queue.lease_duration for consumer in consumers]
    return min(leases, default=get_settings().LEASE_DURATION).total_seconds()


class DynamicQueues:
    """Many consumers of equal rank, of which most have nothing to do most of the time.

    A consumer that has found nothing twice is idle: it costs no more polls of its own. One
    statement every poll interval, the **idle scan**, finds out which of the idle have a message
    that is due within the next one; a ``NOTIFY`` wakes its consumer alone. Those that have
    something take turns.
    """

    def __init__(self, options: WorkerOptions, registry: Registry, reserved: Iterable[str]) -> None:
        self._options = options
        self._sources = registry.sources if options.asks_sources else ()
        # What has a consumer already, by a handler of its own.
        self._reserved = frozenset(reserved)
        self._consumers: dict[str, Consumer] = {}
        self._turns: list[Consumer] = []
        self.ask_at = 0.0
        self._idle_scan_at = 0.0
        self._full_at = 0.0
        for source in self._sources:
            source.prepare()

    def __iter__(self) -> Iterator[Consumer]:
        """Yield the consumers, the one that has waited longest for its turn first."""
        return iter(self._turns)

    @property
    def names(self) -> list[str]:
        """The sources, and which of their queues are wanted."""
        wanted = self._options.sourced
        of = f" of {', '.join(wanted)}" if wanted else ""
        return [source.name + of for source in self._sources]

    @property
    def wake_channels(self) -> list[str]:
        """The kinds by which sources announce a change."""
        return [source.wake_channel for source in self._sources]

    @property
    def next_at(self) -> float:
        """The monotonic time of the next question to a source, or idle scan."""
        return min(self.ask_at, self._idle_scan_at) if self._sources else IDLE

    def had_turn(self, consumer: Consumer) -> None:
        if consumer.is_dynamic:
            self._turns.remove(consumer)
            self._turns.append(consumer)

    def wake(self, kinds: set[str] | None) -> None:
        """Have consumers poll at once: of these kinds, or all that may have something."""
        if kinds is None:
            self.ask_at = self._idle_scan_at = self._full_at = 0.0
        elif kinds.intersection(self.wake_channels):
            self.ask_at = 0.0
        for consumer in self._turns:
            if not consumer.schedule.is_idle if kinds is None else consumer.queue.kind in kinds:
                consumer.schedule.wake()

    # Sources

    def ask(self) -> bool:
        """Ask the sources if it is time; return whether consumers came or went."""
        now = time.monotonic()
        if not self._sources or now < self.ask_at:
            return False
        self.ask_at = now + ASK_SECONDS
        known = self._consumers
        self._consumers = {consumer.queue.kind: consumer for consumer in self._wanted()}
        new = [
            consumer
            for consumer in self._consumers.values()
            if known.get(consumer.queue.kind) is not consumer
        ]
        if not new and len(known) == len(self._consumers):
            return False
        kept = [
            consumer
            for consumer in self._turns
            if self._consumers.get(consumer.queue.kind) is consumer
        ]
        self._turns = [*new, *kept]
        self._idle_scan_at = self._full_at = 0.0
        return True

    def _wanted(self) -> Iterator[Consumer]:
        for source in self._sources:
            for handler in self._handlers_of(source):
                known = self._consumers.get(handler.kind)
                if known is not None and known.handler == handler:
                    yield known
                elif handler.kind not in self._reserved:
                    yield self._consumer(handler)

    def _handlers_of(self, source: Source) -> list[Handler]:
        named = self._options.sourced
        try:
            found = list(source.handlers(self._options.using))
        except (Error, ResourceUnavailable):
            raise
        # It is others' code: a mistake there must not stop what it named before.
        except Exception as error:
            _report(source, error)
            return [consumer.handler for consumer in self._consumers.values()]
        return [each for each in found if named is None or each.queue in named]

    def _consumer(self, handler: Handler) -> Consumer:
        consumer = consumer_of(handler, self._options, is_dynamic=True)
        if handler.is_async:
            consumer.share.window = max(self._options.async_concurrency * FIRST_WINDOW, 1)
        return consumer

    # The idle scan

    def idle_scan(self) -> None:
        """Find out, if it is time, which of the idle consumers may have something to do."""
        now = time.monotonic()
        if not self._sources or now < self._idle_scan_at:
            return
        interval = self._options.poll_interval.total_seconds()
        idle = [consumer for consumer in self._turns if consumer.schedule.is_idle]
        is_full = now >= self._full_at
        self._idle_scan_at = now + interval
        if not idle:
            return
        floors = [NO_FLOOR if is_full else consumer.schedule.rewound_position for consumer in idle]
        waits = Message.objects.next_due_of_kinds(
            [consumer.queue.kind for consumer in idle],
            floors,
            self._options.poll_interval // MILLISECOND,
            using=self._options.using,
        )
        if is_full:
            # As with a consumer's own polls: what is behind the scan positions is read rarely where
            # it is dear, which is only under an old snapshot.
            pause = DEEP_POLL_SHARE * (time.monotonic() - now)
            self._full_at = now + min(pause, FULL_SCAN_INTERVALS * interval)
        for consumer in idle:
            if (wait := waits.get(consumer.queue.kind)) is not None:
                consumer.schedule.wake(now + wait / 1000)


def _report(source: Source, error: Exception) -> None:
    log(logging.ERROR, "source_failed", error, source=source.name)
