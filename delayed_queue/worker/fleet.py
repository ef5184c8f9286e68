"""The fleet: lanes of queues that sources name, which come and go while a worker runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Final

from django.db import Error

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.handlers import Handler, Registry, Source
from delayed_queue.messages import MILLISECOND
from delayed_queue.models import Message
from delayed_queue.observe.logs import quoted
from delayed_queue.queue.store.claim import NO_FLOOR
from delayed_queue.worker.lanes import DEEP_LOOK_SHARE, DOZING, FULL_LOOK_INTERVALS, Lane, lane_of
from delayed_queue.worker.options import WorkerOptions
from delayed_queue.worker.pools import FIRST_WINDOW

logger = logging.getLogger("delayed_queue")

# How often sources are asked where no NOTIFY says that they have changed.
ASK_SECONDS: Final = 5.0


class Fleet:
    """Many lanes of equal rank, of which most have nothing to do most of the time.

    A lane that has found nothing twice dozes: it costs no more looks of its own. One statement
    every poll interval, the **scout**, finds out which of the dozing have a message that is due
    within the next one; a ``NOTIFY`` wakes its lane alone. Lanes that have something take turns.
    """

    def __init__(self, options: WorkerOptions, registry: Registry, reserved: Iterable[str]) -> None:
        self._options = options
        self._sources = registry.sources if options.asks_sources else ()
        # What has a lane already, by a handler of its own.
        self._reserved = frozenset(reserved)
        self._lanes: dict[str, Lane] = {}
        self._turns: list[Lane] = []
        self._ask_at = 0.0
        self._scout_at = 0.0
        self._full_at = 0.0
        for source in self._sources:
            source.prepare()

    def __iter__(self) -> Iterator[Lane]:
        """Yield the lanes, the one that has waited longest for its turn first."""
        return iter(self._turns)

    @property
    def names(self) -> list[str]:
        """The sources, and which of their queues are wanted."""
        wanted = self._options.sourced
        of = f" of {', '.join(wanted)}" if wanted else ""
        return [source.name + of for source in self._sources]

    @property
    def bells(self) -> list[str]:
        """The kinds by which sources announce a change."""
        return [source.bell for source in self._sources]

    @property
    def next_at(self) -> float:
        """The monotonic time of the next question to a source or look of the scout."""
        return min(self._ask_at, self._scout_at) if self._sources else DOZING

    def had_turn(self, lane: Lane) -> None:
        if lane.is_shared:
            self._turns.remove(lane)
            self._turns.append(lane)

    def wake(self, kinds: set[str] | None) -> None:
        """Have lanes look at once: of these kinds, or all that may have something."""
        if kinds is None:
            self._ask_at = self._scout_at = self._full_at = 0.0
        elif kinds.intersection(self.bells):
            self._ask_at = 0.0
        for lane in self._turns:
            if not lane.is_dozing if kinds is None else lane.queue.kind in kinds:
                lane.wake()

    # Sources

    def ask(self) -> bool:
        """Ask the sources if it is time; return whether lanes came or went."""
        now = time.monotonic()
        if not self._sources or now < self._ask_at:
            return False
        self._ask_at = now + ASK_SECONDS
        known = self._lanes
        self._lanes = {lane.queue.kind: lane for lane in self._wanted()}
        new = [lane for lane in self._lanes.values() if known.get(lane.queue.kind) is not lane]
        if not new and len(known) == len(self._lanes):
            return False
        kept = [lane for lane in self._turns if self._lanes.get(lane.queue.kind) is lane]
        self._turns = [*new, *kept]
        self._scout_at = self._full_at = 0.0
        return True

    def _wanted(self) -> Iterator[Lane]:
        for source in self._sources:
            for handler in self._handlers_of(source):
                known = self._lanes.get(handler.kind)
                if known is not None and known.handler == handler:
                    yield known
                elif handler.kind not in self._reserved:
                    yield self._lane(handler)

    def _handlers_of(self, source: Source) -> list[Handler]:
        named = self._options.sourced
        try:
            found = list(source.handlers(self._options.using))
        except (Error, ResourceUnavailable):
            raise
        # It is others' code: a mistake there must not stop what it named before.
        except Exception as error:
            _report(source, error)
            return [lane.handler for lane in self._lanes.values()]
        return [each for each in found if named is None or each.queue in named]

    def _lane(self, handler: Handler) -> Lane:
        lane = lane_of(handler, self._options)
        lane.is_shared = True
        if handler.is_async:
            lane.window = max(self._options.async_concurrency * FIRST_WINDOW, 1)
        lane.look_at = DOZING  # the scout, who is due, knows better
        return lane

    # The scout

    def scout(self) -> None:
        """Look, if it is time, which of the dozing lanes may have something to do."""
        now = time.monotonic()
        if not self._sources or now < self._scout_at:
            return
        interval = self._options.poll_interval.total_seconds()
        dozing = [lane for lane in self._turns if lane.is_dozing]
        is_full = now >= self._full_at
        self._scout_at = now + interval
        if not dozing:
            return
        floors = [NO_FLOOR if is_full else lane.scout_floor for lane in dozing]
        waits = Message.objects.next_due_of_kinds(
            [lane.queue.kind for lane in dozing],
            floors,
            self._options.poll_interval // MILLISECOND,
            using=self._options.using,
        )
        if is_full:
            # As with a lane's own looks: what is behind the marks is looked at rarely where it
            # is dear, which is only under an old snapshot.
            pause = DEEP_LOOK_SHARE * (time.monotonic() - now)
            self._full_at = now + min(pause, FULL_LOOK_INTERVALS * interval)
        for lane in dozing:
            if (wait := waits.get(lane.queue.kind)) is not None:
                lane.rouse(now + wait / 1000)


def _report(source: Source, error: Exception) -> None:
    logger.error("event=source_failed source=%s", quoted(source.name), exc_info=error)
