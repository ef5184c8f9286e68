"""Deal out what a claim may lease: so much of each group, by turns or the most overdue first.

Pure functions, which the store in memory and the one in PostgreSQL share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from delayed_queue.queue.store.claim import LeasedRow
from delayed_queue.queue.store.groups import Ahead, GroupRow, Look, Share
from delayed_queue.queue.store.limits import RulesRow

# More than any claim asks for.
UNLIMITED: Final = 2**31 - 1

Rated = RulesRow | GroupRow


# Rates: a permit is free every interval, and free ones are kept up to the burst (GCRA).


def permits(interval: float | None, burst: int, spent_until: float | None, now: int) -> int:
    """Return the number of free permits."""
    if interval is None:
        return UNLIMITED
    # Counted from the next one, so that there is one from that instant on, however it is rounded.
    since = now - next_permit(interval, burst, spent_until, now)
    return min(math.floor(since / interval) + 1, burst) if since >= 0 else 0


def next_permit(interval: float, burst: int, spent_until: float | None, now: int) -> float:
    """Return when the next permit is free: at most one interval from now.

    Only an earlier rule, or a clock that has been set back, leaves more than that spent.
    """
    return min((spent_until or 0.0) - (burst - 1) * interval, now + interval)


def spend(interval: float, burst: int, spent_until: float | None, now: int, count: int) -> float:
    """Return until when permits are spent after ``count`` more of them."""
    return min(max(spent_until or 0.0, now), now + burst * interval) + count * interval


def spent_by(
    rules: RulesRow, groups: Sequence[GroupRow], rows: list[LeasedRow]
) -> dict[str, float]:
    """Return until when permits are spent of what was leased: by group, and of the queue ('').

    Also where an earlier rule, or a clock that has been set back, has left more spent than the
    rule in force allows: that is lowered.
    """
    now, counts = rules.now, Counter(row.group for row in rows)
    rates: list[tuple[str, Rated, int]] = [("", rules, len(rows))]
    rates += [(row.name, row, counts[row.name]) for row in groups]
    return {
        name: spend(rate.interval, rate.burst, rate.spent_until, now, count)
        for name, rate, count in rates
        if rate.interval is not None
        and (count or (rate.spent_until or 0.0) > now + rate.burst * rate.interval)
    }


# Shares


class Candidate(NamedTuple):
    """A group of which so many may be leased now (``room``); None stands for those of no group."""

    name: str | None
    room: int
    weight: int = 1
    earliest: int = 0
    retaken: int = 0
    fresh: int = 0
    head: int | None = None

    def share(self, number: int) -> Share:
        return Share(str(self.name), number, self.retaken, min(self.fresh, number), self.head)


class Dealt(NamedTuple):
    """What a claim leases: shares of groups, and so many (``ungrouped``) of those of no group.

    In this order, and ``limit`` in all: the free permits of the queue, at most what is asked for.

    ``since`` had the last turn, with its ``rest``: None without turns, and empty where the names
    begin anew. ``groups`` with a message that waits were looked at, to ``last``. ``room``: how many
    messages could have been leased, of no group more than two. ``permit_at``: the next permit of
    the queue, which has none now, or of those groups that have none.
    """

    shares: list[Share]
    ungrouped: int
    since: str | None
    rest: int
    groups: int
    last: str | None
    room: int
    is_rated: bool
    permit_at: float | None
    limit: int


def deal_out(ahead: Ahead, look: Look, rules: RulesRow) -> Dealt:
    """Deal out what was asked for, as far as the queue has permits, to what was found."""
    most = min(ahead.limit, permits(rules.interval, rules.burst, rules.spent_until, rules.now))
    # The leases bear this instant: the look at the groups may have a later one.
    found = [candidate(row, rules.now) for row in look.groups]
    room = sum(min(each.room, 2) for each in found)
    # Those without a group have their turn where the way round the names begins anew.
    place = sum(row.name >= ahead.since for row in look.groups)
    found.insert(place, Candidate(None, len(look.ungrouped.ids)))
    since, rest = None, 0
    if rules.is_fair:
        first = min(ahead.rest, found[0].weight) if found[0].name == ahead.since else 0
        numbers, last, rest = deal(most, [(each.weight, each.room) for each in found], first)
        since = _last_turn(ahead, look, found[last].name) if any(numbers) else None
    else:
        found.sort(key=lambda each: (each.earliest, each.name or ""))
        # More than is asked for: how many are due of each is not known. The lease counts them.
        numbers = [min(each.room, most) for each in found]
    given = [(each, number) for each, number in zip(found, numbers, strict=True) if number]
    waiting = [row.name for row in look.groups if row.has_waiting]
    return Dealt(
        [each.share(number) for each, number in given if each.name is not None],
        sum(number for each, number in given if each.name is None),
        since, rest, len(waiting), waiting[-1] if waiting else None, room,
        rules.interval is not None or any(row.interval is not None for row in look.groups),
        _permit_at(look, rules), most,
    )  # fmt: skip


def _last_turn(ahead: Ahead, look: Look, name: str | None) -> str | None:
    """Return who had the last turn; empty where all names were gone through."""
    if name is not None:
        return name
    to_the_end = sum(row.has_waiting and row.name >= ahead.since for row in look.groups)
    return "" if to_the_end < ahead.groups else None


def _permit_at(look: Look, rules: RulesRow) -> float | None:
    """Return when the queue, or else the first of its groups, has a permit that has none now."""
    groups: list[Rated] = [row for row in look.groups if row.is_due]
    for rates in ([rules], groups):
        permits_at = [
            next_permit(rate.interval, rate.burst, rate.spent_until, rules.now)
            for rate in rates
            if rate.interval is not None
        ]
        if waits := [at for at in permits_at if at > rules.now]:
            return min(waits)
    return None


def candidate(row: GroupRow, now: int) -> Candidate:
    """Return what may be leased of a group now."""
    retaken = fresh = 0
    if not row.is_due or row.is_paused or row.is_blocked:
        pass
    elif row.is_ordered:
        is_free = row.live == 0 and (row.waits_until is None or row.waits_until <= now)
        fresh = int(is_free and row.head is not None)
    else:
        free = UNLIMITED if row.concurrency is None else row.concurrency
        retaken = min(row.held - row.live, max(free - row.live, 0))
        fresh = min(max(free - row.held, 0), UNLIMITED if row.due > 1 else row.due)
    room = min(retaken + fresh, permits(row.interval, row.burst, row.spent_until, now))
    head = row.head if row.is_ordered else None
    return Candidate(row.name, room, row.weight, row.earliest, retaken, fresh, head)


def deal(
    limit: int, asked: Sequence[tuple[int, int]], first: int = 0
) -> tuple[list[int], int, int]:
    """Deal out ``limit`` by turns to those who ask, each given as its weight and its room.

    One that is alone gets all. ``first`` is what the first has left of a turn that was cut short.
    Returns the shares, who had the last turn, and what is left of it.
    """
    given = [0] * len(asked)
    last, rest = len(asked) - 1, 0
    while limit > 0 and (active := [at for at, (_, room) in enumerate(asked) if given[at] < room]):
        everyone = sum(asked[at][0] for at in active)
        filled = min((asked[at][1] - given[at]) // asked[at][0] for at in active)
        # Whole rounds at once, as many as the limit allows and leave room for each.
        rounds = 0 if first else min(limit // everyone, filled)
        for at in active:
            weight, room = asked[at]
            whole = rounds * weight
            turn = whole or min((first if at == 0 else 0) or weight, room - given[at])
            number = min(turn, limit)
            given[at] += number
            limit -= number
            last, rest = at, turn - number
            if limit == 0:
                break
        first = 0
    return given, last, rest
