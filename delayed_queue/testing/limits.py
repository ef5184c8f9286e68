"""The statements that claim by group, and those of the limits, over an in-memory store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.models import Limit, LimitManager
from delayed_queue.queue.groups import next_permit, permits, spend
from delayed_queue.queue.store.claim import LeasedRow
from delayed_queue.queue.store.groups import Ahead, GroupLease, GroupRow, GroupStore, Seen
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.testing.stores import NO_LIMITS, InMemoryStore, LimitRow, Row, instant

if TYPE_CHECKING:
    _Groups = GroupStore  # for its signatures, as in messages.py
    _Limits = LimitManager[Limit]
else:
    _Groups = _Limits = object


# More than any claim asks for.
_ALL: Final = 2**31 - 1


class Candidate(NamedTuple):
    """A group, of which so many may be leased now; None stands for those of no group.

    There may be fewer ``rows``, though two at least: the turns are dealt out before anybody looks
    for more.
    """

    name: str | None
    room: int
    rows: list[Row]
    weight: int = 1
    earliest: int = 0


def deal(
    limit: int, asked: Sequence[tuple[int, int]], first: int = 0
) -> tuple[list[int], int, int]:
    """Deal out ``limit`` by turns to those who ask, each given as its weight and its room.

    Whoever is alone gets all. ``first`` is what the first has left of a turn that was cut short.
    Returns the shares, who had the last turn, and what is left of it.
    """
    given = [0] * len(asked)
    active = [place for place, (_, room) in enumerate(asked) if room > 0]
    last, rest = len(asked) - 1, 0
    while limit > 0 and active:
        for place in active:
            weight, room = asked[place]
            turn = min((given[place] == 0 and place == 0 and first) or weight, room - given[place])
            number = min(turn, limit)
            given[place] += number
            limit -= number
            last, rest = place, turn - number
            if limit == 0:
                break
        active = [place for place in active if given[place] < asked[place][1]]
    return given, last, rest


def hand_out(limit: int, rooms: Sequence[int]) -> list[int]:
    """Give the first all it may have, then the next."""
    given = []
    for room in rooms:
        given.append(min(room, limit))
        limit -= given[-1]
    return given


class InMemoryGroups(_Groups):
    """The statements of GroupStore; the lock of the store is what takes turns."""

    _store: InMemoryStore

    def groups(
        self, kind: str, limit: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> list[GroupRow]:
        with self._store.lock:
            return self._ahead(kind, "", limit, instant(now))

    def _ahead(self, kind: str, since: str, limit: int, now: int) -> list[GroupRow]:
        names = sorted({row.group for row in self._store.of_kind(kind) if row.group})
        order = sorted(names, key=lambda name: (name < since, name))
        return [self._group(kind, name, now) for name in order[:limit]]

    def _group(self, kind: str, name: str, now: int) -> GroupRow:
        rule, own = self._store.limit_of(kind), self._store.limit_of(kind, name)
        rows = self._of_group(kind, name)
        concurrency = rule.concurrency if own.concurrency is None else own.concurrency
        earliest = min(row.scheduled_at for row in rows)
        held = [row for row in rows if row.lease_id is not None]
        live = sum(row.scheduled_at > now for row in held)
        waiting, head = _in_order(rows) if rule.is_ordered and live == 0 else (None, None)
        interval = rule.interval if own.interval is None else own.interval
        return GroupRow(
            name, earliest, earliest <= now, rule.is_ordered, concurrency, own.weight or 1,
            interval, own.burst or rule.burst or 1, own.spent_until, own.paused_at is not None,
            rule.blocks_on_dead and self._has_dead(kind, name, own), len(held), live, waiting,
            head, now,
        )  # fmt: skip

    def _of_group(self, kind: str, name: str) -> list[Row]:
        return [row for row in self._store.of_kind(kind) if row.group == name]

    def _has_dead(self, kind: str, name: str, own: LimitRow) -> bool:
        return has_dead(self._store, kind, name, own.resumed_at)

    def claim_by_group(
        self, ahead: Ahead, lease: GroupLease, *, using: str = DEFAULT_DB_ALIAS
    ) -> tuple[Seen, list[LeasedRow]]:
        kind, now = ahead.kind, instant(ahead.now)
        with self._store.lock:
            rules = rules_of(self._store, kind, now)
            looked = self._ahead(kind, ahead.since, ahead.groups, now)
            scanned = self._scanned(kind, (ahead.at, ahead.id), ahead.rows, now)
            ungrouped = [row for row in scanned if row.group is None]
            found = [self._open(row, kind) for row in looked]
            room = sum(min(each.room, 2) for each in found)
            # Those without a group have their turn where the way round the names begins anew.
            ahead_of = sum(row.name >= ahead.since for row in looked)
            found.insert(ahead_of, Candidate(None, len(ungrouped), ungrouped))
            taken, last = _dealt(ahead, rules, found)
            rows = [self._lease(row, lease.lease_id, now + lease.lease) for row in taken]
            self._spend(kind, rows, looked, now)
        end = (scanned[-1].scheduled_at, scanned[-1].id) if scanned else (ahead.at, ahead.id)
        ids = [row.id for row in ungrouped]
        wanted = sum(row.group is None for row in rows)
        return Seen(
            "read committed", now, *_rates(rules, looked), *last, room, wanted, ids,
            len(scanned), *end,
        ), rows  # fmt: skip

    def _scanned(self, kind: str, position: tuple[int, int], limit: int, now: int) -> list[Row]:
        due = (
            row
            for row in self._store.of_kind(kind)
            if position < (row.scheduled_at, row.id) and row.scheduled_at <= now
        )
        return sorted(due, key=_by_due_time)[:limit]

    def _open(self, row: GroupRow, kind: str) -> Candidate:
        """Return what may be leased of a group now."""
        if not row.is_due or row.is_paused or row.is_blocked:
            return Candidate(row.name, 0, [])
        due = sorted(
            (each for each in self._of_group(kind, row.name) if each.scheduled_at <= row.now),
            key=_by_due_time,
        )
        expired = [each for each in due if each.lease_id is not None]
        fresh, free = [each for each in due if each.lease_id is None], _ALL
        if row.is_ordered:
            is_free = row.live == 0 and (row.waits_until is None or row.waits_until <= row.now)
            expired, fresh = [], [self._store.rows[row.head]] if is_free and row.head else []
            free = 1
        elif row.concurrency is not None:
            expired = expired[: max(row.concurrency - row.live, 0)]
            free = max(row.concurrency - row.held, 0)
        free = min(free, _ALL if len(fresh) > 1 else 1)
        room = min(
            len(expired) + (free if fresh else 0),
            permits(row.interval, row.burst, row.spent_until, row.now),
        )
        return Candidate(row.name, room, [*expired, *fresh[:free]], row.weight, row.earliest)

    def _lease(self, row: Row, lease_id: str, until: int) -> LeasedRow:
        raise NotImplementedError

    def _spend(self, kind: str, leased: list[LeasedRow], looked: list[GroupRow], now: int) -> None:
        """Spend a permit for each message leased: of its group, and of the queue."""
        counts = Counter(row.group for row in leased)
        rule = self._store.limit_of(kind)
        rates = [("", rule.queue_interval, rule.queue_burst or 1, len(leased))]
        rates += [(row.name, row.interval, row.burst, counts[row.name]) for row in looked]
        for name, interval, burst, count in rates:
            row = self._store.limit_of(kind, name)
            if interval is not None and (count or _is_over(row, interval, burst, now)):
                spent = spend(interval, burst, row.spent_until, now, count)
                self._store.limits[kind, name] = replace(row, spent_until=spent)


def _is_over(row: LimitRow, interval: float, burst: int, now: int) -> bool:
    """Return whether more is spent ahead than the rule in force allows."""
    return (row.spent_until or 0.0) > now + burst * interval


def _dealt(
    ahead: Ahead, rules: RulesRow | None, found: list[Candidate]
) -> tuple[list[Row], tuple[str | None, int]]:
    """Return what is leased, the most overdue first, or by turns; then also whose was the last.

    With what is left of it.
    """
    if rules is None or rules.is_paused:
        return [], (None, 0)
    since: tuple[str | None, int]
    most = min(ahead.limit, permits(rules.interval, rules.burst, rules.spent_until, rules.now))
    if rules.is_fair:
        first = min(ahead.rest, found[0].weight) if found[0].name == ahead.since else 0
        numbers, last, rest = deal(most, [(each.weight, each.room) for each in found], first)
        since = _end(ahead, found, last) if any(numbers) else None, rest
    else:
        since = None, 0
        found = sorted(found, key=lambda each: (each.earliest, each.name or ""))
        numbers = hand_out(most, [each.room for each in found])
    taken = [row for each, number in zip(found, numbers, strict=True) for row in each.rows[:number]]
    return sorted(taken, key=_by_due_time), since


def _end(ahead: Ahead, found: list[Candidate], last: int) -> str | None:
    """Return behind whom the next turn is; empty where all names were gone through."""
    name = found[last].name
    return "" if name is None and last < ahead.groups else name


def _rates(
    rules: RulesRow | None, looked: list[GroupRow]
) -> tuple[bool | None, bool, float | None, int, str | None, float | None]:
    """Return what is seen of the limits, and of the groups from the first to the last."""
    if rules is None:
        return None, False, None, 0, None, None
    waits = [
        next_permit(row.interval, row.burst, row.spent_until, rules.now)
        for row in looked
        if row.is_due and row.interval is not None
    ]
    queue_permit_at = rules.interval and next_permit(
        rules.interval, rules.burst, rules.spent_until, rules.now
    )
    return (
        rules.is_paused, bool(rules.interval or any(row.interval for row in looked)),
        queue_permit_at, len(looked), looked[-1].name if looked else None,
        min((at for at in waits if at > rules.now), default=None),
    )  # fmt: skip


def _by_due_time(row: Row) -> tuple[int, int]:
    return row.scheduled_at, row.id


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
            if of_kind == kind and interval is not None and _is_over(row, interval, burst, now):
                spent = spend(interval, burst, row.spent_until, now, 0)
                self._store.limits[kind, group] = replace(row, spent_until=spent)

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
