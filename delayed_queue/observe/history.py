"""The history of queues: counters of workers, the samples made of them, and reading them."""

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
from typing import Any, Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import write_by_halves
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND
from delayed_queue.observe import store
from delayed_queue.observe.overview import (
    EXACT,
    MAX_KINDS,
    QueueDepth,
    estimated_depths,
    find_kinds,
)
from delayed_queue.observe.store import CountsRow, DepthRow, Window

MINUTE: Final = timedelta(minutes=1)
_MINUTE_MS: Final = 60_000
# A worker reports at most this many queues a minute, the busiest.
MAX_COUNTED: Final = 200

# The bucket of a time is the number of bits of its milliseconds: each bucket is twice as wide as
# the one before. Buckets 0 to 31 count lateness, 32 to 63 run times. A stored element is a bucket
# and a count of 25 bits.
_BUCKETS: Final = 32
_COUNT_BITS: Final = 25
_MAX_COUNT: Final = 2**_COUNT_BITS - 1
_MAX_INT: Final = 2**31 - 1
# A step without a row: six unknown depths, four counts.
_UNCOUNTED: Final = (*[None] * 6, *[0] * 4)


class _Totals(NamedTuple):
    """A copy of a worker's counters of a queue."""

    done: int = 0
    failed: int = 0
    died: int = 0
    expired: int = 0
    times: Counter[int] = Counter()


class Tally:
    """A worker's counters of a queue, which only grow.

    The claim loop adds to them a batch at a time; the heartbeat's thread copies them.
    """

    __slots__ = ("died", "done", "expired", "failed", "kind", "times")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.done = self.failed = self.died = self.expired = 0
        # Times by bucket.
        self.times: Counter[int] = Counter()

    def note_lateness(self, milliseconds: Sequence[int]) -> None:
        _count(self.times, milliseconds, scale=1, first=0)

    def note_runs(self, seconds: Sequence[float]) -> None:
        _count(self.times, seconds, scale=1000, first=_BUCKETS)

    def totals(self) -> _Totals:
        return _Totals(self.done, self.failed, self.died, self.expired, self.times.copy())


def _count(counted: Counter[int], values: Sequence[float], *, scale: int, first: int) -> None:
    """Count the values by bucket; ``first`` is the number of the first bucket."""
    if not values:
        return
    # The values of a batch are mostly alike: counting one by one takes four times as long.
    least, most = _bucket(min(values) * scale), _bucket(max(values) * scale)
    if least == most:
        counted[first + least] += len(values)
    else:
        counted.update([first + _bucket(each * scale) for each in values])


def _bucket(milliseconds: float) -> int:
    return min(max(int(milliseconds), 0).bit_length(), _BUCKETS - 1)


def _gained(kind: str, before: _Totals, now: _Totals) -> CountsRow:
    """Return the difference of two copies as it is stored."""
    counts = zip(before[:4], now[:4], strict=True)
    done, failed, died, expired = (after - at for at, after in counts)
    return CountsRow(kind, done, failed, died, _packed(now.times - before.times), expired or None)


def _packed(times: Counter[int]) -> str:
    """Return the histograms as the array literal that is stored."""
    lateness = {bucket: count for bucket, count in times.items() if bucket < _BUCKETS}
    runs = {bucket: count for bucket, count in times.items() if bucket >= _BUCKETS}
    numbers = (
        (bucket << _COUNT_BITS) + min(count, _MAX_COUNT)
        for histogram in (lateness, runs)
        for bucket, count in sorted(_trimmed(histogram).items())
    )
    return "{" + ",".join(map(str, numbers)) + "}"


def _trimmed(histogram: Mapping[int, int]) -> dict[int, int]:
    """Merge end buckets of less than a thousandth into their neighbours: samples stay narrow."""
    least, found = sum(histogram.values()) / 1000, dict(histogram)
    for order in (sorted(found), sorted(found, reverse=True)):
        for end, beside in pairwise(order):
            if found[end] >= least:
                break
            found[beside] += found.pop(end)
    return found


class Sampler:
    """Writes a worker's counts once a minute; the first worker measures the depths of queues.

    Runs on the heartbeat's thread and connection. A killed process loses its last minute. After a
    lost answer, the counts of a minute may be added twice.
    """

    def __init__(self, using: str, alive: timedelta) -> None:
        self._using = using
        self._alive = alive
        self._written: dict[Tally, _Totals] = {}
        self._next_at = 0.0

    def look(self, tallies: Iterable[Tally], *, is_last: bool = False) -> None:
        """Write the counts if a minute is over, or if no later call will."""
        if get_settings().SAMPLE_RETENTION is None:
            return
        current = set(tallies)
        for each in current:
            self._written.setdefault(each, _Totals())
        if not is_last and time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + MINUTE.total_seconds()
        try:
            busiest = self._write(current)
            if not is_last:
                self._measure(busiest)
        except Error as error:
            # The next minute includes these counts.
            log(logging.WARNING, "sample_failed", error=described(error))
            connections[self._using].close()

    def _write(self, current: set[Tally]) -> list[str]:
        """Add the new counts to the samples; return the kinds."""
        now = {each: each.totals() for each in self._written}
        rows = [_gained(each.kind, before, now[each]) for each, before in self._written.items()]
        busy = [row for row in rows if row != CountsRow(row.kind, 0, 0, 0, "{}")]
        busiest = nlargest(MAX_COUNTED, busy, key=lambda row: sum(row[1:4]))
        write_by_halves(busiest, partial(store.add_counts, using=self._using), _refused)
        # Queues that are no longer served have now been written completely.
        self._written = {each: totals for each, totals in now.items() if each in current}
        return [row.kind for row in busiest]

    def _measure(self, busiest: Sequence[str]) -> None:
        with transaction.atomic(using=self._using):
            now, minute = store.take_minute(self._alive // MILLISECOND, using=self._using)
            if minute is not None:
                found, _ = find_kinds(self._using)
                kinds = list(dict.fromkeys([*busiest, *found]))[:MAX_KINDS]
                measured = estimated_depths(kinds, using=self._using)
                full = [_row_of(each) for each in measured if not each.is_empty]
                write_by_halves(full, partial(self._save_depths, minute), _refused)
        self._next_at = time.monotonic() + (_MINUTE_MS - now % _MINUTE_MS) / 1000

    def _save_depths(self, minute: int, rows: Sequence[DepthRow]) -> None:
        with transaction.atomic(using=self._using):
            store.save_depths(minute, rows, using=self._using)


def _refused(row: CountsRow | DepthRow, error: Error) -> None:
    """Log the sample of a queue that the database refused; the others are written."""
    log(logging.WARNING, "sample_failed", kind=row.kind, error=described(error))


def _row_of(depth: QueueDepth) -> DepthRow:
    late = 0 if depth.oldest_due_age is None else int(depth.oldest_due_age.total_seconds())
    due, scheduled, leased, dead = (min(each.value, _MAX_INT) for each in depth.counts.values())
    return DepthRow(depth.kind, due, scheduled, leased, dead, min(late, _MAX_INT))


# Reading


@dataclass(slots=True)
class Step:
    """Some minutes of a queue; None where nothing was measured."""

    minute: int
    width: int
    is_sampled: bool
    due: int | None
    scheduled: int | None
    leased: int | None
    dead: int | None
    late: int | None
    stored: int | None
    done: int
    failed: int
    died: int
    expired: int
    # Derived from departures and growth.
    came_in: int | None = None
    lateness: dict[int, int] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)


class Deploy(NamedTuple):
    """The first minute with workers of another version."""

    minute: int
    version: str


@dataclass(frozen=True, slots=True)
class History:
    """The steps of a queue in a window, and the deploys in it."""

    window: Window
    steps: list[Step]
    deploys: list[Deploy]


def window_of(span: timedelta, step: timedelta, *, using: str = DEFAULT_DB_ALIAS) -> Window:
    """Return the whole steps up to the last full minute."""
    minute, _ = store.last_sampled(using=using)
    width = step // MINUTE
    # Includes the current step, except for steps of a minute, which may not be written yet.
    until = (minute // width + 1) * width if width > 1 else minute
    return Window(until - span // MINUTE, until, width)


def read(kind: str, window: Window, *, using: str = DEFAULT_DB_ALIAS) -> History:
    """Return a queue's history."""
    # The step before the window gives the growth of its first step.
    wide = window._replace(since=window.since - window.step)
    sampled = store.sampled(wide, using=using)
    steps = _steps([kind], wide, sampled, using)[kind]
    for minute, place, count in store.histograms(kind, wide, using=using):
        is_run, bucket = divmod(place, _BUCKETS)
        (steps[minute].runs if is_run else steps[minute].lateness)[bucket] = count
    for before, step in pairwise(steps.values()):
        step.came_in = _came_in(before.stored, step)
    return History(window, list(steps.values())[1:], _deploys(sampled))


def trends(
    kinds: Sequence[str], minutes: int, *, using: str = DEFAULT_DB_ALIAS
) -> tuple[dict[str, list[Step]], int, int | None]:
    """Return the last minutes of each queue, the current minute, and the last sampled one."""
    now, last = store.last_sampled(using=using)
    window = Window(now - minutes, now, 1)
    found = _steps(kinds, window, store.sampled(window, using=using), using)
    return {kind: list(steps.values()) for kind, steps in found.items()}, now, last


def _steps(
    kinds: Sequence[str], window: Window, sampled: Mapping[int, str | None], using: str
) -> dict[str, dict[int, Step]]:
    """Return the steps of each queue by their first minute."""
    rows = store.history(kinds, window, using=using)
    # A queue that is counted but never measured is not empty: its depth is unknown.
    measured = {kind for (kind, _), (due, *_) in rows.items() if due is not None}
    unknown = {kind for kind, _ in rows} - measured
    return {
        kind: {
            minute: _step(
                minute, window.step, rows.get((kind, minute), _UNCOUNTED),
                is_sampled=minute in sampled, is_unknown=kind in unknown,
            )
            for minute in range(window.since, window.until, window.step)
        }
        for kind in kinds
    }  # fmt: skip


def _step(
    minute: int, width: int, measured: Sequence[Any], *, is_sampled: bool, is_unknown: bool
) -> Step:
    depths, counts = measured[:6], measured[6:]
    if depths[0] is None and is_sampled and not is_unknown:
        depths = [0] * 6
    return Step(minute, width, is_sampled, *depths, *counts)


def _came_in(before: int | None, step: Step) -> int | None:
    """Return the arrivals; unknown where the depths were estimated."""
    if before is None or step.stored is None or max(before, step.stored) >= EXACT:
        return None
    return max(step.stored - before + step.done + step.died + step.expired, 0)


def _deploys(sampled: Mapping[int, str | None]) -> list[Deploy]:
    found: list[Deploy] = []
    known: set[str] = set()
    for minute, versions in sampled.items():
        now = set((versions or "").split(", ")) - {""}
        if known:
            found += [Deploy(minute, each) for each in sorted(now - known)]
        known = now or known
    return found


def quantile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the milliseconds below which that share lies; None without values.

    Assumes an even spread within a bucket: the result is off by a factor of two at most.
    """
    rank = share * sum(histogram.values())
    for bucket, count in sorted(histogram.items()):
        if rank <= count and count:
            low = 2 ** (bucket - 1) if bucket else 0
            return low + (2**bucket - low) * rank / count if bucket else 0.0
        rank -= count
    return None
