"""What the worker is to reach against its peers, and what a record says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.peers.recording import Record

OURS: Final = "ours-best"
DEFAULTS: Final = "ours-defaults"
ONE: Final = "ours-1"
TRANSACTIONAL: Final = "ours-transactional"
GROUPED: Final = "ours-groups-1"
KEPT: Final = "tasks-kept"
UNKEPT: Final = "tasks-unkept"


@dataclass(frozen=True, slots=True)
class Aim:
    """A rate of ours over the best of some rivals: at least so much."""

    title: str
    ours: str
    measure: str
    figure: str
    processes: int
    least: float
    rivals: Callable[[Record], list[str]]

    def ratio(self, record: Record) -> tuple[float, str] | None:
        """Return the ratio to the best rival and its name, or None where either is missing."""
        rivals = [
            each
            for each in self.rivals(record)
            if record.median(each, self.measure, self.figure, self.processes) is not None
        ]
        if not rivals or not record.median(self.ours, self.measure, self.figure, self.processes):
            return None
        best = record.best(rivals, self.measure, self.figure, self.processes)
        found = ratio(record, self.ours, best, self.measure, self.figure, self.processes)
        return None if found is None else (found, best)


def ratio(
    record: Record, one: str, other: str, measure: str, figure: str, processes: int
) -> float | None:
    """Return the median of the rounds' ratios: neighbours in time share the weather."""
    ours = record.figures(one, measure, figure, processes)
    theirs = record.figures(other, measure, figure, processes)
    if not ours or not theirs:
        return None
    if len(ours) != len(theirs):
        return median(ours) / median(theirs)
    return median(mine / its for mine, its in zip(ours, theirs, strict=True))


def _of(*names: str) -> Callable[[Record], list[str]]:
    """Return the contenders of those peers or kinds, or of those names."""

    def found(record: Record) -> list[str]:
        return [
            name
            for name, each in record.contenders.items()
            if {name, each["peer"], each["kind"]} & set(names)
            and (name in names or not each.get("at_a_time"))
        ]

    return found


def _python_one_by_one(at_most_once: bool) -> Callable[[Record], list[str]]:
    """Return the Python peers one at a time; those that may lose a message are another class."""

    def found(record: Record) -> list[str]:
        return [
            name
            for name, each in record.contenders.items()
            if each["batch"] == 1
            and each["kind"] in ("python", "django")
            and each["at_most_once"] == at_most_once
        ]

    return found


PEERS: Final = ("node", "python", "django")
ON_POSTGRES: Final = _of(*PEERS)
KEEPING: Final = _python_one_by_one(at_most_once=False)
BOSS_GROUPED: Final = _of("pg-boss-groups-1")
LOSING: Final = _python_one_by_one(at_most_once=True)


def _drain(
    title: str, ours: str, processes: int, least: float, rivals: Callable[[Record], list[str]]
) -> Aim:
    return Aim(title, ours, "drain", "rate", processes, least, rivals)


AIMS: Final = (
    _drain("drain, 1 process, against Graphile Worker", OURS, 1, 1.5, _of("graphile-worker")),
    _drain("drain, 1 process, against pg-boss", OURS, 1, 1.5, _of("pg-boss")),
    _drain("drain, 1 process, against PgQueuer", OURS, 1, 2.3, _of("pgqueuer")),
    _drain("drain, 1 process, against the bare loop", OURS, 1, 0.75, _of("bare-500")),
    _drain("drain, 4 processes, against Graphile Worker", OURS, 4, 1.4, _of("graphile-worker")),
    _drain("drain, 4 processes, against PgQueuer", OURS, 4, 1.9, _of("pgqueuer")),
    _drain("drain, 4 processes, against Django peers", OURS, 4, 50, _of("django")),
    _drain("drain, 4 processes, against the bare loop", OURS, 4, 0.75, _of("bare-500")),
    _drain("transactional, 1 process, against all peers", TRANSACTIONAL, 1, 2, ON_POSTGRES),
    _drain("transactional, 1 process, against leases", TRANSACTIONAL, 1, 1.8, _of(OURS)),
    _drain("transactional, 4 processes, against all peers", TRANSACTIONAL, 4, 2, ON_POSTGRES),
    _drain("transactional, 4 processes, against leases", TRANSACTIONAL, 4, 1.8, _of(OURS)),
    _drain("tasks, results kept, 1 process, against django-ox", KEPT, 1, 20, _of("django-ox")),
    _drain("tasks, results kept, 1 process, against Oban", KEPT, 1, 3, _of("oban")),
    _drain("tasks, results kept, 1 process, against handlers", KEPT, 1, 0.6, _of(DEFAULTS)),
    _drain("tasks, results not kept, 1 process, against handlers", UNKEPT, 1, 0.85, _of(DEFAULTS)),
    _drain("one at a time, 1 process, against Python peers", ONE, 1, 4, KEEPING),
    _drain("one at a time, 4 processes, against Python peers", ONE, 4, 4, KEEPING),
    _drain("one at a time, 1 process, against huey, at most once", ONE, 1, 4, LOSING),
    _drain("one at a time, 4 processes, against huey, at most once", ONE, 4, 4, LOSING),
    _drain("one at a time, 1 process, against the bare loop", ONE, 1, 0.75, _of("bare-1")),
    _drain("1 of a group, 1 process, against pg-boss", GROUPED, 1, 2, BOSS_GROUPED),
    _drain("1 of a group, 4 processes, against pg-boss", GROUPED, 4, 2, BOSS_GROUPED),
    Aim("offer, one by one", DEFAULTS, "offer", "single_rate", 1, 1.2, ON_POSTGRES),
    Aim("offer, in bulk", DEFAULTS, "offer", "bulk_rate", 1, 1.5, ON_POSTGRES),
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A figure of ours that is to stay below a value, and to be lower than that of any rival."""

    title: str
    measure: str
    figure: str
    most: float
    rivals: Callable[[Record], list[str]]

    def lowest(self, record: Record) -> str | None:
        """Return the rival with the lowest median, or None."""
        middles = {
            each: record.median(each, self.measure, self.figure) for each in self.rivals(record)
        }
        measured = {each: middle for each, middle in middles.items() if middle is not None}
        return min(measured, key=lambda each: measured[each]) if measured else None


BOUNDS: Final = (
    Bound("pick-up, p50, ms", "pickup", "p50_ms", 4, ON_POSTGRES),
    Bound("pick-up, p99, ms", "pickup", "p99_ms", 10, ON_POSTGRES),
    Bound("idle, % of a core", "idle", "percent", 1, ON_POSTGRES),
)


def reached(record: Record) -> Iterator[tuple[str, str, str, str]]:
    """Yield title, figure, aim and the best rival of each aim that was measured."""
    for aim in AIMS:
        found = aim.ratio(record)
        if found is not None:
            times, rival = found
            yield aim.title, _marked(times, times >= aim.least), f"≥ {aim.least:g}", rival
    for bound in BOUNDS:
        ours = record.median(DEFAULTS, bound.measure, bound.figure)
        if ours is not None:
            rival = bound.lowest(record) or ""
            theirs = record.median(rival, bound.measure, bound.figure)
            shown = "" if theirs is None else f"{rival}: {theirs:.2f}"
            yield bound.title, _marked(ours, ours < bound.most), f"< {bound.most:g}", shown


def _marked(value: float, is_reached: bool) -> str:
    return f"**{value:.2f}**" if is_reached else f"{value:.2f}"
