"""Groups: who of them is served next and how much of it, and what holds them back."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.handlers import registry, storable
from delayed_queue.messages import check_group
from delayed_queue.models import LimitManager
from delayed_queue.queue.base import QueueBase
from delayed_queue.queue.hooks import hooks
from delayed_queue.queue.store.claim import NO_FLOOR, LeasedRow, earliest_first
from delayed_queue.queue.store.groups import Ahead, GroupRow, Seen
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.retries import Groups, check_limit, parse_rate

# How many groups a claim looks at: one for each message it is to find, or for two where groups have
# them, within these bounds. The upper one where so many groups have not filled a claim.
FEWEST_GROUPS: Final = 32
MANY_GROUPS: Final = 256
MOST_GROUPS: Final = 512
# How many messages it leases at most: its sums are of integers.
MOST_MESSAGES: Final = 1_000_000
# How many messages it looks through for those without a group; and while it finds nothing else.
SCANNED: Final = 100
SCANNED_IDLE: Final = 500
# After a scan to the end, the next one from the start begins after so long, and so much longer for
# each message that was read: little enough of a process's time.
RESCAN_MS: Final = 1_000
RESCAN_MS_EACH: Final = 1
# How far below its end the next scan begins: offers commit in another order than that of their
# due times, usually by less than this.
MARGIN_MS: Final = 2_000
# More than any claim asks for.
_ALL: Final = 2**31 - 1
_START: Final = (NO_FLOOR, 0)


def permits(interval: float | None, burst: int, spent_until: float | None, now: int) -> int:
    """Return the number of free permits: one every interval, kept up to the burst."""
    if interval is None:
        return _ALL
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
class GroupWalk:
    """How far the claims of one consumer have come: round the groups, and through the ungrouped.

    ``since``: the name from which the next claim looks on, and what that group has left of its
    turn. ``each``: how many messages of a group it counts on. ``most``: at how many groups it looks
    at most. ``origin``: where the claims began that found nothing, until they are round.
    """

    since: str = ""
    rest: int = 0
    each: float = 1.0
    most: int = MANY_GROUPS
    origin: str | None = None
    # The earliest next permit of those that were passed since then.
    permit_at: float | None = None
    position: tuple[int, int] = _START
    scanned: int = 0
    rescan_at: int = 0
    is_scanned: bool = False

    def ahead(self, kind: str, limit: int, wait: int | None, now: int | None = None) -> Ahead:
        """Return where a claim of so many messages looks."""
        groups = min(max(math.ceil(limit / self.each), FEWEST_GROUPS), self.most)
        rows = SCANNED if self.origin is None else SCANNED_IDLE
        limit = min(limit, MOST_MESSAGES)
        return Ahead(kind, limit, self.since, self.rest, groups, *self.position, rows, wait, now)

    def note(self, ahead: Ahead, found: Seen, rows: list[LeasedRow]) -> GroupClaim:
        """Go on behind what a claim has found; return it."""
        if found.isolation != "read committed":
            raise InvalidConfiguration(
                f"The queue {ahead.kind!r} has limits, and the transaction is at "
                f"{found.isolation}: it does not see what others have leased since it began. Poll "
                "outside of it, or at READ COMMITTED."
            )
        if found.is_paused is None:
            return GroupClaim([], is_limited=False)
        if found.is_paused:
            return GroupClaim([])
        if found.queue_permit_at is not None and found.queue_permit_at > found.now:
            return GroupClaim([], permit_in=_until(found.queue_permit_at, found.now), is_rated=True)
        self._note_scan(found, ahead.rows, sum(row.group is None for row in rows))
        if len(rows) < ahead.limit and found.groups == self.most:
            self.most = MOST_GROUPS
        self.each = max(found.room / max(found.groups, 1), 1.0)
        if rows:
            return self._note_rows(found, rows)
        return self._note_none(ahead, found)

    def rewind(self) -> None:
        """Scan from the start again, once the end is reached: something may be due there again."""
        self.rescan_at = 1

    def _note_rows(self, found: Seen, rows: list[LeasedRow]) -> GroupClaim:
        self._begin_anew()
        since = found.last if found.since is None else found.since
        if since is not None:
            self.rest = found.rest or 0
            self.since = since if self.rest else behind(since)
        return GroupClaim(rows, has_more=True, is_rated=found.is_rated)

    def _note_none(self, ahead: Ahead, found: Seen) -> GroupClaim:
        if found.permit_at is not None:
            self.permit_at = min(found.permit_at, self.permit_at or math.inf)
        if not self._pass_by(ahead, found) or not self.is_scanned:
            return GroupClaim([], has_more=True, is_rated=found.is_rated)
        permit_in = None if self.permit_at is None else _until(self.permit_at, found.now)
        self._begin_anew()
        return GroupClaim([], permit_in=permit_in, is_rated=found.is_rated)

    def _pass_by(self, ahead: Ahead, found: Seen) -> bool:
        """Note groups of which nothing was leased; return whether all have been passed.

        Those had a turn of which somebody holds what was to be leased: then the others have one.
        """
        is_first = self.origin is None
        if is_first:
            self.origin = ahead.since
        end = found.last if found.since is None else found.since
        if end is None or (found.since is None and found.groups < ahead.groups):
            return True
        self.since, self.rest = behind(end), 0
        return not is_first and _is_between(str(self.origin), ahead.since, self.since)

    def _begin_anew(self) -> None:
        self.origin = self.permit_at = None

    def _note_scan(self, found: Seen, asked: int, taken: int) -> None:
        """Go on behind what was read, unless some of it is still there to be leased.

        But past those all of which somebody holds: they have to wait for the rescan.
        """
        self.is_scanned = found.read < asked
        are_held = taken == 0 < found.wanted
        if taken < len(found.ids or ()) and not are_held:
            return
        self.scanned += found.read
        if not self.is_scanned:
            self.position = (found.at, found.id)
            return
        self.position = (max(found.at, NO_FLOOR + MARGIN_MS) - MARGIN_MS, 0)
        if found.now >= self.rescan_at:
            self.position = _START if self.rescan_at else self.position
            self.rescan_at = found.now + RESCAN_MS + RESCAN_MS_EACH * self.scanned
            self.scanned = 0


def behind(name: str) -> str:
    """Return the first name behind this one, in the order of their characters."""
    return name + "\x01"


def _is_between(origin: str, begun: str, end: str) -> bool:
    """Return whether a way round from ``begun`` to ``end`` leads over the origin."""
    return begun <= origin <= end if begun < end else origin >= begun or origin <= end


def by_turns(rows: list[LeasedRow]) -> list[LeasedRow]:
    """Return the earliest of each group before the second of any: they are begun in this order."""
    before: Counter[str | None] = Counter()
    ranked = []
    for row in earliest_first(rows):
        ranked.append((before[row.group], row))
        before[row.group] += 1
    ranked.sort(key=itemgetter(0))
    return [row for _, row in ranked]


def _until(at: float, now: int) -> int:
    return max(math.ceil(at - now), 1)


class HeldGroup(NamedTuple):
    """A group, or (empty) a queue, that is held back or may be: its limits, and why it waits.

    ``reason`` is empty or one of ``paused``, ``blocked``, ``waiting``, ``full``, ``throttled``,
    ``queue_paused``, ``queue_throttled``. ``until``: milliseconds, where the clock ends it.
    """

    name: str
    reason: str
    until: int | None
    due_since: int | None
    leased: int
    concurrency: int | None


def why(row: GroupRow, queue: RulesRow | None) -> tuple[str, int | None]:
    """Return why nothing of a group is leased that is due, and until when."""
    if row.is_paused:
        return "paused", None
    if not row.is_due:
        return "", None
    reason, until = _own_reason(row)
    return (reason, until) if reason or queue is None else _reason_of_queue(queue)


def _own_reason(row: GroupRow) -> tuple[str, int | None]:
    if row.is_blocked:
        return "blocked", None
    if row.waits_until is not None and row.waits_until > row.now:
        return "waiting", row.waits_until
    limit = 1 if row.is_ordered else row.concurrency
    if limit is not None and row.held >= limit and row.live >= limit:
        return "full", None
    permit_at = _next_permit_after(row, row.now)
    return ("", None) if permit_at is None else ("throttled", permit_at)


def _reason_of_queue(queue: RulesRow) -> tuple[str, int | None]:
    if queue.is_paused:
        return "queue_paused", None
    permit_at = _next_permit_after(queue, queue.now)
    return ("", None) if permit_at is None else ("queue_throttled", permit_at)


def _next_permit_after(rate: GroupRow | RulesRow, now: int) -> int | None:
    """Return when the next permit is free; None when one is free now."""
    if rate.interval is None:
        return None
    permit_at = next_permit(rate.interval, rate.burst, rate.spent_until, now)
    return math.ceil(permit_at) if permit_at > now else None


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
        self._queue._write_limits(lambda _: self._limits.declare(kind, params, using=using))

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
        self._queue._write_limits(
            lambda _: self._limits.limit_group(kind, name, params, using=using)
        )

    def pause(self, group: str, reason: str = "", by: str = "") -> bool:
        """Hand out nothing of the group until resumed; return False when it is paused already."""
        kind, name, using = self._queue.kind, named(group), self._queue.using
        return self._queue._write_limits(
            lambda now: self._limits.pause(
                kind, group=name, reason=storable(reason), by=storable(by), now=now, using=using
            )
        )

    def resume(self, group: str) -> bool:
        """Hand out messages of the group again, past what is dead of it; return if it was held."""
        kind, name, using = self._queue.kind, named(group), self._queue.using

        def resume(now: int | None) -> bool:
            was_blocked = self._limits.pass_dead(kind, name, now=now, using=using)
            return self._limits.resume(kind, group=name, using=using) or was_blocked

        return self._queue._write_limits(resume)

    def held(self, limit: int = 100) -> list[HeldGroup]:
        """Return the first ``limit`` groups that have messages, those held back the longest first.

        ``reason`` says what holds a group back; its own limits come before those of the queue.
        """
        rules = self._queue._read_rules()
        found = [
            HeldGroup(
                row.name, *why(row, rules), row.earliest if row.is_due else None, row.live,
                1 if row.is_ordered else row.concurrency,
            )
            for row in self._queue._read_groups(limit)
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
