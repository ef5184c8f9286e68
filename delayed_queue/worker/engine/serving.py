"""The queues that a worker serves: those with handlers, and those that sources name."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from delayed_queue.batch import one_by_one
from delayed_queue.conf import get_settings
from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import is_unavailable
from delayed_queue.declaring import check_linger
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration
from delayed_queue.facade import DelayedQueue
from delayed_queue.handlers import Handler, Registry, Source
from delayed_queue.instruments import awrap, wrap
from delayed_queue.logs import log
from delayed_queue.messages import MILLISECOND, to_milliseconds
from delayed_queue.queue.group_claims import GroupWalk
from delayed_queue.queue.models import Message
from delayed_queue.queue.store.claim import NO_FLOOR
from delayed_queue.worker.engine.consumers import Consumer
from delayed_queue.worker.engine.scanning import IDLE, full_scan_pause
from delayed_queue.worker.options import WorkerOptions

# Seconds between two queries to a source, if no NOTIFY announces a change.
ASK_SECONDS: Final = 5.0


def consumers_of(options: WorkerOptions, registry: Registry) -> list[Consumer]:
    """Return the consumers of the named queues, in their order, or of all with a handler."""
    if registry.failures:
        raise InvalidConfiguration(
            f"Handlers are missing. {' '.join(registry.failures.values())} Correct "
            "this, then start the worker again."
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
    if handler.many:
        return _batch_consumer_of(handler, queue, options)
    limit = min(options.batch_size, handler.batch_size or options.batch_size)
    call, acall = wrap(handler), awrap(handler)
    return Consumer(
        handler, queue, queue.retry_policy, call, limit, acall, is_dynamic=is_dynamic
    )  # fmt: skip


def _batch_consumer_of(handler: Handler, queue: DelayedQueue, options: WorkerOptions) -> Consumer:
    check_linger(handler.linger, queue.lease_duration)
    call_many = wrap(handler)
    call = one_by_one(call_many, is_async=handler.is_async)
    limit = handler.batch_size or options.batch_size
    return Consumer(handler, queue, queue.retry_policy, call, limit, call, call_many)


def declare_groups(consumer: Consumer) -> None:
    """Write the limits that the handler declares, if they have changed."""
    consumer.queue.groups.declare(consumer.handler.groups)
    if consumer.handler.groups is not None:
        consumer.walk = GroupWalk()
    consumer.is_declared = True


class Turns:
    """The consumers of a worker, in the order in which they may claim.

    Named queues come by priority. Others take turns by rounds, in each of which every consumer
    that has something claims once, the most overdue first. The dynamic queues as a whole take
    turns with them.
    """

    def __init__(self, options: WorkerOptions, registry: Registry) -> None:
        self._options = options
        self.fixed = consumers_of(options, registry)
        self.dynamic = DynamicQueues(options, registry, [each.queue.kind for each in self.fixed])
        self._is_dynamic_turn = False

    @property
    def all(self) -> list[Consumer]:
        return [*self.fixed, *self.dynamic.turns]

    @property
    def kinds(self) -> list[str]:
        """The kinds and channels whose notifications wake the worker."""
        return [*self.dynamic.wake_channels, *(each.queue.kind for each in self.all)]

    @property
    def next_at(self) -> float:
        """The monotonic time of the next poll or idle scan."""
        return min(self.dynamic.next_at, *(each.schedule.next_at for each in self.all), IDLE)

    @property
    def shortest_lease(self) -> float:
        """The seconds of the shortest lease, or of the default without a consumer."""
        leases = [consumer.queue.lease_duration for consumer in self.all]
        return min(leases, default=get_settings().LEASE_DURATION).total_seconds()

    @property
    def _has_rounds(self) -> bool:
        return not self._options.queues and len(self.fixed) > 1

    def __iter__(self) -> Iterator[Consumer]:
        fixed = sorted(self.fixed, key=_rank) if self._has_rounds else self.fixed
        dynamic = self.dynamic.turns
        return chain(dynamic, fixed) if self._is_dynamic_turn else chain(fixed, dynamic)

    def record(self, consumer: Consumer) -> None:
        """Record that a consumer had its turn."""
        if consumer.is_dynamic:
            self.dynamic.had_turn(consumer)
        self._is_dynamic_turn = not consumer.is_dynamic
        if consumer.share.had_turn:  # the others that have something had theirs: the next round
            for each in self.fixed:
                each.share.had_turn = False
        consumer.share.had_turn = not consumer.is_dynamic

    def read_overdue(self) -> None:
        """Read how overdue the queues are, where that decides about the first turns."""
        if not self._has_rounds:
            return
        using = self._options.using
        kinds = [consumer.queue.kind for consumer in self.fixed]
        waits = Message.objects.next_due_of_kinds(kinds, [NO_FLOOR] * len(kinds), 0, using=using)
        now = to_milliseconds(database_now(using))
        for consumer in self.fixed:
            consumer.share.overdue_since = now + waits.get(consumer.queue.kind, 0)

    def wake(self, kinds: set[str] | None = None) -> None:
        """Poll at once: the queues of these kinds, or all."""
        for consumer in self.fixed:
            if kinds is None or consumer.queue.kind in kinds:
                consumer.schedule.wake()
        self.dynamic.wake(kinds)

    def scan_fully(self, since: float) -> bool:
        """Scan every queue from its start, unless that was done since; return whether it will be.

        A message that committed late, or was locked, may lie below where polls begin.
        """
        are_scanned = [consumer.schedule.scan_fully(since) for consumer in self.all]
        return self.dynamic.scan_fully(since) or any(are_scanned)


def _rank(consumer: Consumer) -> tuple[bool, float]:
    return consumer.share.had_turn, consumer.share.overdue_since


class DynamicQueues:
    """Many consumers of equal rank, most of which have nothing to do most of the time.

    A consumer that has found nothing twice is idle and polls no more. One statement every poll
    interval, the **idle scan**, finds the idle ones with a message due within the next interval. A
    ``NOTIFY`` wakes its consumer alone. Consumers that have something take turns.
    """

    def __init__(self, options: WorkerOptions, registry: Registry, reserved: Iterable[str]) -> None:
        self._options = options
        self.sources = registry.sources if options.asks_sources else ()
        # Kinds that have a handler of their own.
        self._reserved = frozenset(reserved)
        self._consumers: dict[str, Consumer] = {}
        # The consumer that has waited longest comes first.
        self.turns: list[Consumer] = []
        self.ask_at = 0.0
        self._idle_scan_at = 0.0
        self._full_at = 0.0
        self._scanned_at = -math.inf
        for source in self.sources:
            source.prepare()

    @property
    def names(self) -> list[str]:
        """The names of the sources, and the wanted queues of them."""
        wanted = self._options.sourced
        of = f" of {', '.join(wanted)}" if wanted else ""
        return [source.name + of for source in self.sources]

    @property
    def wake_channels(self) -> list[str]:
        """The channels on which sources announce changes."""
        return [source.wake_channel for source in self.sources]

    @property
    def next_at(self) -> float:
        """The monotonic time of the next query to a source, or idle scan."""
        return min(self.ask_at, self._idle_scan_at) if self.sources else IDLE

    def had_turn(self, consumer: Consumer) -> None:
        self.turns.remove(consumer)
        self.turns.append(consumer)

    def wake(self, kinds: set[str] | None) -> None:
        """Poll at once: the queues of these kinds, or all that may have something."""
        if kinds is None:
            self.ask_at = self._idle_scan_at = self._full_at = 0.0
        elif kinds.intersection(self.wake_channels):
            self.ask_at = 0.0
        for consumer in self.turns:
            if not consumer.schedule.is_idle if kinds is None else consumer.queue.kind in kinds:
                consumer.schedule.wake()

    # Sources

    def ask(self) -> bool:
        """Query the sources if it is time; return whether consumers came or went."""
        now = time.monotonic()
        if not self.sources or now < self.ask_at:
            return False
        self.ask_at = now + ASK_SECONDS
        found = {consumer.queue.kind: consumer for consumer in self._wanted()}
        if found == self._consumers:
            return False
        self._consumers = found
        known, wanted = set(self.turns), set(found.values())
        new = [each for each in found.values() if each not in known]
        self.turns = [*new, *(each for each in self.turns if each in wanted)]
        self._idle_scan_at = self._full_at = 0.0
        return True

    def _wanted(self) -> Iterator[Consumer]:
        for source in self.sources:
            for handler in self._handlers_of(source):
                known = self._consumers.get(handler.kind)
                if known is not None and known.handler == handler:
                    yield known
                elif handler.kind not in self._reserved:
                    yield consumer_of(handler, self._options, is_dynamic=True)

    def _handlers_of(self, source: Source) -> list[Handler]:
        named = self._options.sourced
        try:
            found = list(source.handlers(self._options.using))
        # The source's code, or a table that the worker may not read. The queues that it named
        # before are still served.
        except Exception as error:
            if is_unavailable(error):
                raise
            log(logging.ERROR, "source_failed", error, source=source.name)
            return [consumer.handler for consumer in self._consumers.values()]
        return [each for each in found if named is None or each.queue in named]

    # The idle scan

    def scan_fully(self, since: float) -> bool:
        """Make the next idle scan a full one, unless there was one since; return whether it is."""
        if not self.sources or self._scanned_at >= since:
            return False
        self._idle_scan_at = self._full_at = 0.0
        return True

    def idle_scan(self) -> None:
        """Wake, if it is time, the idle consumers that may have something."""
        now = time.monotonic()
        if not self.sources or now < self._idle_scan_at:
            return
        interval = self._options.poll_interval.total_seconds()
        idle = [consumer for consumer in self.turns if consumer.schedule.is_idle]
        is_full = now >= self._full_at
        self._idle_scan_at = now + interval
        if is_full:
            self._scanned_at = now
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
            # As for a consumer's own polls: rare if full scans are slow, as under an old snapshot.
            self._full_at = now + full_scan_pause(time.monotonic() - now, interval)
        for consumer in idle:
            if (wait := waits.get(consumer.queue.kind)) is not None:
                consumer.schedule.wake(now + wait / 1000)
