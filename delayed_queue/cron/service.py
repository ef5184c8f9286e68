"""The cron service of a queue: any process writes ticks ahead, each is handled once."""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db import Error, connections

from delayed_queue.cron.rules import (
    CronMessage,
    MissedTicks,
    Schedule,
    ZonedSchedule,
    check_config_hash,
    check_key_prefix,
    missed,
)
from delayed_queue.cron.schedules import (
    CronSchedule,
    DailySchedule,
    PeriodicSchedule,
)
from delayed_queue.cron.store import ScheduleRow
from delayed_queue.cron.ticking import TickReport, Ticks
from delayed_queue.db.wakeups import StopSignal
from delayed_queue.durations import Duration, check_duration, parse_duration
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.logs import described, log
from delayed_queue.messages import MILLISECOND, from_milliseconds

CLOSE_SECONDS: Final = 5.0
# The longest wait after an error; a daily schedule's interval is six hours.
RETRY_SECONDS: Final = 30.0

Generator = Callable[[datetime], Any]
GenerateMany = Callable[[datetime], Iterable[CronMessage]]


class Installer:
    """Keeps the ticks of one prefix written ahead, as a function of the current time returns them.

    Each run is one transaction.
    """

    def __init__(
        self,
        ticks: Ticks,
        key_prefix: str,
        config_hash: str,
        interval: Duration,
        generate_many: GenerateMany = lambda _: (),
    ) -> None:
        self.ticks = ticks
        self.key_prefix = check_key_prefix(key_prefix, check_config_hash(config_hash))
        self.config_hash = config_hash
        self.interval = check_duration("interval", interval, MILLISECOND)
        self._generate_many = generate_many
        self.is_first = True
        self.is_closed = False
        self._told = TickReport()

    def __str__(self) -> str:
        return f"{self.ticks}/{self.key_prefix}"

    def messages(self, now: datetime, state: ScheduleRow | None) -> list[CronMessage]:
        """Return the ticks to install at ``now``, given the state of the schedule's row."""
        return list(self._generate_many(now))

    def run(self, *, yields: bool = True) -> TickReport:
        """Write the next ticks ahead, unless a newer configuration is active (logged once).

        Payloads of existing ticks are replaced until a first run succeeds.
        """
        now, state = self.ticks.read_schedule(self.key_prefix)
        messages = self.messages(from_milliseconds(now), state)
        if self.is_closed:
            return TickReport()
        report = self.ticks.install(
            self.config_hash,
            self.key_prefix,
            messages,
            can_update=self.is_first,
            yields=yields,
            interval=self.interval,
        )
        self.is_first = self.is_first and not report.is_installed
        self._tell(report)
        return report

    def _tell(self, report: TickReport) -> None:
        if report.superseded_by and report.superseded_by != self._told.superseded_by:
            hashes = {"config_hash": self.config_hash, "by": report.superseded_by}
            log(logging.WARNING, "schedule_superseded", schedule=self, **hashes)
        if report.is_paused and not self._told.is_paused:
            log(logging.INFO, "schedule_paused", schedule=self)
        self._told = report


class ScheduleInstaller(Installer):
    """Installs the next ticks of a schedule, and the missed ones by policy."""

    def __init__(
        self,
        ticks: Ticks,
        key_prefix: str,
        schedule: Schedule,
        generator: Generator,
        missed_policy: MissedTicks | str = MissedTicks.LATEST,
        missed_cap: int = 100,
    ) -> None:
        self.schedule = in_default_zone(schedule)
        super().__init__(ticks, key_prefix, self.schedule.config_hash, self.schedule.interval)
        self._generator = generator
        self._missed = missed_policy, missed_cap
        missed(schedule, None, from_milliseconds(0), missed_policy, missed_cap)  # checks both

    def times(self, now: datetime, state: ScheduleRow | None) -> list[datetime]:
        """Return the times of the ticks that may not be installed yet."""
        times = self.schedule.next_times(now)
        # Without a configuration it is new or was uninstalled on purpose: nothing was missed.
        if state is None or not state.config_hash or state.last_tick is None:
            return times
        last_tick = from_milliseconds(state.last_tick)
        times = [*missed(self.schedule, last_tick, now, *self._missed), *times]
        if self.is_first or state.config_hash != self.config_hash:
            return times
        return [at for at in times if at > last_tick]

    def messages(self, now: datetime, state: ScheduleRow | None) -> list[CronMessage]:
        return [CronMessage(self._generator(at), at) for at in self.times(now, state)]


def in_default_zone(schedule: Schedule) -> Schedule:
    """Return the schedule in ``settings.TIME_ZONE``, unless it has a zone or needs none."""
    if isinstance(schedule, ZonedSchedule):
        return schedule.with_default_timezone(settings.TIME_ZONE)
    return schedule


class RepeatingThread:
    """A thread that works again and again until it is stopped; ``report`` logs its errors."""

    def __init__(self, using: str, name: str) -> None:
        self._using = using
        self._stop = StopSignal()
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)

    def work(self) -> None:
        raise NotImplementedError

    def pause(self, *, is_done: bool) -> float:
        """Return the seconds until the next run."""
        raise NotImplementedError

    def report(self, error: Exception) -> None:
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Stop within five seconds, keeping the ticks; return whether the thread has ended."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        return not self._thread.is_alive()

    def run(self) -> None:
        """Run in the calling thread, until another one or a signal stops it."""
        while not self._stop.is_set():
            seconds = self.pause(is_done=self._try())
            select.select([self._stop], [], [], seconds)

    def _try(self) -> bool:
        try:
            with self._stop.cancelling(self._using):
                self.work()
        # A generator may raise anything; the next run tries again.
        except Exception as error:
            if not self._stop.is_set():
                self.report(error)
            return False
        else:
            return True
        finally:
            # Not kept between runs, which may be hours apart.
            connections.close_all()


def mistake(error: Exception | None) -> Exception | None:
    """Return the error if its traceback should be logged: not for an outage."""
    return None if isinstance(error, Error | ResourceUnavailable) else error


class InstallerHandle(RepeatingThread):
    """Runs an installer at once and then every interval, until closed. A context manager."""

    def __init__(self, installer: Installer) -> None:
        super().__init__(installer.ticks.queue.using, f"cron {installer.key_prefix}")
        self.installer = installer
        self._installed = threading.Event()
        self.start()

    def __enter__(self) -> InstallerHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for a successful run; return whether there was one."""
        return self._installed.wait(timeout)

    def close(self) -> bool:
        """Stop as ``stop``; the result of a generator that is still running is not installed."""
        self.installer.is_closed = True
        return self.stop()

    def work(self) -> None:
        self.installer.run()
        if not self.installer.is_closed:
            self._installed.set()

    def pause(self, *, is_done: bool) -> float:
        seconds = self.installer.interval.total_seconds()
        return seconds if is_done else min(seconds, RETRY_SECONDS)

    def report(self, error: Exception) -> None:
        fields = {"schedule": self.installer, "error": described(error)}
        log(logging.ERROR, "install_failed", mistake(error), **fields)


class CronService:
    """Installs ticks: future messages whose keys make each of them unique.

    Any number of processes may do this at the same time: a lock on the prefix's row in the table of
    schedules orders them.
    """

    def __init__(self, ticks: Ticks) -> None:
        self.ticks = ticks

    def install_tick(
        self, config_hash: str, key_prefix: str, cron_messages: Iterable[CronMessage]
    ) -> TickReport:
        """Install the prefix's ticks and remove the pending ones of all other hashes.

        This is one transaction, or part of the open one. Existing ticks stay unchanged. A tick at
        or before the schedule's last tick is not created again.
        """
        return self.ticks.install(config_hash, key_prefix, cron_messages)

    def uninstall_tick(self, config_hash: str, key_prefix: str) -> int:
        """Remove the pending ticks of this prefix and hash; return their number.

        Ticks of other hashes and leased ticks stay.
        """
        return self.ticks.uninstall(config_hash, key_prefix)

    def install(
        self,
        config_hash: str,
        key_prefix: str,
        schedule_interval: Duration,
        generate_many: GenerateMany,
    ) -> InstallerHandle:
        """Install ``generate_many(now)`` at once and every interval, until the handle is closed."""
        return InstallerHandle(
            Installer(self.ticks, key_prefix, config_hash, schedule_interval, generate_many)
        )

    def install_schedule(
        self,
        key_prefix: str,
        schedule: CronSchedule | DailySchedule | PeriodicSchedule | Schedule,
        generator: Generator,
        *,
        missed: MissedTicks | str = MissedTicks.LATEST,
        missed_cap: int = 100,
    ) -> InstallerHandle:
        """Keep the schedule's next ticks installed, with the payload ``generator(at)``.

        ``missed``: the ticks to create after a time without an installer: ``latest``, ``skip``, or
        ``all``, at most the last ``missed_cap``.
        """
        return InstallerHandle(
            self.installer(key_prefix, schedule, generator, missed=missed, missed_cap=missed_cap)
        )

    def install_daily_schedule(
        self, key_prefix: str, schedule: DailySchedule, generator: Generator
    ) -> InstallerHandle:
        """Keep the daily schedule's next ticks installed, with the payload ``generator(at)``."""
        return self.install_schedule(key_prefix, schedule, generator)

    def install_periodic_tick(
        self, key_prefix: str, period: Duration, generator: Generator
    ) -> InstallerHandle:
        """Keep a tick every period installed, aligned to 1970-01-01T00:00Z."""
        schedule = PeriodicSchedule(parse_duration(period))
        return self.install_schedule(key_prefix, schedule, generator)

    def installer(
        self,
        key_prefix: str,
        schedule: Schedule,
        generator: Generator,
        *,
        missed: MissedTicks | str = MissedTicks.LATEST,
        missed_cap: int = 100,
    ) -> ScheduleInstaller:
        """Return the installer of ``install_schedule``, for a caller with its own loop."""
        return ScheduleInstaller(self.ticks, key_prefix, schedule, generator, missed, missed_cap)
