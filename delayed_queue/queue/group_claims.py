"""Claims of a queue with limits: read its groups, divide the claim, lease."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.queue.dealing import Dealt, deal_out, spent_by
from delayed_queue.queue.models import MessageManager
from delayed_queue.queue.store.claim import NO_FLOOR, LeasedRow, earliest_first
from delayed_queue.queue.store.groups import Ahead, GroupLease, UngroupedRow

# Bounds of the number of groups that a claim reads: one per message of its limit, or per two if
# groups have two. MOST_GROUPS applies after MANY_GROUPS did not fill a claim.
FEWEST_GROUPS: Final = 32
MANY_GROUPS: Final = 256
MOST_GROUPS: Final = 512
# Number of messages scanned for those without a group; SCANNED_IDLE after a claim that found none.
SCANNED: Final = 100
SCANNED_IDLE: Final = 500
# Pause before a scan from the start, in milliseconds: RESCAN_MS, and RESCAN_MS_EACH per message of
# the last one. So scans take a small part of a process's time.
RESCAN_MS: Final = 1_000
RESCAN_MS_EACH: Final = 1
# Overlap of two scans, in milliseconds: offers may commit in another order than that of their due
# times, usually by less than this.
MARGIN_MS: Final = 2_000
# Maximum time between the statements of a claim, in milliseconds; usually a few. A process that is
# suspended in between would keep all others from the queue.
IDLE_MS: Final = 5_000
_START: Final = (NO_FLOOR, 0)


class GroupClaim(NamedTuple):
    """The leased rows, whether to claim again at once, and the milliseconds until a permit."""

    rows: list[LeasedRow]
    has_more: bool = False
    permit_in: int | None = None
    # True if the queue, or one of its groups, has a rate.
    is_rated: bool = False
    # False if the queue has no limits: plain claims serve.
    is_limited: bool = True


@dataclass(slots=True)
class UngroupedScan:
    """The position of one consumer among the messages without a group, by due time and id."""

    position: tuple[int, int] = _START
    # True if the last claim read as far as the end.
    is_at_end: bool = False
    # Messages read since the last scan from the start, and the time of the next one.
    _read: int = 0
    _rescan_at: int = 0

    def rewind(self) -> None:
        """Scan from the start after the end: messages may be due there again."""
        self._rescan_at = 1

    def note(self, ahead: Ahead, found: UngroupedRow, wanted: int, taken: int, now: int) -> None:
        """Move on behind what was read, unless some of it is left to lease.

        Messages that other sessions have all locked wait for the next scan from the start.
        """
        self.is_at_end = found.read < ahead.rows
        are_held = taken == 0 < wanted
        if taken < len(found.ids) and not are_held:
            return
        self._read += found.read
        if not self.is_at_end:
            self.position = (found.at, found.id)
            return
        self.position = (max(found.at, NO_FLOOR + MARGIN_MS) - MARGIN_MS, 0)
        if now >= self._rescan_at:
            self.position = _START if self._rescan_at else self.position
            self._rescan_at = now + RESCAN_MS + RESCAN_MS_EACH * self._read
            self._read = 0


@dataclass(slots=True)
class GroupWalk:
    """The position of one consumer among the groups of a queue with limits.

    ``since`` is the name at which the next claim starts, ``rest`` what is left of its turn.
    ``each`` is the expected number of messages of a group, ``most`` the maximum of groups to read.
    ``origin`` is where the current series of claims that found nothing started.
    """

    since: str = ""
    rest: int = 0
    each: float = 1.0
    most: int = MANY_GROUPS
    origin: str | None = None
    # The earliest next permit of the groups read since ``origin``.
    permit_at: float | None = None
    ungrouped: UngroupedScan = field(default_factory=UngroupedScan)

    def claim(
        self,
        messages: MessageManager[Any],
        kind: str,
        limit: int,
        lease: GroupLease,
        *,
        wait: int | None,
        idle: int | None,
        now: int | None,
        using: str,
    ) -> GroupClaim:
        """Lease messages of the next groups, in a transaction that the caller opens.

        Raises InvalidConfiguration where the transaction is not at READ COMMITTED.
        """
        ahead = self._ahead(kind, limit, wait, idle, now)
        look = messages.look(ahead, using=using)
        if look.isolation != "read committed":
            raise InvalidConfiguration(
                f"The queue {kind!r} has limits, and the transaction is at {look.isolation}: it "
                "does not see what others have leased since it began. Poll outside of it, or at "
                "READ COMMITTED."
            )
        rules = look.rules
        if rules is None or rules.is_paused:
            return GroupClaim([], is_limited=rules is not None)
        dealt = deal_out(ahead, look, rules)
        rows: list[LeasedRow] = []
        if dealt.shares or dealt.ungrouped:
            rows = messages.lease_groups(
                kind, lease, dealt.shares, look.ungrouped.ids, dealt.ungrouped,
                limit=dealt.limit, now=rules.now, using=using,
            )  # fmt: skip
        if spent := spent_by(rules, look.groups, rows):
            messages.spend(kind, spent, using=using)
        return self._note(ahead, look.ungrouped, dealt, rows, rules.now)

    def _ahead(
        self, kind: str, limit: int, wait: int | None, idle: int | None, now: int | None
    ) -> Ahead:
        groups = min(max(math.ceil(limit / self.each), FEWEST_GROUPS), self.most)
        rows = SCANNED if self.origin is None else SCANNED_IDLE
        position = self.ungrouped.position
        return Ahead(kind, limit, self.since, self.rest, groups, *position, rows, wait, idle, now)

    def _note(
        self, ahead: Ahead, scan: UngroupedRow, dealt: Dealt, rows: list[LeasedRow], now: int
    ) -> GroupClaim:
        """Move on behind what was found; return the claim."""
        if dealt.limit == 0:
            return GroupClaim([], permit_in=_until(dealt.permit_at, now), is_rated=True)
        taken = sum(row.group is None for row in rows)
        self.ungrouped.note(ahead, scan, dealt.ungrouped, taken, now)
        if len(rows) < ahead.limit and dealt.groups == self.most:
            self.most = MOST_GROUPS
        self.each = max(dealt.room / max(dealt.groups, 1), 1.0)
        if not rows:
            return self._note_none(ahead, dealt, now)
        self._begin_anew()
        since = dealt.last if dealt.since is None else dealt.since
        if since is not None:
            self.rest = dealt.rest
            self.since = since if self.rest else behind(since)
        return GroupClaim(rows, has_more=True, is_rated=dealt.is_rated)

    def _note_none(self, ahead: Ahead, dealt: Dealt, now: int) -> GroupClaim:
        if dealt.permit_at is not None:
            self.permit_at = min(dealt.permit_at, self.permit_at or math.inf)
        if not self._pass_by(ahead, dealt) or not self.ungrouped.is_at_end:
            return GroupClaim([], has_more=True, is_rated=dealt.is_rated)
        permit_in = _until(self.permit_at, now)
        self._begin_anew()
        return GroupClaim([], permit_in=permit_in, is_rated=dealt.is_rated)

    def _pass_by(self, ahead: Ahead, dealt: Dealt) -> bool:
        """Move on behind groups of which nothing was leased; return whether all are passed.

        A group whose messages another session has locked has had its turn.
        """
        is_first = self.origin is None
        if is_first:
            self.origin = ahead.since
        end = dealt.last if dealt.since is None else dealt.since
        if end is None or (dealt.since is None and dealt.groups < ahead.groups):
            return True
        self.since, self.rest = behind(end), 0
        return not is_first and _is_between(str(self.origin), ahead.since, self.since)

    def _begin_anew(self) -> None:
        self.origin = self.permit_at = None


def behind(name: str) -> str:
    """Return the first possible name after this one."""
    return name + "\x01"


def _is_between(origin: str, begun: str, end: str) -> bool:
    """Return whether the way round from ``begun`` to ``end`` passes the origin."""
    return begun <= origin <= end if begun < end else origin >= begun or origin <= end


def by_turns(rows: list[LeasedRow]) -> list[LeasedRow]:
    """Order rows for handling: the first of each group before the second of any."""
    before: Counter[str | None] = Counter()
    ranked = []
    for row in earliest_first(rows):
        ranked.append((before[row.group], row))
        before[row.group] += 1
    ranked.sort(key=itemgetter(0))
    return [row for _, row in ranked]


def _until(at: float | None, now: int) -> int | None:
    return None if at is None else max(math.ceil(at - now), 1)
