"""Schedules declared in code: the registry, the decorator, and their written form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, time
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

from delayed_queue.codecs import Codec, check_kind, codec_named, kind_of
from delayed_queue.cron.rules import (
    MissedTicks,
    Schedule,
    ZonedSchedule,
    check_key_prefix,
    missed,
)
from delayed_queue.cron.schedules import (
    CronSchedule,
    DailySchedule,
    PeriodicSchedule,
    hour_text,
)
from delayed_queue.durations import UNITS, parse_duration, write_duration
from delayed_queue.exceptions import InvalidConfiguration, did_you_mean
from delayed_queue.messages import EPOCH

F = TypeVar("F", bound=Callable[[datetime], Any])


class Definition(NamedTuple):
    """A schedule as the table of schedules stores it."""

    type: str
    expression: str
    timezone: str = ""
    gap: str = "shift"
    fold: str = ""


def definition_of(schedule: Schedule) -> Definition:
    """Return the stored form of a schedule; ``schedule_in_advance`` and the like are not in it."""
    match schedule:
        case CronSchedule():
            name, text = "cron", schedule.expression
        case DailySchedule():
            name, text = "daily", ", ".join(hour_text(each) for each in schedule.hours)
        case PeriodicSchedule():
            return Definition("periodic", write_duration(schedule.period))
        case _:
            return Definition("other", repr(schedule))
    return Definition(name, text, schedule.timezone or "", schedule.gap, schedule.fold or "")


def schedule_of(definition: Definition) -> Schedule:
    """Return the schedule of a stored form, or raise InvalidConfiguration with the reason."""
    name, text, timezone, gap, fold = definition
    zoned: dict[str, Any] = {"timezone": timezone or None, "gap": gap or "shift"}
    if fold:
        zoned["fold"] = fold
    if name == "cron":
        return CronSchedule(text, **zoned)
    if name == "daily":
        return DailySchedule(hours=[_hour(each) for each in text.split(",")], **zoned)
    if name == "periodic":
        return PeriodicSchedule(parse_duration(text.strip()))
    raise InvalidConfiguration(f"A schedule is cron, daily or periodic, not {name!r}.")


def _hour(text: str) -> time:
    try:
        return time.fromisoformat(text.strip())
    except ValueError as error:
        raise InvalidConfiguration(f"{text.strip()!r} is not an hour such as 14:30.") from error


@dataclass(frozen=True, slots=True)
class CronEntry:
    """One schedule of ``DELAYED_QUEUE["CRON"]`` or of the decorator.

    ``schedule`` is a schedule, or a cron expression in ``timezone``. The payload of a tick is
    ``payload``, or the result of ``generator``, a function or its dotted path, for its time.
    """

    queue: str
    key_prefix: str
    schedule: Schedule | str
    timezone: str | None = None
    payload: Any = None
    generator: Callable[[datetime], Any] | str | None = None
    codec: str | Codec = "json"
    kind: str | None = None
    missed: MissedTicks | str = MissedTicks.LATEST
    missed_cap: int = 100
    declared_in: str = "settings"

    def __post_init__(self) -> None:
        codec = codec_named(self.codec)
        kind = kind_of(check_kind(self.queue), codec) if self.kind is None else self.kind
        object.__setattr__(self, "codec", codec)
        object.__setattr__(self, "kind", check_kind(kind))
        object.__setattr__(self, "schedule", self._checked_schedule())
        check_key_prefix(self.key_prefix)
        missed(PeriodicSchedule(UNITS["s"]), None, EPOCH, self.missed, self.missed_cap)
        if self.generator is not None and self.payload is not None:
            raise InvalidConfiguration("A schedule has a payload or a generator, not both.")
        if not (self.generator is None or callable(self.generator) or _is_path(self.generator)):
            raise InvalidConfiguration(
                f"A generator is a function or its dotted path, not {self.generator!r}."
            )

    def _checked_schedule(self) -> Schedule:
        if isinstance(self.schedule, str):
            return CronSchedule(self.schedule, timezone=self.timezone)
        if not isinstance(self.schedule, Schedule):
            raise InvalidConfiguration(
                f"schedule is a cron expression or a schedule, not {self.schedule!r}."
            )
        if self.timezone is None:
            return self.schedule
        if not isinstance(self.schedule, ZonedSchedule):
            raise InvalidConfiguration(f"{self.schedule!r} has no time zone.")
        return replace(self.schedule, timezone=self.timezone)  # type: ignore[type-var]

    @property
    def id(self) -> tuple[str, str]:
        return self.kind or "", self.key_prefix

    @property
    def definition(self) -> Definition:
        assert isinstance(self.schedule, Schedule)  # noqa: S101 - since __post_init__
        return definition_of(self.schedule)

    def generate(self, at: datetime) -> Any:
        """Return the payload of the tick at the instant."""
        generator = _imported(self.generator) if isinstance(self.generator, str) else self.generator
        return self.payload if generator is None else generator(at)


def _is_path(value: Any) -> bool:
    parts = value.split(".") if isinstance(value, str) else []
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def _imported(path: str) -> Callable[[datetime], Any]:
    module, _, name = path.rpartition(".")
    function: Callable[[datetime], Any] = getattr(import_module(module), name)
    return function


def entries_of(configured: Any) -> list[CronEntry]:
    """Return the entries of ``DELAYED_QUEUE["CRON"]``: CronEntry objects, or dicts of them."""
    if not isinstance(configured, list | tuple):
        raise InvalidConfiguration(f"It must be a list of CronEntry or dict, not {configured!r}.")
    return joined(each if isinstance(each, CronEntry) else _entry(each) for each in configured)


def _entry(configured: Any) -> CronEntry:
    if not isinstance(configured, dict):
        raise InvalidConfiguration(f"An entry is a CronEntry or a dict, not {configured!r}.")
    known = {each.name for each in fields(CronEntry)}
    if unknown := next((key for key in configured if key not in known), None):
        hint = did_you_mean(unknown, known) or f" Known: {', '.join(sorted(known))}."
        raise InvalidConfiguration(f"An entry has no {unknown!r}.{hint}")
    if lacking := {"queue", "key_prefix", "schedule"} - configured.keys():
        raise InvalidConfiguration(f"The entry {configured!r} lacks {', '.join(sorted(lacking))}.")
    return CronEntry(**configured)


@dataclass
class CronTable:
    """Entries by their kind and prefix, in the order of their declaration."""

    _entries: dict[tuple[str, str], CronEntry] = field(default_factory=dict)

    def add(self, entry: CronEntry) -> None:
        """Add an entry. A second one for the prefix is refused, except after a reload."""
        known = self._entries.get(entry.id)
        if known is not None and _origin(known) != _origin(entry):
            raise InvalidConfiguration(
                f"The prefix {entry.key_prefix!r} of queue {entry.queue!r} has a schedule already, "
                f"declared in {known.declared_in}."
            )
        self._entries[entry.id] = entry

    def remove(self, entry: CronEntry) -> None:
        self._entries.pop(entry.id, None)

    def __iter__(self) -> Iterator[CronEntry]:
        return iter(self._entries.values())


def _origin(entry: CronEntry) -> Any:
    # Entries without a function cannot be reloaded, so each has an origin of its own.
    name = getattr(entry.generator, "__qualname__", None)
    return object() if name is None else (entry.declared_in, name)


def joined(*groups: Iterable[CronEntry]) -> list[CronEntry]:
    """Return the entries of all groups; refuse two for one prefix."""
    table = CronTable()
    for group in groups:
        for entry in group:
            table.add(entry)
    return list(table)


crontab: Final = CronTable()


def schedule(
    queue: str,
    key_prefix: str,
    schedule: Schedule | str,
    *,
    timezone: str | None = None,
    codec: str | Codec = "json",
    kind: str | None = None,
    missed: MissedTicks | str = MissedTicks.LATEST,
    missed_cap: int = 100,
) -> Callable[[F], F]:
    """Declare a schedule; the decorated function returns the payload of a tick.

    Put it beside the handlers, which are imported at start-up.
    """

    def register(function: F) -> F:
        crontab.add(
            CronEntry(
                queue, key_prefix, schedule, timezone, generator=function, codec=codec, kind=kind,
                missed=missed, missed_cap=missed_cap, declared_in=function.__module__,
            )
        )  # fmt: skip
        return function

    return register
