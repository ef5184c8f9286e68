"""The statements that claim by group, and those of the limits, over an in-memory store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from delayed_queue.models import Limit, LimitManager
from delayed_queue.queue.store.claim import LeasedRow, earliest_first
from delayed_queue.queue.store.groups import (
    Ahead,
    GroupLease,
    GroupRow,
    GroupStore,
    Look,
    Share,
    UngroupedRow,
)
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.rates import RateRule
from delayed_queue.testing.stores import NO_LIMITS, InMemoryStore, LimitRow, Row, instant

if TYPE_CHECKING:
    _Groups = GroupStore  # for its signatures, as in messages.py
    _Limits = LimitManager[Limit]
else:
    _Groups = _Limits = object


class InMemoryGroups(_Groups):
    """The statements of GroupStore."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    def groups(self, kind: str, limit: int, *, now: int | None = None, **_: Any) -> list[GroupRow]:
        return self._ahead(kind, "", limit, instant(now))

    def _ahead(self, kind: str, since: str, limit: int, now: int) -> list[GroupRow]:
        """Return groups up to the last of ``limit`` that have a message without a lease."""
        rows = [row for row in self._store.of_kind(kind) if row.group]
        waiting = {row.group for row in rows if row.lease_id is None}
        order = sorted({str(row.group) for row in rows}, key=lambda name: (name < since, name))
        ends = [place for place, name in enumerate(order, 1) if name in waiting]
        end = ends[limit - 1] if limit <= len(ends) else None
        return [self._group(kind, name, now) for name in order[:end]]

    def _group(self, kind: str, name: str, now: int) -> GroupRow:
        rule, own = self._store.limit_of(kind), self._store.limit_of(kind, name)
        rows = self._of_group(kind, name)
        concurrency = rule.concurrency if own.concurrency is None else own.concurrency
        earliest = min(row.scheduled_at for row in rows)
        held = [row for row in rows if row.lease_id is not None]
        live = sum(row.scheduled_at > now for row in held)
        waiting = [row for row in rows if row.lease_id is None]
        due = sum(row.scheduled_at <= now for row in waiting)
        waits_until, head = _in_order(rows) if rule.is_ordered and live == 0 else (None, None)
        interval = rule.interval if own.interval is None else own.interval
        return GroupRow(
            name, earliest, earliest <= now, rule.is_ordered, concurrency, own.weight or 1,
            interval, own.burst or rule.burst or 1, own.spent_until, own.paused_at is not None,
            rule.blocks_on_dead and has_dead(self._store, kind, name, own.resumed_at),
            len(held), live,
            bool(waiting), min(due, 2), waits_until, head, now,
        )  # fmt: skip

    def _of_group(self, kind: str, name: str) -> list[Row]:
        return [row for row in self._store.of_kind(kind) if row.group == name]

    def look(self, ahead: Ahead, **_: Any) -> Look:
        kind, now = ahead.kind, instant(ahead.now)
        rules = rules_of(self._store, kind, now)
        groups = self._ahead(kind, ahead.since, ahead.groups, now)
        due = [
            row
            for row in self._store.of_kind(kind)
            if (ahead.at, ahead.id) < _by_due_time(row) <= (now, row.id)
        ]
        read = sorted(due, key=_by_due_time)[: ahead.rows]
        end = _by_due_time(read[-1]) if read else (ahead.at, ahead.id)
        ids = [row.id for row in read if row.group is None]
        return Look("read committed", rules, groups, UngroupedRow(ids, len(read), *end))

    def lease_groups(
        self, kind: str, lease: GroupLease, shares: Sequence[Share], ungrouped: Sequence[int],
        number: int, *, limit: int, now: int, **_: Any,
    ) -> list[LeasedRow]:  # fmt: skip
        taken = [self._store.rows[row_id] for row_id in ungrouped[:number]]
        for share in shares:
            taken += self._of_share(kind, share, now)
        return earliest_first(
            [self._store.lease(row, lease.lease_id, now, lease.lease) for row in taken[:limit]]
        )

    def _of_share(self, kind: str, share: Share, now: int) -> list[Row]:
        if share.head is not None:
            return [self._store.rows[share.head]]
        due = [row for row in self._of_group(kind, share.name) if row.scheduled_at <= now]
        due.sort(key=_by_due_time)
        expired = [row for row in due if row.lease_id is not None][: share.retaken]
        fresh = [row for row in due if row.lease_id is None][: share.fresh]
        return [*expired, *fresh][: share.number]

    def spend(self, kind: str, until: Mapping[str, float], **_: Any) -> None:
        for name, spent in until.items():
            row = self._store.limit_of(kind, name)
            self._store.limits[kind, name] = replace(row, spent_until=spent)


def _by_due_time(row: Row) -> tuple[int, int]:
    return row.scheduled_at, row.id


def _in_order(rows: list[Row]) -> tuple[int | None, int | None]:
    """Return the last due time of waiting messages, and the id of the next message."""
    begun = [row for row in rows if row.is_begun]
    waiting = [row for row in begun if row.lease_id is None]
    held = [row for row in begun if row.lease_id is not None]
    first = min(held or waiting or rows, key=_by_due_time)
    return max((row.scheduled_at for row in waiting), default=None), first.id


def rules_of(store: InMemoryStore, kind: str, now: int) -> RulesRow | None:
    if not store.has_limits(kind):
        return None
    rule = store.limit_of(kind)
    return RulesRow(
        now, rule.paused_at is not None, rule.is_ordered, rule.is_fair, rule.queue_interval,
        rule.queue_burst or 1, rule.spent_until,
    )  # fmt: skip


def has_dead(store: InMemoryStore, kind: str, group: str, since: int | None) -> bool:
    return any(
        letter.row.group == group and (since is None or letter.died_at > since)
        for letter in store.letters_of(kind)
    )


class InMemoryLimits(_Limits):
    """The statements of LimitManager, without the reason and the author of a pause."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    def pause(self, kind: str, *, group: str = "", now: int | None = None, **_: Any) -> bool:
        is_new = not self.is_paused(kind, group=group)
        if is_new:
            self._change(kind, group, paused_at=instant(now))
        return is_new

    def resume(self, kind: str, *, group: str = "", **_: Any) -> bool:
        was_paused = self.is_paused(kind, group=group)
        if was_paused:
            self._change(kind, group, paused_at=None)
        self.tidy(kind)
        return was_paused

    def is_paused(self, kind: str, *, group: str = "", **_: Any) -> bool:
        return self._store.limit_of(kind, group).paused_at is not None

    def tidy(self, kind: str, *, now: int | None = None, **_: Any) -> None:
        self._lower_spent(kind, instant(now))
        self._store.limits = {
            name: row
            for name, row in self._store.limits.items()
            if name[0] != kind or self._holds(*name, row, instant(now))
        }

    def _lower_spent(self, kind: str, now: int) -> None:
        rule = self._store.limit_of(kind)
        for (of_kind, group), row in list(self._store.limits.items()):
            interval = row.interval or rule.interval if group else row.queue_interval
            burst = (row.burst or rule.burst if group else row.queue_burst) or 1
            if of_kind == kind and interval is not None and row.spent_until is not None:
                spent = RateRule(interval, burst).capped(row.spent_until, now)
                self._store.limits[kind, group] = replace(row, spent_until=spent)

    def _holds(self, kind: str, group: str, row: LimitRow, now: int) -> bool:
        is_spent = (row.spent_until or 0) > now
        was_passed = row.resumed_at is not None and has_dead(self._store, kind, group, None)
        rest = replace(row, spent_until=None, resumed_at=None)
        return is_spent or was_passed or rest != NO_LIMITS

    def rules(self, kind: str, *, now: int | None = None, **_: Any) -> RulesRow | None:
        return rules_of(self._store, kind, instant(now))

    def declare(self, kind: str, rules: Mapping[str, Any], **_: Any) -> bool:
        values = dict(rules)
        is_change, declared = values.pop("is_change"), values.pop("declared")
        before = self._store.limit_of(kind).declared
        if not is_change and (before or "") == (declared or ""):
            return False
        self._change(kind, "", declared=(before or declared) if is_change else declared, **values)
        return True

    def limit_group(self, kind: str, group: str, limits: Mapping[str, Any], **_: Any) -> None:
        self._change(kind, group, **limits)

    def pass_dead(self, kind: str, group: str, *, now: int | None = None, **_: Any) -> bool:
        has_any = has_dead(self._store, kind, group, self._store.limit_of(kind, group).resumed_at)
        if has_any:
            self._change(kind, group, resumed_at=instant(now))
        return has_any

    def _change(self, kind: str, group: str, **values: Any) -> None:
        row = self._store.limit_of(kind, group)
        self._store.limits[kind, group] = replace(row, **values)
