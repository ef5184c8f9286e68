"""Why queues are late: the same reasons for the admin, commands and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS
from django.utils.translation import gettext_lazy as _
from django.utils.translation import override

from delayed_queue.conf import get_settings
from delayed_queue.facade import DelayedQueue
from delayed_queue.observe.overview import QueueDepth, handler_of
from delayed_queue.observe.snapshots import OLD, Snapshot, oldest_snapshot
from delayed_queue.observe.workers import DRAIN, LiveWorkers, Worker
from delayed_queue.queue.groups import HeldGroup
from delayed_queue.queue.models import DeadLetter, Limit

# At most N groups of a queue are examined, and named in a reason.
_MAX_GROUPS: Final = 100
_MAX_NAMED: Final = 3
# The reasons of HeldGroup, by the reason of its queue and in words.
_OF_GROUPS: Final = {
    "paused": ("paused", _("groups are paused: %(groups)s")),
    "blocked": ("blocked", _("groups are blocked by a dead letter: %(groups)s")),
    "throttled": ("limited", _("groups are at their rate limit: %(groups)s")),
    "full": ("limited", _("groups have their maximum of messages in progress: %(groups)s")),
    "waiting": ("limited", _("groups wait for a retry, in order: %(groups)s")),
    "queue_throttled": ("limited", _("the queue is at its rate limit")),
}


class Reason(NamedTuple):
    """A reason why a queue is late; ``name`` is its kind, for programs.

    ``age``: the time since when it applies, if known. ``letter``: the dead letter that blocks.
    """

    name: str
    words: Any
    facts: dict[str, Any] = {}
    age: timedelta | None = None
    letter: int | None = None

    def described(self, span: Callable[[timedelta], str]) -> str:
        """Return the sentence in the active language; ``span`` writes durations."""
        said = str(self.words) % {name: str(each) for name, each in self.facts.items()}
        since = "" if self.age is None else _("for %(span)s") % {"span": span(self.age)}
        return f"{said} {since}".rstrip()

    def __str__(self) -> str:
        """Return the sentence in English."""
        with override(None):
            return self.described(lambda age: str(timedelta(seconds=int(age.total_seconds()))))


class _Facts(NamedTuple):
    """The facts behind the reasons of all queues."""

    live: LiveWorkers
    pauses: dict[str, Limit]
    held: dict[str, list[HeldGroup]]
    snapshot: Snapshot | None


def is_late(depth: QueueDepth) -> bool:
    """True if the earliest due message is later than QUEUE_LATE."""
    return (depth.oldest_due_age or timedelta(0)) > get_settings().QUEUE_LATE


def why_late(
    depths: Sequence[QueueDepth],
    live: LiveWorkers,
    snapshot: Snapshot | None,
    *,
    using: str = DEFAULT_DB_ALIAS,
) -> dict[str, list[Reason]]:
    """Return why those queues are late, by kind: at least one reason each, the first cause first.

    Reads a few rows of each queue that has limits.
    """
    # "" keeps the list from being empty: every page runs the same statements.
    limits = Limit.objects.using(using).filter(kind__in=["", *(each.kind for each in depths)])
    # The row of the queue, or else the first of its groups.
    firsts = {row.kind: row for row in limits.order_by("kind", "group").distinct("kind")}
    facts = _Facts(
        live,
        {kind: row for kind, row in firsts.items() if not row.group and row.paused_at is not None},
        {each.kind: _held(each, using) for each in depths if each.kind in firsts},
        snapshot if snapshot is not None and snapshot.is_older_than(OLD) else None,
    )
    backlog = Reason("backlog", _("more is due than its workers have handled so far"))
    return {each.kind: list(_reasons(each, facts, using)) or [backlog] for each in depths}


def reasons_of(
    depths: Sequence[QueueDepth], *, using: str = DEFAULT_DB_ALIAS
) -> dict[str, list[Reason]]:
    """Do the same after reading the live workers and the oldest snapshot; nothing for no queue."""
    if not depths:
        return {}
    return why_late(depths, Worker.objects.live(using=using), oldest_snapshot(using), using=using)


def _held(depth: QueueDepth, using: str) -> list[HeldGroup]:
    queue = DelayedQueue(depth.name.queue, kind=depth.kind, using=using)
    return queue.groups.held(_MAX_GROUPS)


def _reasons(depth: QueueDepth, facts: _Facts, using: str) -> Iterator[Reason]:
    """Yield the reasons in the order in which an operator should check them."""
    workers = [each for each in facts.live.workers if depth.name.queue in each.queues]
    if all(each.command == DRAIN for each in workers):
        words = _("all its workers are drained") if workers else _("no worker serves it")
        yield Reason("unserved", words)
    if (pause := facts.pauses.get(depth.kind)) is not None:
        yield _paused(pause, facts.live.now)
    groups = dict(_of_groups(depth.kind, facts.held.get(depth.kind, []), using))
    yield from (each for name, each in groups.items() if name == "paused")
    yield from _busy(depth.kind, workers)
    yield from (each for name, each in groups.items() if name == "blocked")
    yield from (each for each in groups.values() if each.name == "limited")
    if facts.snapshot is not None:
        words = _("an old snapshot slows claims: %(holder)s")
        yield Reason("snapshot", words, {"holder": facts.snapshot})


def _paused(pause: Limit, now: datetime) -> Reason:
    why = ": ".join(filter(None, (pause.paused_by, pause.reason)))
    words = _("paused (%(why)s)") if why else _("paused")
    return Reason("paused", words, {"why": why}, now - pause.paused_at)


def _busy(kind: str, workers: Sequence[Worker]) -> Iterator[Reason]:
    """Yield a reason if all threads of the queue's workers are busy."""
    handler = handler_of(kind)
    is_full = all(0 < each.threads <= sum(each.busy.values()) for each in workers)
    if not workers or not is_full or (handler is not None and handler.is_async):
        return
    busy: Counter[str] = Counter()
    for each in workers:
        busy.update(each.busy)
    named = ", ".join(f"{queue} ({count})" for queue, count in busy.most_common(_MAX_NAMED))
    words = _("all %(number)s threads of its workers are busy: %(work)s")
    yield Reason("busy", words, {"number": sum(busy.values()), "work": named})


def _of_groups(kind: str, held: Sequence[HeldGroup], using: str) -> Iterator[tuple[str, Reason]]:
    """Yield a reason for each reason of groups."""
    for name, (reason, words) in _OF_GROUPS.items():
        groups = [each.name for each in held if each.reason == name]
        if groups:
            more = len(groups) - _MAX_NAMED
            shown = ", ".join(groups[:_MAX_NAMED]) + (f" (+{more})" if more > 0 else "")
            letter = _blocking(kind, groups[0], using) if name == "blocked" else None
            yield name, Reason(reason, words, {"groups": shown}, letter=letter)


def _blocking(kind: str, group: str, using: str) -> int | None:
    """Return the latest dead letter of the group."""
    rows = DeadLetter.objects.using(using).filter(kind=kind, group=group)
    return rows.order_by("-died_at").values_list("id", flat=True).first()
