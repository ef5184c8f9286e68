"""The statements that claim by group, and those of the limits, over an in-memory store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.models import Limit, LimitManager
from delayed_queue.queue.store.claim import LeasedRow
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
from delayed_queue.testing.stores import NO_LIMITS, InMemoryStore, LimitRow, Row, instant

if TYPE_CHECKING:
    _Groups = GroupStore  # for its signatures, as in messages.py
    _Limits = LimitManager[Limit]
else:
    _Groups = _Limits = object


class InMemoryGroups(_Groups):
    """The statements of GroupStore; a transaction of the store is what takes turns."""

    _store: InMemoryStore

    def look(self, ahead: Ahead, *, using: str = DEFAULT_DB_ALIAS) -> Look:
        kind, at = ahead.kind, instant(ahead.now)
        with self._store.lock:
            names = sorted({row.group for row in self._store.of_kind(kind) if row.group})
            order = sorted(names, key=lambda name: (name < ahead.since, name))
            groups = [self._group(kind, name, at) for name in order[: ahead.groups]]
            return Look(
                "read committed", rules_of(self._store, kind, at), groups,
                self._ungrouped(kind, ahead.position, ahead.rows, at),
            )  # fmt: skip

    def groups(
        self, kind: str, limit: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> list[GroupRow]:
        return list(self.look(Ahead(kind, "", limit, (0, 0), 0, now=now)).groups)

    def _group(self, kind: str, name: str, now: int) -> GroupRow:
        rule, own = self._store.limit_of(kind), self._store.limit_of(kind, name)
        rows = self._of_group(kind, name)
        concurrency = rule.concurrency if own.concurrency is None else own.concurrency
        earliest = min(row.scheduled_at for row in rows)
        is_due = earliest <= now
        is_counted = is_due and (rule.is_ordered or concurrency is not None)
        held = [row for row in rows if row.lease_id is not None] if is_counted else []
        live = sum(row.scheduled_at > now for row in held)
        waiting, head = _in_order(rows) if rule.is_ordered and live == 0 else (None, None)
        interval = rule.interval if own.interval is None else own.interval
        return GroupRow(
            name, earliest, is_due, rule.is_ordered, concurrency, own.weight or 1, interval,
            own.burst or rule.burst or 1, own.spent_until, own.paused_at is not None,
            rule.blocks_on_dead and self._has_dead(kind, name, own), len(held), live, waiting,
            head, now,
        )  # fmt: skip

    def _of_group(self, kind: str, name: str) -> list[Row]:
        return [row for row in self._store.of_kind(kind) if row.group == name]

    def _has_dead(self, kind: str, name: str, own: LimitRow) -> bool:
        return has_dead(self._store, kind, name, own.resumed_at)

    def _ungrouped(
        self, kind: str, position: tuple[int, int], limit: int, now: int
    ) -> UngroupedRow:
        due = sorted(
            (row.scheduled_at, row.id, row.group)
            for row in self._store.of_kind(kind)
            if position < (row.scheduled_at, row.id) and row.scheduled_at <= now
        )[:limit]
        ids = [row_id for _, row_id, group in due if group is None]
        return UngroupedRow(ids, len(due), *(due[-1][:2] if due else position))

    def lease_groups(
        self, lease: GroupLease, shares: Sequence[Share], *, using: str = DEFAULT_DB_ALIAS
    ) -> list[LeasedRow]:
        until = lease.now + lease.lease
        with self._store.lock:
            rows = [row for share in shares for row in self._shared(lease.kind, share, lease.now)]
            rows.sort(key=lambda row: (row.scheduled_at, row.id))
            return [self._lease(row, lease.lease_id, until) for row in rows]

    def _lease(self, row: Row, lease_id: str, until: int) -> LeasedRow:
        raise NotImplementedError

    def _shared(self, kind: str, share: Share, now: int) -> list[Row]:
        if share.head is not None:
            return [self._store.rows[share.head]]
        due = sorted(
            (row for row in self._of_group(kind, str(share.name)) if row.scheduled_at <= now),
            key=lambda row: (row.scheduled_at, row.id),
        )
        expired = [row for row in due if row.lease_id is not None][: share.retaken]
        fresh = [row for row in due if row.lease_id is None or share.takes_any][: share.fresh]
        return [*expired, *fresh][: share.number]

    def spend(
        self, kind: str, times: Mapping[str, float], *, now: int, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        with self._store.lock:
            for name, time in times.items():
                row = self._store.limit_of(kind, name)
                spent = max(row.spent_until or 0.0, now) + time
                self._store.limits[kind, name] = replace(row, spent_until=spent)


def _in_order(rows: list[Row]) -> tuple[int | None, int | None]:
    """Return when the last of those that wait is due, and which goes next."""
    begun = [row for row in rows if row.is_begun]
    waiting = [row for row in begun if row.lease_id is None]
    held = [row for row in begun if row.lease_id is not None]
    first = min(held or waiting or rows, key=lambda row: (row.scheduled_at, row.id))
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
        letter.group == group and (since is None or letter.died_at > since)
        for letter in store.letters_of(kind)
    )


class InMemoryLimits(_Limits):
    """The statements of LimitManager; nobody asks a store for the reason of a pause."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    def pause(
        self,
        kind: str,
        *,
        group: str = "",
        reason: str = "",
        by: str = "",
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:
        is_new = not self.is_paused(kind, group=group)
        if is_new:
            self._change(kind, group, lambda row: replace(row, paused_at=instant(now)))
        return is_new

    def resume(self, kind: str, *, group: str = "", using: str = DEFAULT_DB_ALIAS) -> bool:
        was_paused = self.is_paused(kind, group=group)
        if was_paused:
            self._change(kind, group, lambda row: replace(row, paused_at=None))
        self.tidy(kind)
        return was_paused

    def is_paused(self, kind: str, *, group: str = "", using: str = DEFAULT_DB_ALIAS) -> bool:
        with self._store.lock:
            return self._store.limit_of(kind, group).paused_at is not None

    def tidy(self, kind: str, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS) -> None:
        with self._store.lock:
            self._store.limits = {
                name: row
                for name, row in self._store.limits.items()
                if name[0] != kind or self._holds(*name, row, instant(now))
            }

    def _holds(self, kind: str, group: str, row: LimitRow, now: int) -> bool:
        is_spent = (row.spent_until or 0) > now
        was_passed = row.resumed_at is not None and has_dead(self._store, kind, group, None)
        rest = replace(row, spent_until=None, resumed_at=None)
        return is_spent or was_passed or rest != NO_LIMITS

    def rules(
        self, kind: str, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> RulesRow | None:
        with self._store.lock:
            return rules_of(self._store, kind, instant(now))

    def declare(
        self, kind: str, rules: Mapping[str, Any], *, using: str = DEFAULT_DB_ALIAS
    ) -> bool:
        values = dict(rules)
        is_change, declared = values.pop("is_change"), values.pop("declared")
        with self._store.lock:
            before = self._store.limit_of(kind).declared
            if not is_change and (before or "") == (declared or ""):
                return False
            declared = (before or declared) if is_change else declared
            self._change(kind, "", lambda row: replace(row, declared=declared, **values))
        return True

    def limit_group(
        self, kind: str, group: str, limits: Mapping[str, Any], *, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        self._change(kind, group, lambda row: replace(row, **limits))

    def pass_dead(
        self, kind: str, group: str, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> bool:
        with self._store.lock:
            row = self._store.limit_of(kind, group)
            if not has_dead(self._store, kind, group, row.resumed_at):
                return False
            self._change(kind, group, lambda row: replace(row, resumed_at=instant(now)))
        return True

    def _change(self, kind: str, group: str, change: Callable[[LimitRow], LimitRow]) -> None:
        with self._store.lock:
            row = self._store.limit_of(kind, group)
            self._store.limits[kind, group] = change(row)
