"""Queues and their depths, at a bounded cost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import chain
from typing import Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.codecs import codec_named, kind_of
from delayed_queue.cron.models import Schedule
from delayed_queue.handlers import Handler, registry
from delayed_queue.messages import MAX_MILLISECONDS, MILLISECOND
from delayed_queue.observe.store import EstimateRow, estimates
from delayed_queue.queue.hooks import hooks
from delayed_queue.queue.models import DeadLetter, Limit, Message
from delayed_queue.queue.store.inspect import Caps, OverviewRow

MAX_KINDS: Final = 100
LEASE_CAP: Final = 10_000
# Counts are exact up to this number and estimated beyond it.
EXACT: Final = 10_000
# Nothing is counted where the estimate is at least this.
_CLEARLY_MORE: Final = 15_000
_DIGEST: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_CAPS: Final = (10_000, 5_000, 2_000, 1_000)
# Maximum messages counted at once over all queues: with many queues, each has a lower cap.
_BUDGET: Final = 60_000


class KindName(NamedTuple):
    """A kind in the words of the code that uses it."""

    queue: str
    codec: str


class Count(NamedTuple):
    """A count, and whether counting stopped there; then it may be estimated."""

    value: int
    is_cut: bool
    is_estimated: bool = False

    def __str__(self) -> str:
        if self.is_estimated:
            return f"≈ {float(f'{self.value:.2g}'):,.0f}"
        return f"{self.value:,}+" if self.is_cut else f"{self.value:,}"


def total(counts: Iterable[Count]) -> Count:
    """Return the sum of counts, which is cut if one of them is."""
    found = list(counts)
    return Count(sum(each.value for each in found), any(each.is_cut for each in found))


class QueueDepth(NamedTuple):
    """The counts of a queue."""

    kind: str
    due: Count
    scheduled: Count
    leased: Count
    dead: Count
    oldest_due_age: timedelta | None

    @property
    def name(self) -> KindName:
        return name_of(self.kind)

    @property
    def counts(self) -> dict[str, Count]:
        return {name: getattr(self, name) for name in ("due", "scheduled", "leased", "dead")}

    @property
    def is_empty(self) -> bool:
        return not any(each.value for each in self.counts.values())


def handler_of(kind: str) -> Handler | None:
    return next((each for each in registry if each.kind == kind), None)


def name_of(kind: str) -> KindName:
    """Return the queue's name and codec; a foreign service's kind is its own name."""
    handler = handler_of(kind)
    if handler is not None:
        return KindName(handler.queue, handler.codec.name)
    queue, bar, codec = kind.rpartition("|")
    return KindName(queue, codec) if bar else KindName(kind, "")


def find_kinds(
    using: str = DEFAULT_DB_ALIAS, *, also: Sequence[str] = ()
) -> tuple[list[str], bool]:
    """Return kinds with messages, dead letters or a handler, and whether some are left out."""
    found = [
        *Message.objects.kinds(MAX_KINDS + 1, using=using),
        *DeadLetter.objects.kinds(MAX_KINDS + 1, using=using),
        *(handler.kind for handler in registry),
        *also,
    ]
    distinct = list(dict.fromkeys(found))
    return distinct[:MAX_KINDS], len(distinct) > MAX_KINDS


def measure(
    names: Sequence[str] = (), *, cap: int | None = None, using: str = DEFAULT_DB_ALIAS
) -> tuple[list[QueueDepth], bool]:
    """Return the depths of the named queues or kinds, and whether some are left out.

    The default is all queues, at most a hundred.
    """
    if not names:
        kinds, is_cut = find_kinds(using)
        return depths(kinds, cap=cap, using=using), is_cut
    candidates = [_kinds_named(name) for name in dict.fromkeys(names)]
    distinct = list(dict.fromkeys(chain.from_iterable(candidates)))
    # The number of names bounds the cost: most of their candidate kinds do not exist.
    counted = depths(distinct, cap=cap or cap_for(len(candidates)), using=using)
    by_kind = {each.kind: each for each in counted}
    chosen = chain.from_iterable(_present(kinds, by_kind) for kinds in candidates)
    return list(dict.fromkeys(chosen)), False


def is_known(name: str, using: str = DEFAULT_DB_ALIAS) -> bool:
    """True if a message, dead letter, handler, schedule or limit has the queue's name.

    A full kind such as ``orders|avro``, or the digest of a JVM service, is always known: another
    service may use it while it is empty here.
    """
    kinds = _kinds_named(name)
    if "|" in name or _DIGEST.fullmatch(name) or any(map(handler_of, kinds)):
        return True
    named = (
        Schedule.objects.using(using).filter(kind__in=kinds),
        Limit.objects.using(using).filter(kind__in=kinds),
    )
    if any(rows.exists() for rows in named) or any(ask(name, using) for ask in hooks.is_queue):
        return True
    return not all(each.is_empty for each in depths(kinds, cap=1, using=using))


def _kinds_named(name: str) -> list[str]:
    """Return the possible kinds of a queue name, the likeliest first."""
    handled = [each.kind for each in registry if each.queue == name]
    usual = [kind_of(name, codec_named(codec)) for codec in ("json", "text", "bytes")]
    return list(
        dict.fromkeys([*handled, name, *usual] if "|" in name else [*handled, *usual, name])
    )


def _present(kinds: list[str], by_kind: dict[str, QueueDepth]) -> list[QueueDepth]:
    """Return the kinds that are not empty or have a handler; else the first."""
    found = [by_kind[kind] for kind in kinds]
    present = [each for each in found if not each.is_empty or handler_of(each.kind)]
    return present or found[:1]


def cap_for(queues: int) -> int:
    """Return the cap of each count for that many queues."""
    return next((cap for cap in _CAPS if cap * queues <= _BUDGET), _CAPS[-1])


def depths(
    kinds: Sequence[str], *, cap: int | None = None, using: str = DEFAULT_DB_ALIAS
) -> list[QueueDepth]:
    """Count the messages of each kind up to the cap; sorted by kind."""
    chosen = cap_for(len(kinds)) if cap is None else cap
    rows = Message.objects.overview(kinds, chosen, lease_cap=LEASE_CAP, using=using)
    return sorted(_depth(row, EstimateRow(row.kind), chosen) for row in rows)


def estimated_depths(kinds: Sequence[str], *, using: str = DEFAULT_DB_ALIAS) -> list[QueueDepth]:
    """Count the messages of each kind up to 10,000 and estimate beyond; sorted by kind.

    A sample of pages shows first which counts are so large that they are only estimated.
    """
    guesses = {each.kind: each for each in estimates(using=using)}
    of_kinds = [guesses.get(kind, EstimateRow(kind)) for kind in kinds]
    caps = [Caps(_cap(each.due), _cap(each.scheduled), _cap(each.dead)) for each in of_kinds]
    rows = Message.objects.overview(kinds, EXACT, lease_cap=LEASE_CAP, caps=caps, using=using)
    return sorted(_depth(row, guesses.get(row.kind, EstimateRow(row.kind)), EXACT) for row in rows)


def _cap(guess: int) -> int:
    return EXACT if guess < _CLEARLY_MORE else 0


def _depth(row: OverviewRow, guess: EstimateRow, cap: int) -> QueueDepth:
    return QueueDepth(
        kind=row.kind,
        due=_count(row.due, guess.due, cap),
        scheduled=_doubted(row, _count(row.scheduled, guess.scheduled, cap, read=row.read)),
        leased=_count(row.leased, guess.leased, LEASE_CAP, read=row.held),
        dead=_count(row.dead, guess.dead, cap),
        oldest_due_age=_span(row.oldest_due_age),
    )


def _doubted(row: OverviewRow, scheduled: Count) -> Count:
    """Mark the count as an estimate if unread leases may be among it."""
    is_doubtful = row.held >= LEASE_CAP and row.scheduled > 0
    return scheduled._replace(is_cut=True, is_estimated=True) if is_doubtful else scheduled


def _count(counted: int, guess: int, cap: int, *, read: int | None = None) -> Count:
    """Return the count, or the guess where counting stopped or was left out.

    ``read`` is the number of rows that were read for the count; counting stopped at the cap.
    """
    if guess >= _CLEARLY_MORE and counted < EXACT:
        return Count(max(counted, guess), is_cut=True, is_estimated=True)
    if (counted if read is None else read) >= cap:
        return Count(max(counted, guess), is_cut=True, is_estimated=guess > counted)
    return Count(counted, is_cut=False)


def _span(milliseconds: int | None) -> timedelta | None:
    # A foreign service may store any 64-bit instant, further back than a timedelta reaches.
    return None if milliseconds is None else min(milliseconds, MAX_MILLISECONDS) * MILLISECOND
