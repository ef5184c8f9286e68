"""Groups: who of them is served next and how much of it, and what holds them back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.handlers import registry, storable
from delayed_queue.messages import check_group
from delayed_queue.models import LimitManager, MessageManager
from delayed_queue.queue.base import QueueBase
from delayed_queue.queue.hooks import hooks
from delayed_queue.queue.store.claim import NO_FLOOR, LeasedRow
from delayed_queue.queue.store.groups import (
    Ahead,
    GroupLease,
    GroupRow,
    Look,
    Share,
    UngroupedRow,
)
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.retries import Groups, check_limit, parse_rate

# How many groups a claim looks at: one for each message it is to find, within these bounds. The
# upper one where so many groups have not filled a claim.
FEWEST_GROUPS: Final = 32
MANY_GROUPS: Final = 256
MOST_GROUPS: Final = 512
# How many messages it looks through for those without a group; and while it finds nothing else.
SCANNED: Final = 100
SCANNED_IDLE: Final = 500
# After a scan to the end, the next one from the start begins after so long, and so much longer for
# each message that was read: little enough of a process's time.
RESCAN_MS: Final = 30_000
RESCAN_MS_EACH: Final = 1
# How far below its end the next scan begins: offers commit in another order than that of their
# due times, usually by less than this.
MARGIN_MS: Final = 2_000
# More than any claim asks for.
_ALL: Final = 2**31 - 1
_START: Final = (NO_FLOOR, 0)


class Candidate(NamedTuple):
    """A group that may have so many messages leased now; None stands for those of no group."""

    name: str | None
    room: int
    weight: int = 1
    earliest: int = 0
    retaken: int = 0
    fresh: int = 0
    takes_any: bool = False
    head: int | None = None

    def share(self, number: int) -> Share:
        fresh = number if self.takes_any else self.fresh
        return Share(self.name, number, self.retaken, fresh, self.takes_any, self.head)


def permits(interval: float | None, burst: int, spent_until: float | None, now: int) -> int:
    """Return how many permits are there: one every interval, kept up to the burst."""
    if interval is None:
        return _ALL
    ahead = max((spent_until or 0.0) - now, 0.0)
    return max(int(burst - ahead / interval), 0)


def next_permit(interval: float, burst: int, spent_until: float | None) -> float:
    """Return when there is a permit again."""
    return (spent_until or 0.0) - (burst - 1) * interval


def candidate(row: GroupRow, now: int) -> Candidate:
    """Return what may be leased of the group now."""
    room = retaken = fresh = 0
    if not (row.is_due and not row.is_paused and not row.is_blocked):
        pass
    elif row.is_ordered:
        is_free = row.live == 0 and (row.waits_until is None or row.waits_until <= now)
        room = 1 if is_free and row.head is not None else 0
    elif row.concurrency is None:
        room = _ALL
    else:
        retaken = min(row.held - row.live, max(row.concurrency - row.live, 0))
        fresh = max(row.concurrency - row.held, 0)
        room = retaken + fresh
    room = min(room, permits(row.interval, row.burst, row.spent_until, now))
    head = row.head if row.is_ordered else None
    return Candidate(
        row.name, room, row.weight, row.earliest, retaken, fresh, row.concurrency is None, head
    )


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


@dataclass(slots=True)
class GroupWalk:
    """How far the claims of one consumer have come: round the groups, and through the ungrouped.

    ``since``: the name from which the next claim looks on, and what that group has left of its
    turn. ``most``: at how many groups it looks at most. ``origin``: where the claims began that
    found nothing, until they are round.
    """

    since: str = ""
    rest: int = 0
    most: int = MANY_GROUPS
    origin: str | None = None
    # The earliest next permit of those that were passed since then.
    permit_at: float | None = None
    position: tuple[int, int] = _START
    scanned: int = 0
    rescan_at: int = 0
    is_scanned: bool = False

    def ahead(self, kind: str, limit: int, wait: int | None, now: int | None) -> Ahead:
        """Return where a claim of so many messages looks."""
        groups = min(max(limit, FEWEST_GROUPS), self.most)
        rows = SCANNED if self.origin is None else SCANNED_IDLE
        return Ahead(kind, self.since, groups, self.position, rows, wait, now)

    def pass_by(self, names: Sequence[str], width: int) -> bool:
        """Note groups of which nothing was leased; return whether all have been passed."""
        begun, is_first = self.since, self.origin is None
        if is_first:
            self.origin = begun
        if len(names) < width:
            return True
        self.since, self.rest = behind(names[-1]), 0
        return not is_first and _is_between(str(self.origin), begun, self.since)

    def begin_anew(self) -> None:
        self.origin = self.permit_at = None

    def note_permit(self, at: float, now: int) -> None:
        """Note when a group has a permit again that has none now."""
        if at <= now:
            return
        self.permit_at = at if self.permit_at is None else min(self.permit_at, at)

    def note_scan(self, found: UngroupedRow, asked: int, taken: int, now: int) -> None:
        """Go on behind what was read, unless some of it is still there to be leased."""
        self.is_scanned = found.read < asked
        if taken < len(found.ids):
            return
        self.scanned += found.read
        if not self.is_scanned:
            self.position = (found.at, found.id)
            return
        self.position = (max(found.at, NO_FLOOR + MARGIN_MS) - MARGIN_MS, 0)
        if now >= self.rescan_at:
            self.position = _START if self.rescan_at else self.position
            self.rescan_at = now + RESCAN_MS + RESCAN_MS_EACH * self.scanned
            self.scanned = 0


def behind(name: str) -> str:
    """Return the first name behind this one, in the order of their characters."""
    return name + "\x01"


def _is_between(origin: str, begun: str, end: str) -> bool:
    """Return whether a way round from ``begun`` to ``end`` leads over the origin."""
    return begun <= origin <= end if begun <= end else origin >= begun or origin <= end


class GroupClaim(NamedTuple):
    """What was leased; whether more may be there, and in how many milliseconds is a permit."""

    rows: list[LeasedRow]
    has_more: bool = False
    permit_in: int | None = None
    # Whether one of the limits that were met is a rate.
    is_rated: bool = False
    # Otherwise nothing holds the queue back, and plain claims serve.
    is_limited: bool = True


@dataclass(slots=True)
class GroupClaimer:
    """One claim by group: a look under the turn of the kind, shares, leases, permits spent.

    To be called in a transaction, which must be at READ COMMITTED.
    """

    messages: MessageManager[Any]
    walk: GroupWalk
    kind: str
    limit: int
    lease_ids: tuple[str, str]
    lease: int
    using: str
    now: int | None = None
    wait: int | None = None
    _rules: RulesRow = field(init=False)

    def __call__(self) -> GroupClaim:
        ahead = self.walk.ahead(self.kind, self.limit, self.wait, self.now)
        look = self.messages.look(ahead, using=self.using)
        if look.isolation != "read committed":
            raise InvalidConfiguration(
                f"The queue {self.kind!r} has limits, and the transaction is at {look.isolation}: "
                "it does not see what others have leased since it began. Poll outside of it, or at "
                "READ COMMITTED."
            )
        if look.rules is None:
            return GroupClaim([], is_limited=False)
        self._rules = rules = look.rules
        limit = min(self.limit, permits(rules.interval, rules.burst, rules.spent_until, rules.now))
        if rules.is_paused:
            return GroupClaim([])
        if limit == 0 and rules.interval is not None:
            at = next_permit(rules.interval, rules.burst, rules.spent_until)
            return GroupClaim([], permit_in=_until(at, rules.now), is_rated=True)
        rows = self._lease(self._shares(look, limit))
        self._spend(rows, look)
        return self._noted(rows, look, ahead)

    def _shares(self, look: Look, limit: int) -> list[Share]:
        found = [candidate(row, self._rules.now) for row in look.groups]
        if look.ungrouped.ids:
            found.append(Candidate(None, len(look.ungrouped.ids)))
        numbers = (self._deal if self._rules.is_fair else self._hand_out)(limit, found)
        return [
            share
            for each, number in zip(found, numbers, strict=True)
            if number > 0
            for share in self._shares_of(each, number, look)
        ]

    def _deal(self, limit: int, found: list[Candidate]) -> list[int]:
        walk = self.walk
        first = walk.rest if found and found[0].name == walk.since else 0
        asked = [(each.weight, each.room) for each in found]
        numbers, last, rest = deal(limit, asked, first)
        names = [each.name for each in found[: last + 1] if each.name is not None]
        if any(numbers) and names:
            is_cut = rest > 0 and found[last].name is not None
            walk.since, walk.rest = (names[-1], rest) if is_cut else (behind(names[-1]), 0)
        return numbers

    def _hand_out(self, limit: int, found: list[Candidate]) -> list[int]:
        if names := [each.name for each in found if each.name is not None]:
            self.walk.since = behind(names[-1])
        found.sort(key=lambda each: each.earliest)
        return hand_out(limit, [each.room for each in found])

    def _shares_of(self, each: Candidate, number: int, look: Look) -> list[Share]:
        if each.name is not None:
            return [each.share(number)]
        return [Share(None, 1, head=message_id) for message_id in look.ungrouped.ids[:number]]

    def _lease(self, shares: list[Share]) -> list[LeasedRow]:
        if not shares:
            return []
        lease = GroupLease(self.kind, *self.lease_ids, self.lease, self._rules.now)
        return self.messages.lease_groups(lease, shares, using=self.using)

    def _spend(self, rows: list[LeasedRow], look: Look) -> None:
        """Spend a permit for each message leased: of its group, and of the queue."""
        intervals = {row.name: row.interval for row in look.groups if row.interval is not None}
        leased = Counter(row.group for row in rows)
        times = {
            name: interval * leased[name] for name, interval in intervals.items() if leased[name]
        }
        if self._rules.interval is not None and rows:
            times[""] = self._rules.interval * len(rows)
        if times:
            self.messages.spend(self.kind, times, now=self._rules.now, using=self.using)

    def _noted(self, rows: list[LeasedRow], look: Look, ahead: Ahead) -> GroupClaim:
        walk, now = self.walk, self._rules.now
        walk.note_scan(look.ungrouped, ahead.rows, sum(row.group is None for row in rows), now)
        for row in look.groups:
            if row.is_due and row.interval is not None:
                walk.note_permit(next_permit(row.interval, row.burst, row.spent_until), now)
        intervals = [self._rules.interval, *(row.interval for row in look.groups)]
        is_rated = any(each is not None for each in intervals)
        if len(rows) < self.limit and len(look.groups) == walk.most:
            walk.most = MOST_GROUPS
        if rows:
            walk.begin_anew()
            return GroupClaim(rows, has_more=True, is_rated=is_rated)
        names = [row.name for row in look.groups]
        if not walk.pass_by(names, ahead.groups) or not walk.is_scanned:
            return GroupClaim([], has_more=True, is_rated=is_rated)
        permit_in = None if walk.permit_at is None else _until(walk.permit_at, now)
        walk.begin_anew()
        return GroupClaim([], permit_in=permit_in, is_rated=is_rated)


def _until(at: float, now: int) -> int:
    return max(math.ceil(at - now), 1)


class HeldGroup(NamedTuple):
    """A group, or (empty) a queue, that is held back or may be: its limits, and why it waits.

    ``reason`` is one of ``paused``, ``blocked``, ``throttled``, ``full``, ``waiting``, or empty;
    ``until`` in milliseconds where the clock ends it.
    """

    name: str
    reason: str
    until: int | None
    due_since: int | None
    leased: int
    concurrency: int | None


def why(row: GroupRow, now: int) -> tuple[str, int | None]:
    """Return why nothing of a group is leased that is due, and until when."""
    if row.is_paused:
        return "paused", None
    if not row.is_due:
        return "", None
    if row.is_blocked:
        return "blocked", None
    if row.waits_until is not None and row.waits_until > now:
        return "waiting", row.waits_until
    limit = 1 if row.is_ordered else row.concurrency
    if limit is not None and row.held >= limit and row.live >= limit:
        return "full", None
    if row.interval is not None and not permits(row.interval, row.burst, row.spent_until, now):
        return "throttled", math.ceil(next_permit(row.interval, row.burst, row.spent_until))
    return "", None


class GroupService:
    """What holds the groups of a queue back, to be read and changed while workers run.

    A change is in force with the next claim, in any process; what is leased already runs on.
    """

    def __init__(self, queue: QueueBase, limits: LimitManager[Any]) -> None:
        self._queue = queue
        self._limits = limits

    def set(self, rules: Groups) -> None:
        """Hold all groups to these rules, until a handler declares others than it did last."""
        self._write(rules, declared="", is_change=True)

    def clear(self) -> None:
        """Hold the groups to no rules; those of single groups and pauses stay."""
        self._write(Groups(), declared=None, is_change=True)

    def declare(self, rules: Groups | None) -> None:
        """Hold all groups to a handler's rules, unless it declared just these the last time."""
        declared = None if rules is None else str(rules)
        self._write(rules or Groups(), declared=declared, is_change=False)

    def _write(self, rules: Groups, *, declared: str | None, is_change: bool) -> None:
        params = declaration(rules, declared, is_change=is_change)
        kind, using = self._queue.kind, self._queue.using
        self._queue.write_limits(lambda _: self._limits.declare(kind, params, using=using))

    def limit(
        self,
        group: str,
        *,
        concurrency: int | None = None,
        weight: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
    ) -> None:
        """Give one group limits of its own; what is left out is as for all groups.

        ``weight``: how many messages it has for one of the others at each turn.
        """
        kind, name, using = self._queue.kind, named(group), self._queue.using
        params = {
            "concurrency": check_limit("concurrency", concurrency),
            "weight": check_limit("weight", weight), "interval": _interval(rate),
            "burst": check_limit("burst", burst),
        }  # fmt: skip
        self._queue.write_limits(
            lambda _: self._limits.limit_group(kind, name, params, using=using)
        )

    def pause(self, group: str, reason: str = "", by: str = "") -> bool:
        """Hand out nothing of the group until resumed; return False when it is paused already."""
        kind, name, using = self._queue.kind, named(group), self._queue.using
        return self._queue.write_limits(
            lambda now: self._limits.pause(
                kind, group=name, reason=storable(reason), by=storable(by), now=now, using=using
            )
        )

    def resume(self, group: str) -> bool:
        """Hand out messages of the group again, past what is dead of it; return if it was held."""
        kind, name, using = self._queue.kind, named(group), self._queue.using
        was_blocked = self._queue.write_limits(
            lambda now: self._limits.pass_dead(kind, name, now=now, using=using)
        )
        was_paused = self._queue.write_limits(
            lambda _: self._limits.resume(kind, group=name, using=using)
        )
        return was_paused or was_blocked

    def held(self, limit: int = 100) -> list[HeldGroup]:
        """Return the groups of which something is due or that are limited, the longest held first.

        Of the first ``limit`` groups that have messages, in the order of their names.
        """
        found = [
            HeldGroup(
                row.name, *why(row, row.now), row.earliest if row.is_due else None, row.live,
                1 if row.is_ordered else row.concurrency,
            )
            for row in self._queue.look_at_groups(limit)
        ]  # fmt: skip
        return sorted(found, key=lambda each: (not each.reason, each.due_since or _ALL**2))


def declaration(rules: Groups, declared: str | None, *, is_change: bool) -> dict[str, Any]:
    """Return rules as they are written: declared by a handler, or as an operator's change."""
    return {
        "declared": declared, "is_change": is_change, "is_ordered": rules.is_ordered,
        "is_fair": rules.fair, "blocks_on_dead": rules.blocks_on_dead,
        "concurrency": rules.concurrency, "interval": _interval(rules.rate),
        "burst": rules.burst, "queue_interval": _interval(rules.queue_rate),
        "queue_burst": rules.queue_burst,
    }  # fmt: skip


def why_not_limited(kind: str, using: str, *, holds: bool = False) -> str:
    """Return why a queue can have no limits; empty where it can.

    With ``holds`` that stays so until the transaction ends, which must hold no limits yet.
    """
    if any(each.kind == kind and each.transactional for each in registry):
        return (
            f"The handler of {kind!r} is transactional: it leases nothing, and what limits count "
            "is leases. It would find nothing."
        )
    return next(filter(None, (guard(kind, using, holds) for guard in hooks.limit_guards)), "")


def named(group: str) -> str:
    """Return the name of a group, which must be one."""
    if group is None:
        raise InvalidMessage("Name a group.")
    return str(check_group(group))


def _interval(rate: str | None) -> float | None:
    return None if rate is None else parse_rate(rate)
