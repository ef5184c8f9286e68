"""Keep declared schedules and operators' schedules installed: one pass, or a thread."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, transaction

from delayed_queue.conf import get_settings
from delayed_queue.cron.models import Schedule
from delayed_queue.cron.registry import (
    CronEntry,
    Definition,
    crontab,
    definition_of,
    entries_of,
    joined,
    schedule,
    schedule_of,
)
from delayed_queue.cron.rules import Schedule as Rule
from delayed_queue.cron.service import CronService, RepeatingThread, ScheduleInstaller, mistake
from delayed_queue.cron.store import ScheduleRow
from delayed_queue.cron.ticking import TickReport, Ticks
from delayed_queue.db.resilience import repeat
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND
from delayed_queue.queue.offering import Offering

__all__ = [
    "CronEntry", "CronKeeper", "CronThread", "Definition", "Kept", "declared",
    "definition_of", "installer_of", "schedule", "schedule_of",
]  # fmt: skip


# The longest time until a keeper sees an operator's change.
CHECK_SECONDS: Final = 10.0


def declared() -> list[CronEntry]:
    """Return the schedules of the settings and of the decorator."""
    return joined(entries_of(get_settings().CRON), crontab)


@dataclass(frozen=True, slots=True)
class Kept:
    """The result of one pass for one schedule: a report, or an error."""

    name: str
    config_hash: str
    report: TickReport | None = None
    uninstalled: int | None = None
    error: str = ""


@dataclass(slots=True, eq=False)
class _Duty:
    """A schedule to keep, with its stored row, if any."""

    entry: CronEntry
    installer: ScheduleInstaller
    row: ScheduleRow | None = None
    now: int = 0

    def is_up_to_date(self) -> bool:
        row = self.row
        if row is None or self.installer.is_first or row.config_hash != self.installer.config_hash:
            return False
        interval = self.installer.interval // MILLISECOND
        return row.installed_at is not None and self.now < row.installed_at + interval


class CronKeeper:
    """Keeps declared schedules and operators' schedules installed, on one database.

    One query finds the schedules that are not up to date; each of these is installed in a
    transaction of its own. Any number of keepers may run: the first one does the work.
    """

    def __init__(
        self, using: str = DEFAULT_DB_ALIAS, entries: Iterable[CronEntry] | None = None
    ) -> None:
        self._using = using
        chosen = declared() if entries is None else joined(entries)
        self._declared = {entry.id: _duty(entry, using) for entry in chosen}
        self._made: dict[tuple[str, str], _Duty] = {}
        self._errors: dict[tuple[str, str], str] = {}

    @property
    def pause(self) -> float:
        """Seconds until the next pass, with jitter, so that keepers do not run together."""
        duties = [*self._declared.values(), *self._made.values()]
        intervals = [duty.installer.interval.total_seconds() for duty in duties]
        # A daily schedule's interval may be a millisecond, but its horizon is days.
        shortest = max(min([CHECK_SECONDS, *intervals]), 1.0)
        return shortest * random.uniform(0.8, 1.0)  # noqa: S311

    def check(self, *, force: bool = False, is_dry: bool = False) -> list[Kept]:
        """Make one pass and return its result for each schedule.

        An error of one schedule does not stop the others. ``force`` installs every schedule, also
        over a newer configuration or a pause. A dry pass changes nothing.
        """
        return [
            self._kept(duty, force=force, is_dry=is_dry) for duty in self._duties(is_dry=is_dry)
        ]

    def uninstall(self) -> list[Kept]:
        """Remove the pending ticks of every schedule, of any configuration."""
        return [
            Kept(
                str(duty.installer), duty.row.config_hash,
                uninstalled=duty.installer.ticks.uninstall(
                    duty.row.config_hash, duty.row.key_prefix
                ),
            )
            for duty in self._duties(is_dry=True)
            if duty.row is not None and duty.row.config_hash
        ]  # fmt: skip

    def listed(self) -> Iterator[tuple[CronEntry, ScheduleInstaller, ScheduleRow | None]]:
        """Yield every schedule with its stored row, if it was ever installed."""
        for duty in self._duties(is_dry=True):
            yield duty.entry, duty.installer, duty.row

    def _duties(self, *, is_dry: bool) -> list[_Duty]:
        rows = repeat(self._using, lambda: Schedule.objects.described(using=self._using))
        found = {(row.kind, row.key_prefix): (now, row) for now, row in rows}
        self._made = {
            name: duty
            for name, (_, row) in found.items()
            if not row.declared_in and name not in self._declared
            if (duty := self._made_by_operators(name, row)) is not None
        }
        duties = {**self._declared, **self._made}
        for name, duty in duties.items():
            duty.now, duty.row = found.get(name, (0, None))
        return list(duties.values())

    def _made_by_operators(self, name: tuple[str, str], row: ScheduleRow) -> _Duty | None:
        try:
            entry = _entry_of(row)
        except InvalidConfiguration as error:
            self._complain(name, str(error))
            return None
        known = self._made.get(name)
        # An unchanged schedule keeps its installer, whose first run is over.
        return known if known is not None and known.entry == entry else _duty(entry, self._using)

    def _kept(self, duty: _Duty, *, force: bool, is_dry: bool) -> Kept:
        name, config_hash = str(duty.installer), duty.installer.config_hash
        try:
            with _rolled_back(self._using) if is_dry else nullcontext():
                kept = self._keep(duty, force=force, is_dry=is_dry)
        # A generator may raise anything; the other schedules must still run.
        except Exception as error:
            self._complain(duty.entry.id, described(error), error)
            return Kept(name, config_hash, error=described(error))
        self._errors.pop(duty.entry.id, None)
        return kept

    def _keep(self, duty: _Duty, *, force: bool, is_dry: bool) -> Kept:
        installer, row = duty.installer, duty.row
        kept = Kept(str(installer), installer.config_hash)
        if row is not None and not row.is_enabled:
            if not row.config_hash:
                return kept
            removed = duty.installer.ticks.uninstall(row.config_hash, row.key_prefix)
            return Kept(kept.name, row.config_hash, uninstalled=removed)
        if duty.is_up_to_date() and not force:
            return kept
        was_first = installer.is_first
        report = installer.run(yields=not force)
        if is_dry:
            installer.is_first = was_first
        elif report.is_installed and duty.entry.declared_in:
            self._describe(duty)
        return Kept(kept.name, kept.config_hash, report)

    def _describe(self, duty: _Duty) -> None:
        """Show operators the declared definition, once it is installed."""
        declared = _row_of(duty.entry)
        if duty.row is None or _definition(duty.row) != _definition(declared):
            write = partial(Schedule.objects.describe, declared, using=self._using)
            repeat(self._using, write)

    def _complain(self, name: tuple[str, str], text: str, error: Exception | None = None) -> None:
        if self._errors.get(name) != text:  # each error once, not every pass
            fields = {"schedule": "/".join(name), "error": text}
            log(logging.ERROR, "install_failed", mistake(error), **fields)
        self._errors[name] = text


@contextmanager
def _rolled_back(using: str) -> Iterator[None]:
    with transaction.atomic(using=using):
        yield
        transaction.set_rollback(True, using=using)


def installer_of(entry: CronEntry, using: str = DEFAULT_DB_ALIAS) -> ScheduleInstaller:
    """Return the installer of the entry's ticks."""
    assert isinstance(entry.schedule, Rule)  # noqa: S101 - since CronEntry.__post_init__
    queue = Offering(entry.queue, codec=entry.codec, kind=entry.kind, using=using)
    return CronService(Ticks(queue)).installer(
        entry.key_prefix, entry.schedule, entry.generate,
        missed=entry.missed, missed_cap=entry.missed_cap,
    )  # fmt: skip


def _duty(entry: CronEntry, using: str) -> _Duty:
    return _Duty(entry, installer_of(entry, using))


def _entry_of(row: ScheduleRow) -> CronEntry:
    schedule = schedule_of(Definition(row.type, row.expression, row.timezone, row.gap, row.fold))
    return CronEntry(
        row.queue, row.key_prefix, schedule,
        payload=None if row.payload is None else json.loads(row.payload),
        codec=row.codec, kind=row.kind, missed=row.missed, missed_cap=row.missed_cap,
        declared_in="",
    )  # fmt: skip


def _row_of(entry: CronEntry) -> ScheduleRow:
    """Return a row with the entry's definition and no state."""
    codec = entry.codec if isinstance(entry.codec, str) else entry.codec.name
    return ScheduleRow(
        entry.id[0], entry.key_prefix, entry.queue, codec, *entry.definition,
        str(entry.missed), entry.missed_cap, None, entry.declared_in, True, "", "[]",
        None, None, None,
    )  # fmt: skip


def _definition(row: ScheduleRow) -> tuple[Any, ...]:
    return (
        row.queue, row.codec, row.type, row.expression, row.timezone, row.gap, row.fold,
        row.missed, row.missed_cap, row.declared_in,
    )  # fmt: skip


class CronThread(RepeatingThread):
    """Runs a keeper in a thread with a connection of its own, as workers do."""

    def __init__(self, keeper: CronKeeper, using: str = DEFAULT_DB_ALIAS) -> None:
        super().__init__(using, "cron-keeper")
        self._keeper = keeper

    def work(self) -> None:
        self._keeper.check()

    def report(self, error: Exception) -> None:
        log(logging.ERROR, "cron_failed", mistake(error), error=described(error))

    def pause(self, *, is_done: bool) -> float:
        return self._keeper.pause
