"""The referee: compares promises, the database and the handlers' effects."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter
from tests.chaos import groups
from tests.chaos.audit import Event, events
from tests.workerapp.models import Effect


@dataclass
class Findings:
    """Counts to report, and the versions that broke each promise."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def expect(self, what: str, versions: set[str]) -> None:
        """Record the versions for which the statement does not hold."""
        if versions:
            self.broken[what] += sorted(versions)


@dataclass
class History:
    """The fate of the versions of one queue."""

    offered: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    settled: dict[str, str | None] = field(default_factory=dict)
    # By version and lease: the end of each lease that was not settled.
    ended: dict[tuple[str, str], Event] = field(default_factory=dict)
    early: set[str] = field(default_factory=set)

    def add(self, event: Event) -> None:
        if event.old is not None and _is_early(event):
            self.early.add(event.old)
        if event.new is not None and event.new != event.old:
            self.offered.add(event.new)
            self.settled.pop(event.new, None)  # consumed, and put back in the same transaction
        if event.old is None or event.old == event.new:
            self._end_lease(event)
        elif event.is_producer:
            self.withdrawn.add(event.old)
        else:
            self.settled[event.old] = event.old_lease

    def _end_lease(self, event: Event) -> None:
        if event.old is not None and event.old_lease not in {None, event.new_lease}:
            self.ended[event.old, str(event.old_lease)] = event


def _is_early(event: Event) -> bool:
    """True if a claim took a message before it was due, or before its lease expired."""
    is_claim = event.is_delivery and event.new_lease not in {None, event.old_lease}
    is_consumed = event.new is None and event.old_lease is None and not event.is_producer
    return (is_claim or is_consumed) and event.at < (event.available_at or 0)


def history(queue: str) -> History:
    found = History()
    for event in events(DelayedQueue(queue).kind):
        found.add(event)
    return found


def judge_leased(queue: str, confirmed: set[str], killed: set[int], found: Findings) -> None:
    """Judge a queue whose worker leases: at least once, and twice only after a fault."""
    past = history(queue)
    effects: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for key, pid in Effect.objects.filter(queue=queue).values_list("key", "pid"):
        version, _, lease = key.partition("@")
        effects[version].append((lease, pid))
    _judge_ends(queue, past, confirmed, set(effects), found)
    handled = {(version, lease) for version, each in effects.items() for lease, _ in each}
    stale = {v for v, lease in past.settled.items() if (v, lease) not in handled}
    found.expect(f"{queue}: settled by a lease that did not handle it", stale - _dead(queue))
    _judge_repetitions(queue, past, effects, killed, found)


def judge_exact(queue: str, confirmed: set[str], found: Findings) -> None:
    """Judge a queue whose effects are in the transaction of the deletion: exactly once."""
    past = history(queue)
    effects = Counter(
        key.partition("@")[0]
        for key in Effect.objects.filter(queue=queue).values_list("key", flat=True)
    )
    _judge_ends(queue, past, confirmed, set(effects), found)
    twice = {version for version, times in effects.items() if times > 1}
    found.expect(f"{queue}: handled twice", twice)
    found.expect(f"{queue}: handled, and not settled", set(effects) - past.settled.keys())


def judge_groups(queue: str, limit: int, found: Findings, *, is_ordered: bool = False) -> None:
    """Judge a queue with limits: no group above its limit, and no message out of order."""
    verdict = groups.judge(DelayedQueue(queue).kind, limit, is_ordered=is_ordered)
    found.counts[f"{queue}: leases"] = verdict.leases
    found.counts[f"{queue}: most of a group at a time"] = verdict.most
    found.expect(f"{queue}: leased beyond the limit of its group", set(verdict.violations))


def _judge_ends(
    queue: str, past: History, confirmed: set[str], handled: set[str], found: Findings
) -> None:
    ended = past.withdrawn | past.settled.keys()
    found.counts[f"{queue}: versions offered"] = len(past.offered)
    found.counts[f"{queue}: replaced or dropped unhandled"] = len(past.withdrawn - handled)
    found.counts[f"{queue}: handled"] = len(handled)
    found.expect(f"{queue}: confirmed, and never stored", confirmed - past.offered)
    found.expect(f"{queue}: stored, and neither handled nor withdrawn", past.offered - ended)
    found.expect(f"{queue}: gone unhandled", past.settled.keys() - handled - _dead(queue))
    found.expect(f"{queue}: given up", _dead(queue))
    found.expect(f"{queue}: taken before it was due or its lease over", past.early)


def _dead(queue: str) -> set[str]:
    kind = DelayedQueue(queue).kind
    letters = DeadLetter.objects.filter(kind=kind).values_list("payload", flat=True)
    return {bytes(each).decode().strip('"') for each in letters}


def _judge_repetitions(
    queue: str,
    past: History,
    effects: dict[str, list[tuple[str, int]]],
    killed: set[int],
    found: Findings,
) -> None:
    """Return the reason for each version that was handled again."""
    for version, deliveries in effects.items():
        leases = [lease for lease, _ in deliveries]
        if len(set(leases)) < len(leases):
            found.expect(f"{queue}: handled twice under one lease", {version})
        for lease, pid in deliveries:
            if len(deliveries) > 1 and past.settled.get(version) != lease:
                cause = _cause(past.ended.get((version, lease)), pid in killed)
                found.counts[f"{queue}: handled again, {cause}"] += 1


def _cause(end: Event | None, was_killed: bool) -> str:
    if end is None:
        return "withdrawn during the last time"
    if end.new_lease is None:
        return "given back with an error or at the end of a worker"
    return "its process was killed" if was_killed else "its lease ended in a stop or an outage"
