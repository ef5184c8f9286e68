"""Write the ticks of a prefix ahead, and remove them: each call is one transaction."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from delayed_queue.cron.models import Schedule
from delayed_queue.cron.rules import (
    CronMessage,
    check_config_hash,
    check_key_prefix,
    tick_key,
)
from delayed_queue.cron.store import ScheduleRow, TickRow
from delayed_queue.db.resilience import never
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.messages import MILLISECOND, OfferOutcome, ScheduledMessage, to_milliseconds

if TYPE_CHECKING:
    from delayed_queue.queue.offering import Offering


MOST_RETIRED: Final = 20
# An active configuration that was not installed for N of its intervals is gone.
SILENT_INTERVALS: Final = 3
# Hashes of services in other languages, which no row here contains.
_MD5: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TickReport:
    """The changes of an installation to the ticks of its prefix, as counts.

    ``kept`` ticks existed. ``skipped`` ones do not exist and are not after the schedule's last
    tick: they were handled or dropped. ``removed`` ones belonged to other configurations. Nothing
    was changed if ``superseded_by`` names a newer configuration, or if an operator has paused the
    schedule.
    """

    created: int = 0
    updated: int = 0
    kept: int = 0
    skipped: int = 0
    removed: int = 0
    superseded_by: str = ""
    is_paused: bool = False

    @property
    def is_installed(self) -> bool:
        """True if the ticks of this configuration are installed."""
        return not self.superseded_by and not self.is_paused


class Installation(NamedTuple):
    """A request: install the ticks of one configuration, by key."""

    config_hash: str
    key_prefix: str
    ticks: dict[str, CronMessage]
    can_update: bool = False
    interval: timedelta | None = None


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The ids to delete, the messages to offer, and the new state of the schedule's row."""

    drops: list[int]
    offers: list[ScheduledMessage]
    kept: int
    skipped: int
    state: ScheduleRow


def by_key(
    config_hash: str, key_prefix: str, messages: Iterable[CronMessage]
) -> dict[str, CronMessage]:
    """Return the ticks by key; for two of the same instant, the first."""
    check_key_prefix(key_prefix, check_config_hash(config_hash))
    ticks: dict[str, CronMessage] = {}
    for message in messages:
        if not isinstance(message, CronMessage):
            raise InvalidMessage(f"Ticks are of CronMessage, not {type(message).__name__}.")
        ticks.setdefault(tick_key(key_prefix, config_hash, message.schedule_at), message)
    return ticks


def retired(state: ScheduleRow) -> list[str]:
    """Return the replaced configurations, the latest last."""
    hashes: list[str] = json.loads(state.retired_hashes)
    return hashes


def rival(state: ScheduleRow, config_hash: str, now: int) -> str:
    """Return the configuration that must stay active instead of this one, or an empty text.

    A configuration that this row has never seen is newer than all others. A replaced one may return
    when its successor is no longer installed: a deployment was rolled back.
    """
    if config_hash == state.config_hash or config_hash not in retired(state):
        return ""
    return state.config_hash if is_alive(state, now) else ""


def is_alive(state: ScheduleRow, now: int) -> bool:
    """Return whether an installer still renews the active configuration.

    A configuration installed by hand has no interval, and stays until it is replaced by hand.
    """
    if not state.config_hash or state.installed_at is None:
        return False
    return state.interval is None or now - state.installed_at <= SILENT_INTERVALS * state.interval


def plan(wanted: Installation, state: ScheduleRow, rows: Sequence[TickRow], now: int) -> TickPlan:
    """Return the changes that lead from the stored state and ticks to the wanted ones."""
    present = {row.key: row for row in rows}
    last_tick = _last_tick(state, wanted.config_hash, now)
    offers, kept, skipped = [], 0, 0
    for key, tick in wanted.ticks.items():
        row = present.get(key)
        if row is None and last_tick is not None and ticked_at(tick) <= last_tick:
            # It was handled or dropped, or another transaction is handling it.
            skipped += 1
        elif row is not None and (row.is_leased or not wanted.can_update):
            kept += 1
        else:
            offers.append(ScheduledMessage(key, tick.payload, tick.due_at, row is not None))
    marks = [ticked_at(wanted.ticks[each.key]) for each in offers]
    if last_tick is not None:
        marks.append(last_tick)
    after = _replaced(state, wanted)._replace(last_tick=max(marks, default=None), installed_at=now)
    return TickPlan(_others(wanted, state, rows), offers, kept, skipped, after)


def plan_removal(
    config_hash: str, key_prefix: str, state: ScheduleRow, rows: Sequence[TickRow], now: int
) -> tuple[list[int], ScheduleRow]:
    """Return the ids of the configuration's pending ticks, and the row without it."""
    drops = [
        row.id
        for row in rows
        if not row.is_leased and hash_of(row.key, key_prefix) == config_hash
    ]  # fmt: skip
    if state.config_hash != config_hash:
        return drops, state
    last_tick = _last_tick(state, "", now)
    return drops, state._replace(config_hash="", last_tick=last_tick, installed_at=None)


def ticked_at(tick: CronMessage) -> int:
    return to_milliseconds(tick.schedule_at)


def hash_of(key: str, key_prefix: str) -> str:
    """Return the configuration hash in a tick's key."""
    return key[len(key_prefix) + 1 :].partition("/")[0]


def _others(wanted: Installation, state: ScheduleRow, rows: Sequence[TickRow]) -> list[int]:
    """Return the ids of unleased ticks of other configurations.

    These are the configurations known here and those of services in other languages, but not a
    caller's own key such as ``daily/order/42``, which looks like a tick.
    """
    known = {state.config_hash, *retired(state)}
    return [
        row.id
        for row in rows
        if not row.is_leased
        and (found := hash_of(row.key, wanted.key_prefix)) != wanted.config_hash
        and (found in known or _MD5.fullmatch(found))
    ]


def _last_tick(state: ScheduleRow, config_hash: str, now: int) -> int | None:
    """Return the instant up to which no tick may be created.

    Future ticks that a replaced configuration wrote ahead were not handled yet, so the new one may
    create them. Past ones may have been handled.
    """
    if config_hash == state.config_hash or state.last_tick is None:
        return state.last_tick
    return min(state.last_tick, now)


def _replaced(state: ScheduleRow, wanted: Installation) -> ScheduleRow:
    interval = None if wanted.interval is None else wanted.interval // MILLISECOND
    if wanted.config_hash == state.config_hash:
        return state._replace(interval=state.interval if interval is None else interval)
    others = [each for each in retired(state) if each != wanted.config_hash]
    if state.config_hash:
        others.append(state.config_hash)
    return state._replace(
        config_hash=wanted.config_hash,
        retired_hashes=json.dumps(others[-MOST_RETIRED:]),
        interval=interval,
    )


class Ticks:
    """The ticks of a queue, by their prefixes; the base of ``queue.cron``."""

    def __init__(self, queue: Offering) -> None:
        self.queue = queue

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

        ``can_update`` replaces payloads of existing ticks that are not leased. ``yields`` changes
        nothing if a newer configuration is active or an operator has paused the schedule.
        ``interval``: the time until the caller installs again.
        """
        ticks = by_key(config_hash, key_prefix, messages)
        wanted = Installation(config_hash, key_prefix, ticks, can_update, interval)
        return self.queue._repeat(partial(self._install, wanted, yields=yields), doubt=never)

    def uninstall(self, config_hash: str, key_prefix: str) -> int:
        """Remove the pending ticks of this configuration; return their number.

        Leased ones stay, because they are being handled.
        """
        check_key_prefix(key_prefix, check_config_hash(config_hash))
        return self.queue._repeat(partial(self._uninstall, config_hash, key_prefix), doubt=never)

    def read_schedule(self, key_prefix: str) -> tuple[int, ScheduleRow | None]:
        """Return the clock in milliseconds, and the prefix's row if there is one."""
        read = partial(Schedule.objects.read, self.queue.kind, key_prefix, using=self.queue.using)
        return self.queue._repeat(lambda: read(now=self.queue._now()))

    def _install(self, wanted: Installation, *, yields: bool) -> TickReport:
        with self.queue._transaction():
            state, now, rows = self._locked(wanted.key_prefix)
            if yields and not state.is_enabled:
                return TickReport(is_paused=True)
            if yields and (winner := rival(state, wanted.config_hash, now)):
                return TickReport(superseded_by=winner)
            steps = plan(wanted, state, rows, now)
            removed = self._drop_ticks(steps.drops)
            outcomes = Counter(self.queue.offer_batch(steps.offers))
            Schedule.objects.save(steps.state, using=self.queue.using)
        return TickReport(
            created=outcomes[OfferOutcome.CREATED],
            updated=outcomes[OfferOutcome.UPDATED],
            kept=steps.kept + outcomes[OfferOutcome.IGNORED],
            skipped=steps.skipped,
            removed=removed,
        )

    def _uninstall(self, config_hash: str, key_prefix: str) -> int:
        with self.queue._transaction():
            state, now, rows = self._locked(key_prefix)
            drops, after = plan_removal(config_hash, key_prefix, state, rows, now)
            removed = self._drop_ticks(drops)
            Schedule.objects.save(after, using=self.queue.using)
        return removed

    def _locked(self, key_prefix: str) -> tuple[ScheduleRow, int, list[TickRow]]:
        """Lock the row of the prefix and its pending ticks; return them, with the clock between."""
        queue = self.queue
        state = Schedule.objects.lock(
            queue.kind, key_prefix, queue=queue.name, codec=queue.codec.name, using=queue.using
        )
        now, rows = Schedule.objects.pending_ticks(
            queue.kind, key_prefix, now=queue._now(), using=queue.using
        )
        return state, now, rows

    def _drop_ticks(self, ids: list[int]) -> int:
        return Schedule.objects.drop_ticks(ids, using=self.queue.using) if ids else 0
