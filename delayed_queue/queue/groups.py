"""Read and change the limits of groups."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.handlers import registry, storable
from delayed_queue.messages import check_group
from delayed_queue.queue.base import QueueBase
from delayed_queue.queue.dealing import rule_of
from delayed_queue.queue.hooks import hooks
from delayed_queue.queue.models import LimitManager
from delayed_queue.queue.store.groups import GroupRow
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.retries import Groups, check_limit, parse_rate


class HeldGroup(NamedTuple):
    """A group, or (with an empty name) a queue: its limits, and why it waits.

    ``reason`` is empty or one of ``paused``, ``blocked``, ``waiting``, ``full``, ``throttled``,
    ``queue_paused``, ``queue_throttled``; ``until`` is its end in milliseconds, if known.
    """

    name: str
    reason: str
    until: int | None
    due_since: int | None
    leased: int
    concurrency: int | None


def why(row: GroupRow, queue: RulesRow | None) -> tuple[str, int | None]:
    """Return why due messages of a group are not leased, and until when."""
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
    rule = rule_of(rate)
    if rule is None:
        return None
    permit_at = rule.next_permit(rate.spent_until, now)
    return math.ceil(permit_at) if permit_at > now else None


class GroupService:
    """The limits of a queue's groups, to be read and changed while workers run.

    A change applies to the next claim in any process, not to what is leased already.
    """

    def __init__(self, queue: QueueBase, limits: LimitManager[Any]) -> None:
        self._queue = queue
        self._limits = limits

    def set(self, rules: Groups) -> None:
        """Set the rules of all groups, until a handler declares others than before."""
        self._write(rules, declared="", is_change=True)

    def clear(self) -> None:
        """Remove the rules of all groups; limits of single groups and pauses stay."""
        self._write(Groups(), declared=None, is_change=True)

    def declare(self, rules: Groups | None) -> None:
        """Set the rules that a handler declares, unless it declared the same before."""
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
        """Set limits of one group; the rules of all groups apply to the others.

        ``weight`` is its number of messages in each turn, where other groups have one.
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
        """Hand out nothing of the group until resumed; False when it is paused already."""
        kind, name, using = self._queue.kind, named(group), self._queue.using
        return self._queue._write_limits(
            lambda now: self._limits.pause(
                kind, group=name, reason=storable(reason), by=storable(by), now=now, using=using
            )
        )

    def resume(self, group: str) -> bool:
        """Resume the group, also after dead letters that block it; True if it was held back."""
        kind, name, using = self._queue.kind, named(group), self._queue.using

        def resume(now: int | None) -> bool:
            was_blocked = self._limits.pass_dead(kind, name, now=now, using=using)
            return self._limits.resume(kind, group=name, using=using) or was_blocked

        return self._queue._write_limits(resume)

    def held(self, limit: int = 100) -> list[HeldGroup]:
        """Return the first ``limit`` groups that have messages, those held back longest first."""
        rules = self._queue._read_rules()
        found = [
            HeldGroup(
                row.name, *why(row, rules), row.earliest if row.is_due else None, row.live,
                1 if row.is_ordered else row.concurrency,
            )
            for row in self._queue._read_groups(limit)
        ]  # fmt: skip
        return sorted(found, key=lambda each: (not each.reason, each.due_since or math.inf))


def declaration(rules: Groups, declared: str | None, *, is_change: bool) -> dict[str, Any]:
    """Return the parameters of rules that a handler declares or an operator changes."""
    return {
        "declared": declared, "is_change": is_change, "is_ordered": rules.is_ordered,
        "is_fair": rules.fair, "blocks_on_dead": rules.blocks_on_dead,
        "concurrency": rules.concurrency, "interval": _interval(rules.rate),
        "burst": rules.burst, "queue_interval": _interval(rules.queue_rate),
        "queue_burst": rules.queue_burst,
    }  # fmt: skip


def why_not_limited(kind: str, using: str, *, holds: bool = False) -> str:
    """Return why a queue can have no limits; empty if it can.

    ``holds`` keeps it so until the transaction ends, which must not have locked limits yet.
    """
    if any(each.kind == kind and each.transactional for each in registry):
        return (
            f"The handler of {kind!r} is transactional and uses no leases, but "
            "limits count leases. It would find no messages."
        )
    return next(filter(None, (guard(kind, using, holds) for guard in hooks.limit_guards)), "")


def named(group: str) -> str:
    """Return the checked name of a group; None is invalid."""
    if group is None:
        raise InvalidMessage("Name a group.")
    return str(check_group(group))


def _interval(rate: str | None) -> float | None:
    return None if rate is None else parse_rate(rate)
