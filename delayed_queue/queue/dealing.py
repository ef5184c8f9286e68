"""Divide a claim among groups: by turns, or the most overdue first.

Pure functions, shared by the in-memory store and the one in PostgreSQL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from delayed_queue.queue.store.claim import LeasedRow
from delayed_queue.queue.store.groups import Ahead, GroupRow, Look, Share
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.rates import RateRule

# The largest limit of a claim.
UNLIMITED: Final = 2**31 - 1

Rated = RulesRow | GroupRow


def rule_of(rate: Rated) -> RateRule | None:
    """Return the rate of a group or a queue."""
    return None if rate.interval is None else RateRule(rate.interval, rate.burst)


def _permits(rate: Rated, now: int) -> int:
    rule = rule_of(rate)
    return UNLIMITED if rule is None else rule.permits(rate.spent_until, now)


def spent_by(
    rules: RulesRow, groups: Sequence[GroupRow], rows: list[LeasedRow]
) -> dict[str, float]:
    """Return until when permits are spent, by group; the empty name is the queue.

    Includes groups without a lease of which more is spent than the rule in force allows, under an
    earlier rule or before the clock was set back: it is lowered.
    """
    now, counts = rules.now, Counter(row.group for row in rows)
    rates: list[tuple[str, Rated, int]] = [("", rules, len(rows))]
    rates += [(row.name, row, counts[row.name]) for row in groups]
    return {
        name: rule.spend(capped, now, count)
        for name, rate, count in rates
        if (rule := rule_of(rate)) is not None
        and ((capped := rule.capped(rate.spent_until, now)) < (rate.spent_until or 0.0) or count)
    }


# Shares


class Candidate(NamedTuple):
    """A group, and how many of its messages may be leased now (``room``).

    The name None stands for the messages without a group.
    """

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
    """The shares of a claim: ``ungrouped`` messages without a group, then those of groups.

    At most ``limit`` in all: the limit of the claim, or the free permits of the queue.
    ``since`` had the last turn, with ``rest`` left of it; None without turns, empty after the last
    name. ``groups`` is the number of groups read that have a message without a lease, up to
    ``last``. ``room`` is the number of messages that could be leased, at most two of each group.
    ``permit_at`` is the next permit of the queue if it has none now, else of groups without one.
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
    """Divide the limit of a claim, or the free permits of the queue, among the groups found."""
    most = min(ahead.limit, _permits(rules, rules.now))
    # ``rules.now`` is the instant of the leases; the groups were read later.
    found = [candidate(row, rules.now) for row in look.groups]
    room = sum(min(each.room, 2) for each in found)
    # Messages without a group have their turn after the last name.
    place = sum(row.name >= ahead.since for row in look.groups)
    found.insert(place, Candidate(None, len(look.ungrouped.ids)))
    since, rest = None, 0
    if rules.is_fair:
        first = min(ahead.rest, found[0].weight) if found[0].name == ahead.since else 0
        numbers, last, rest = deal(most, [(each.weight, each.room) for each in found], first)
        since = _last_turn(ahead, look, found[last].name) if any(numbers) else None
    else:
        found.sort(key=lambda each: (each.earliest, each.name or ""))
        # The number of due messages is unknown: the statement that leases applies the limit.
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
    """Return the name that had the last turn; empty after the last name."""
    if name is not None:
        return name
    to_the_end = sum(row.has_waiting and row.name >= ahead.since for row in look.groups)
    return "" if to_the_end < ahead.groups else None


def _permit_at(look: Look, rules: RulesRow) -> float | None:
    """Return the next permit of the queue if it has none, else of its groups without one."""
    groups: list[Rated] = [row for row in look.groups if row.is_due]
    for rates in ([rules], groups):
        permits_at = [
            rule.next_permit(rate.spent_until, rules.now)
            for rate in rates
            if (rule := rule_of(rate)) is not None
        ]
        if waits := [at for at in permits_at if at > rules.now]:
            return min(waits)
    return None


def candidate(row: GroupRow, now: int) -> Candidate:
    """Return how many messages of a group may be leased now."""
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
    room = min(retaken + fresh, _permits(row, now))
    head = row.head if row.is_ordered else None
    return Candidate(row.name, room, row.weight, row.earliest, retaken, fresh, head)


def deal(
    limit: int, asked: Sequence[tuple[int, int]], first: int = 0
) -> tuple[list[int], int, int]:
    """Divide ``limit`` by turns among candidates, given as weight and room.

    A single candidate gets everything. ``first`` is the rest of the first one's unfinished turn.
    Returns the shares, the index that had the last turn, and the rest of that turn.
    """
    given = [0] * len(asked)
    last, rest = len(asked) - 1, 0
    while limit > 0 and (active := [at for at, (_, room) in enumerate(asked) if given[at] < room]):
        everyone = sum(asked[at][0] for at in active)
        filled = min((asked[at][1] - given[at]) // asked[at][0] for at in active)
        # Whole rounds at once, while the limit allows them and every candidate has room.
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
