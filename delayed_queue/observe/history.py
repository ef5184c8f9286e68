"""The history of queues: what workers count, the samples made of it, and how they are read."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from heapq import nlargest
from itertools import pairwise
from typing import Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import write_by_halves
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND
from delayed_queue.observe import store
from delayed_queue.observe.overview import MAX_KINDS, QueueDepth, estimated_depths, find_kinds
from delayed_queue.observe.store import BucketRow, CountsRow, DepthRow, StepRow, Window

MINUTE: Final = timedelta(minutes=1)
_MINUTE_MS: Final = 60_000
# Of how many queues one worker tells what it did in a minute: of the busiest.
MAX_COUNTED: Final = 200

# A histogram's bucket is the number of bits of the milliseconds, so that each is twice as wide as
# the one before; a stored one has 32 of lateness, then 32 of run times, and 25 bits to count.
_BUCKETS: Final = 32
_COUNT_BITS: Final = 25
_MOST: Final = 2**_COUNT_BITS - 1
_MAX_INT: Final = 2**31 - 1


class Tally:
    """A worker's counts of a queue since it began, added to by its claim loop, a batch at a time.

    Numbers only grow: who tells of them, from another thread, remembers what it has told. Of
    lateness and run times it counts how many have so many bits, in milliseconds.
    """

    __slots__ = ("died", "done", "failed", "kind", "lateness", "runs")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.done = self.failed = self.died = 0
        self.lateness: Counter[int] = Counter()
        self.runs: Counter[int] = Counter()

    def note_lateness(self, milliseconds: Sequence[int]) -> None:
        _note(self.lateness, milliseconds, 1)

    def note_runs(self, seconds: Sequence[float]) -> None:
        _note(self.runs, seconds, 1000)


def _note(counted: Counter[int], values: Sequence[float], scale: int) -> None:
    if not values:
        return
    # Mostly those of a batch are alike; looking at each took four times as long.
    least, most = _bits(min(values) * scale), _bits(max(values) * scale)
    if least == most:
        counted[least] += len(values)
    else:
        counted.update([_bits(each * scale) for each in values])


def _bits(milliseconds: float) -> int:
    return max(int(milliseconds), 0).bit_length()


class _Told(NamedTuple):
    """What a worker has told of a queue so far."""

    done: int = 0
    failed: int = 0
    died: int = 0
    lateness: Mapping[int, int] = {}
    runs: Mapping[int, int] = {}


def _told(tally: Tally) -> _Told:
    return _Told(tally.done, tally.failed, tally.died, dict(tally.lateness), dict(tally.runs))


def _since(kind: str, before: _Told, now: _Told) -> CountsRow:
    """Return what was counted in between, as it is stored."""
    return CountsRow(
        kind,
        now.done - before.done,
        now.failed - before.failed,
        now.died - before.died,
        _packed(_gained(before.lateness, now.lateness), _gained(before.runs, now.runs)),
    )


def _gained(before: Mapping[int, int], now: Mapping[int, int]) -> Counter[int]:
    """Return how many more there are of each width; a last bucket has all that are wider."""
    gained: Counter[int] = Counter()
    for bits, count in now.items():
        gained[min(bits, _BUCKETS - 1)] += count - before.get(bits, 0)
    return gained


def _packed(lateness: Counter[int], runs: Counter[int]) -> str:
    """Return the histograms as the array that is stored, the second behind the first."""
    numbers = (
        ((base + bucket) << _COUNT_BITS) + min(count, _MOST)
        for base, histogram in ((0, +lateness), (_BUCKETS, +runs))
        for bucket, count in sorted(_trimmed(histogram).items())
    )
    return "{" + ",".join(map(str, numbers)) + "}"


def _trimmed(histogram: Mapping[int, int]) -> dict[int, int]:
    """Add the ends that are less than a thousandth to what is beside them: samples stay narrow."""
    least, found = sum(histogram.values()) / 1000, dict(histogram)
    for order in (sorted(found), sorted(found, reverse=True)):
        for end, beside in pairwise(order):
            if found[end] >= least:
                break
            found[beside] += found.pop(end)
    return found


class Sampler:
    """Tells once a minute what a worker has counted; the first of all measures how full queues are.

    Lives on the heartbeat's thread and connection. Of a process that is killed its last minute is
    lost; an answer that was lost may have the counts of a minute added twice.
    """

    def __init__(self, using: str, alive: timedelta) -> None:
        self._using = using
        self._alive = alive
        self._told: dict[Tally, _Told] = {}
        self._next_at = 0.0

    def look(self, tallies: Iterable[Tally], *, is_last: bool = False) -> None:
        """Write what there is to tell if a minute is over, or nothing will be told later."""
        if get_settings().SAMPLE_RETENTION is None:
            return
        current = set(tallies)
        for each in current:
            self._told.setdefault(each, _Told())
        if not is_last and time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + MINUTE.total_seconds()
        try:
            busiest = self._tell(current)
            if not is_last:
                self._measure(busiest)
        except Error as error:
            # The next minute's is told with it.
            log(logging.WARNING, "sample_failed", error=described(error))
            connections[self._using].close()

    def _tell(self, current: set[Tally]) -> list[str]:
        """Add what was counted to the minute's samples; return the kinds."""
        now = {each: _told(each) for each in self._told}
        rows = [_since(each.kind, before, now[each]) for each, before in self._told.items()]
        busy = [row for row in rows if row[1:] != (0, 0, 0, "{}")]
        busiest = nlargest(MAX_COUNTED, busy, key=lambda row: sum(row[1:4]))
        write_by_halves(busiest, partial(store.add_counts, using=self._using), _refused)
        # Of queues that are served no longer, all is told.
        self._told = {each: told for each, told in now.items() if each in current}
        return [row.kind for row in busiest]

    def _measure(self, busiest: Sequence[str]) -> None:
        with transaction.atomic(using=self._using):
            now, minute = store.take_minute(self._alive // MILLISECOND, using=self._using)
            if minute is not None:
                found, _ = find_kinds(self._using)
                kinds = list(dict.fromkeys([*busiest, *found]))[:MAX_KINDS]
                measured = estimated_depths(kinds, using=self._using)
                full = [_row_of(each) for each in measured if not each.is_empty]
                write_by_halves(full, partial(self._note_depths, minute), _refused)
        self._next_at = time.monotonic() + (_MINUTE_MS - now % _MINUTE_MS) / 1000

    def _note_depths(self, minute: int, rows: Sequence[DepthRow]) -> None:
        with transaction.atomic(using=self._using):
            store.note_depths(minute, rows, using=self._using)


def _refused(row: CountsRow | DepthRow, error: Error) -> None:
    """Log the sample of a queue that the database refuses; those of the others are written."""
    log(logging.WARNING, "sample_failed", kind=row.kind, error=described(error))


def _row_of(depth: QueueDepth) -> DepthRow:
    late = 0 if depth.oldest_due_age is None else int(depth.oldest_due_age.total_seconds())
    due, scheduled, leased, dead = (min(each.value, _MAX_INT) for each in depth.counts.values())
    return DepthRow(depth.kind, due, scheduled, leased, dead, min(late, _MAX_INT))


# Reading


@dataclass(slots=True)
class Step:
    """So many minutes of a queue; what nobody measured is None.

    ``came_in`` is reckoned: what left, and by how much there is more than before.
    """

    minute: int
    width: int = 1
    is_sampled: bool = False
    due: int | None = None
    scheduled: int | None = None
    leased: int | None = None
    dead: int | None = None
    late: int | None = None
    stored: int | None = None
    done: int = 0
    failed: int = 0
    died: int = 0
    came_in: int | None = None
    lateness: dict[int, int] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)


class Deploy(NamedTuple):
    """A minute in which workers of another version were there."""

    minute: int
    version: str


@dataclass(frozen=True, slots=True)
class History:
    """The steps of a queue in a window, and the deploys in it."""

    window: Window
    steps: list[Step]
    deploys: list[Deploy]


def window_of(span: timedelta, step: timedelta, *, using: str = DEFAULT_DB_ALIAS) -> Window:
    """Return the whole steps up to the minute that is over."""
    minute, _ = store.last_sampled(using=using)
    width = step // MINUTE
    # The last step is filling, but for steps of a minute, of which the last may not be told yet.
    until = (minute // width + 1) * width if width > 1 else minute
    return Window(until - span // MINUTE, until, width)


def read(kind: str, window: Window, *, exact_to: int, using: str = DEFAULT_DB_ALIAS) -> History:
    """Return a queue's history; counts of ``exact_to`` and more were estimated."""
    # With the step before, by which it is reckoned what came in during the first.
    wide = window._replace(since=window.since - window.step)
    steps = {each: Step(each, wide.step) for each in range(wide.since, wide.until, wide.step)}
    rows = store.history(kind, wide, using=using)
    sampled = store.sampled(wide, using=using)
    has_depths = any(row.due is not None for row in rows) or not rows
    for each, _ in sampled:
        if step := steps.get(each * window.step):
            _note_sampled(step, is_measured=has_depths)
    for row in rows:
        if step := steps.get(row.step * window.step):
            _note_row(step, row)
    for found in store.histograms(kind, wide, using=using):
        if step := steps.get(found.step * window.step):
            _note_bucket(step, found)
    for before, step in pairwise(steps.values()):
        step.came_in = _came_in(before.stored, step, exact_to)
    return History(window, list(steps.values())[1:], _deploys(sampled, window.step))


def _note_sampled(step: Step, *, is_measured: bool) -> None:
    """Note that somebody measured: then a queue without a row was empty."""
    step.is_sampled = True
    if is_measured:
        step.due = step.scheduled = step.leased = step.dead = step.late = step.stored = 0


def _note_row(step: Step, row: StepRow) -> None:
    step.done, step.failed, step.died = row.done, row.failed, row.died
    if row.due is not None:
        step.due, step.scheduled, step.leased = row.due, row.scheduled, row.leased
        step.dead, step.late, step.stored = row.dead, row.late, row.stored


def _note_bucket(step: Step, found: BucketRow) -> None:
    is_run, bucket = divmod(found.bucket, _BUCKETS)
    (step.runs if is_run else step.lateness)[bucket] = found.number


def _came_in(before: int | None, step: Step, exact_to: int) -> int | None:
    if before is None or step.stored is None or max(before, step.stored) >= exact_to:
        return None
    return max(step.stored - before + step.done + step.died, 0)


def _deploys(sampled: Sequence[store.SampledRow], width: int) -> list[Deploy]:
    found: list[Deploy] = []
    known: set[str] = set()
    for step, versions in sampled:
        now = set((versions or "").split(", ")) - {""}
        if known:
            found += [Deploy(step * width, each) for each in sorted(now - known)]
        known = now or known
    return found


def quantile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the milliseconds that so large a share is below; None of nothing.

    Within a bucket as if all of it were spread evenly: half of the true value at worst, or twice.
    """
    rank = share * sum(histogram.values())
    for bucket, count in sorted(histogram.items()):
        if rank <= count and count:
            low = 2 ** (bucket - 1) if bucket else 0
            return low + (2**bucket - low) * rank / count if bucket else 0.0
        rank -= count
    return None


def trends(
    kinds: Sequence[str], minutes: int, *, using: str = DEFAULT_DB_ALIAS
) -> tuple[dict[str, list[Step]], int, int | None]:
    """Return the last minutes of each queue, which minute it is, and which was sampled last."""
    now, last = store.last_sampled(using=using)
    window = Window(now - minutes, now, 1)
    sampled = {each.step for each in store.sampled(window, using=using)}
    found = {kind: [Step(each) for each in range(window.since, now)] for kind in kinds}
    for steps in found.values():
        for step in steps:
            if step.minute in sampled:
                _note_sampled(step, is_measured=True)
    for row in store.trends(kinds, window, using=using):
        step = found[row.kind][row.minute - window.since]
        if row.due is not None:
            step.due, step.late = row.due, row.late
    return found, now, last
