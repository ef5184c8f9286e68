"""Writing the ticks of a prefix ahead, and taking them back: each call one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from delayed_queue.cron.rules import CronMessage, check_config_hash, check_key_prefix
from delayed_queue.cron.store import ScheduleRow, TickRow
from delayed_queue.cron.tickplans import (
    Installation,
    TickReport,
    by_key,
    plan,
    plan_removal,
    rival,
)
from delayed_queue.messages import OfferOutcome

if TYPE_CHECKING:
    from delayed_queue.cron.store import ScheduleManager
    from delayed_queue.models import Schedule
    from delayed_queue.queue.offering import Offering


class Ticks:
    """The ticks of a queue, by their prefixes; ``queue.cron`` stands on it."""

    def __init__(self, queue: Offering, schedules: ScheduleManager[Schedule]) -> None:
        self.queue = queue
        self._schedules = schedules
        # What the in-memory queue does otherwise.
        self._repeat = queue._repeat  # noqa: SLF001
        self._transaction = queue._transaction  # noqa: SLF001
        self._now = queue._now  # noqa: SLF001

    def __str__(self) -> str:
        return self.queue.kind

    def install(
        self,
        config_hash: str,
        key_prefix: str,
        messages: Iterable[CronMessage],
        *,
        can_update: bool = False,
        yields: bool = False,
        interval: timedelta | None = None,
    ) -> TickReport:
        """Replace the pending ticks of other configurations by these, in one transaction.

        ``can_update`` replaces payloads of ticks that are there, unless they are leased.
        ``yields`` gives way to a newer configuration and to an operator's pause; without it
        this one wins. ``interval`` is how often the caller will install again.
        """
        ticks = by_key(config_hash, key_prefix, messages)
        wanted = Installation(config_hash, key_prefix, ticks, can_update, interval)
        report: TickReport = self._repeat(partial(self._install, wanted, yields=yields))
        return report

    def uninstall(self, config_hash: str, key_prefix: str) -> int:
        """Remove the pending ticks of this configuration alone; return how many.

        Leased ones stay: their run is under way.
        """
        check_key_prefix(key_prefix, check_config_hash(config_hash))
        removed: int = self._repeat(partial(self._uninstall, config_hash, key_prefix))
        return removed

    def read_schedule(self, key_prefix: str) -> tuple[int, ScheduleRow | None]:
        """Return the clock in milliseconds, and the prefix's row if it has one."""
        read = partial(self._schedules.read, self.queue.kind, key_prefix, using=self.queue.using)
        return self._repeat(lambda: read(now=self._now()))

    def _install(self, wanted: Installation, *, yields: bool) -> TickReport:
        with self._transaction():
            state = self._lock_schedule(wanted.key_prefix)
            now, rows = self._pending_ticks(wanted.key_prefix)
            if yields and not state.is_enabled:
                return TickReport(is_paused=True)
            if yields and (winner := rival(state, wanted.config_hash, now)):
                return TickReport(superseded_by=winner)
            steps = plan(wanted, state, rows, now)
            removed = self._drop_ticks(steps.drops)
            outcomes = Counter(self.queue.offer_batch(steps.offers))
            self._save_schedule(steps.state)
        return TickReport(
            created=outcomes[OfferOutcome.CREATED],
            updated=outcomes[OfferOutcome.UPDATED],
            kept=steps.kept + outcomes[OfferOutcome.IGNORED],
            skipped=steps.skipped,
            removed=removed,
        )

    def _uninstall(self, config_hash: str, key_prefix: str) -> int:
        with self._transaction():
            state = self._lock_schedule(key_prefix)
            now, rows = self._pending_ticks(key_prefix)
            drops, after = plan_removal(config_hash, key_prefix, state, rows, now)
            removed = self._drop_ticks(drops)
            self._save_schedule(after)
        return removed

    def _lock_schedule(self, key_prefix: str) -> ScheduleRow:
        return self._schedules.lock(
            self.queue.kind,
            key_prefix,
            queue=self.queue.name,
            codec=self.queue.codec.name,
            using=self.queue.using,
        )

    def _pending_ticks(self, key_prefix: str) -> tuple[int, list[TickRow]]:
        return self._schedules.pending_ticks(
            self.queue.kind, key_prefix, now=self._now(), using=self.queue.using
        )

    def _drop_ticks(self, ids: list[int]) -> int:
        return self._schedules.drop_ticks(ids, using=self.queue.using) if ids else 0

    def _save_schedule(self, row: ScheduleRow) -> None:
        self._schedules.save(row, using=self.queue.using)
