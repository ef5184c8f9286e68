"""Topics: read, create, change, count and pause them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, transaction

from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import announce, never, repeat
from delayed_queue.db.statements import notify
from delayed_queue.db.wakeups import channel_of
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import storable
from delayed_queue.http.jobs.kinds import (
    MAX_SHARDS,
    WAKE_CHANNEL,
    Way,
    check_topic,
    kinds_of_topic,
    parse_kind,
    topic_kind,
    topics_in,
    with_hosts,
)
from delayed_queue.http.models import Topic
from delayed_queue.http.store.topics import TopicRow
from delayed_queue.models import DeadLetter, Limit, Message, StoredBatch
from delayed_queue.observe.overview import depths
from delayed_queue.queue.groups import declaration
from delayed_queue.retries import Groups

# A process trusts a topic that it has read for N seconds. Statements that depend on the number of
# shards compare or read it themselves.
FRESH_SECONDS: Final = 5.0
MAX_LISTED: Final = 10_000
_KEEP: Final[Any] = object()
_ONE_SHARD: Final = (
    "A topic with limits has one shard, because a group with jobs in several "
    "shards would exceed its limit. Configure it with shards=1, or with "
    "groups=None."
)
_known: Final[dict[tuple[str, str], tuple[TopicRow, float]]] = {}


def known_topic(topic: str, *, using: str = DEFAULT_DB_ALIAS) -> TopicRow:
    """Return the topic as it was at most five seconds ago; with one shard if it has no row."""
    row, until = _known.get((using, topic), (None, 0.0))
    if row is not None and until > time.monotonic():
        return row
    return read_topic(topic, using=using)


def read_topic(topic: str, *, using: str = DEFAULT_DB_ALIAS) -> TopicRow:
    """Return the topic as it is now."""
    row = repeat(using, partial(Topic.objects.read, topic, using=using))
    if row is None:
        _known.pop((using, topic), None)
        return TopicRow(topic)
    return _remember(row, using)


def ensure_topic(topic: str, *, using: str = DEFAULT_DB_ALIAS) -> TopicRow:
    """Return the topic; create it if it is missing."""
    found = _known.get((using, topic))
    return found[0] if found is not None else create_topic(topic, using=using)


def create_topic(topic: str, *, using: str = DEFAULT_DB_ALIAS) -> TopicRow:
    """Create the topic unless it exists; return it as it is now.

    Creating waits for redrives of a queue of that name, and locks it until the end of the
    transaction.
    """
    check_topic(topic)
    # Read first: creating takes the topic's exclusive lock, for which adding jobs would wait.
    row = repeat(using, partial(Topic.objects.read, topic, using=using))
    if row is not None:
        return _remember(row, using)
    create = partial(Topic.objects.create_once, topic, using=using)
    if repeat(using, create, doubt=never):
        announce(using, partial(notify, using, channel_of(WAKE_CHANNEL)))
    return read_topic(topic, using=using)


def configure_topic(
    topic: str,
    *,
    shards: int | None = None,
    groups: Groups | None = _KEEP,
    using: str = DEFAULT_DB_ALIAS,
) -> TopicRow:
    """Change what is given of a topic; create it if it is missing. Return it.

    Shards can be added at any time, and removed only while they hold no job, dead ones included;
    else InvalidConfiguration. Waits for transactions that add jobs to the topic. ``groups`` limits
    the jobs, and callbacks per host; None removes the limits. A topic with limits has one shard,
    which has all jobs of a group.
    """
    if shards is not None and (type(shards) is not int or not 1 <= shards <= MAX_SHARDS):
        raise InvalidConfiguration(f"shards must be from 1 to {MAX_SHARDS}, not {shards!r}.")
    if groups is not _KEEP and not isinstance(groups, Groups | None):
        raise InvalidConfiguration(f"groups must be a Groups or None, not {groups!r}.")
    create_topic(topic, using=using)
    return repeat(using, partial(_configure, topic, shards, groups, using), doubt=never)


def _configure(topic: str, shards: int | None, groups: Groups | None, using: str) -> TopicRow:
    with transaction.atomic(using=using):
        Topic.objects.lock(topic, using=using)
        before = hold_topic(topic, using=using)
        after = before._replace(shards=shards or before.shards)
        _check_empty(_beyond(before, after), using)
        Topic.objects.configure(after, using=using)
        _limit_alike(before, after, using)
        if groups is not _KEEP:
            _limit(after, groups, using)
        _check_limits(after, using)
        notify(using, channel_of(WAKE_CHANNEL))
    return _remember(after, using)


def ensure_hosts(topic: TopicRow, hosts: Iterable[str], *, using: str) -> TopicRow:
    """Return the topic after giving each host a shard of its own while there are some left.

    For a new host, the row of the topic is locked until the end of the transaction.
    """
    if with_hosts(topic.hosts, hosts := set(hosts)) == topic.hosts:
        return topic
    return repeat(using, partial(_add_hosts, topic.name, sorted(hosts), using), doubt=never)


def _add_hosts(topic: str, hosts: list[str], using: str) -> TopicRow:
    with transaction.atomic(using=using):
        before = hold_topic(topic, using=using)
        after = before._replace(hosts=with_hosts(before.hosts, hosts))
        if after != before and Topic.objects.configure(after, using=using):
            _limit_alike(before, after, using)
            notify(using, channel_of(WAKE_CHANNEL))
    return _remember(after, using)


def hold_topic(topic: str, *, using: str) -> TopicRow:
    """Return the topic, locked until the end of the transaction."""
    row = Topic.objects.hold(topic, using=using)
    return TopicRow(topic) if row is None else row


def kinds_of(topic: TopicRow, *ways: Way) -> list[str]:
    """Return the kinds of the topic's shards, of all ways or the given ones."""
    return kinds_of_topic(topic.name, topic.shards, *ways, hosts=topic.hosts)


def _beyond(topic: TopicRow, other: TopicRow) -> list[str]:
    """Return the kinds of the topic that the other does not have."""
    stay = set(kinds_of(other))
    return [each for each in kinds_of(topic) if each not in stay]


def _check_empty(kinds: list[str], using: str) -> None:
    """Refuse to remove kinds that have, or will have, jobs: no search would find them."""
    rows = Message.objects.overview(kinds, 1, lease_cap=1, using=using)
    expected = StoredBatch.objects.using(using).filter(then_kind__in=kinds)
    if any(row.due or row.read or row.dead for row in rows) or expected.exists():
        raise InvalidConfiguration("A topic cannot lose shards that hold jobs.")


def _limit_alike(before: TopicRow, after: TopicRow, using: str) -> None:
    """Copy the pause and the limits of a topic's first shard to the new ones."""
    Limit.objects.copy(topic_kind(before.name), _beyond(after, before), using=using)


def _limit(topic: TopicRow, groups: Groups | None, using: str) -> None:
    declared = None if groups is None else ""
    rules = declaration(groups or Groups(), declared, is_change=True)
    for kind in kinds_of(topic):
        Limit.objects.declare(kind, rules, using=using)
        Limit.objects.tidy(kind, using=using)
        notify(using, channel_of(kind))


def _check_limits(topic: TopicRow, using: str) -> None:
    kind = topic_kind(topic.name)
    if topic.shards > 1 and Limit.objects.limiting(using).filter(kind=kind).exists():
        raise InvalidConfiguration(_ONE_SHARD)


def why_not_limited(kind: str, using: str, holds: bool) -> str:
    """Return why an operator's limits of the queue would not be exact; empty if they are.

    With ``holds`` the topic is locked, so that a later change of its shards finds the limits.
    """
    found = parse_kind(kind)
    if found is None or found.way is not Way.PULLED:
        return ""
    read = hold_topic if holds else read_topic
    shards = read(found.topic, using=using).shards
    return "" if shards == 1 else f"The topic {found.topic!r} has several shards. {_ONE_SHARD}"


def _remember(row: TopicRow, using: str) -> TopicRow:
    _known[using, row.name] = (row, time.monotonic() + FRESH_SECONDS)
    return row


def forget_topics() -> None:
    """Forget what was read of all topics."""
    _known.clear()


def list_topics(*, using: str = DEFAULT_DB_ALIAS) -> list[TopicRow]:
    """Return all topics in the order of their names: those with a row, with jobs, with dead ones.

    At most ten thousand of each; a queue of Django code is a topic once it holds a message.
    """
    rows = repeat(using, partial(Topic.objects.after, "", MAX_LISTED, using=using))
    kinds = [
        *repeat(using, partial(Message.objects.kinds, MAX_LISTED, using=using)),
        *repeat(using, partial(DeadLetter.objects.kinds, MAX_LISTED, using=using)),
    ]
    by_name = {each: TopicRow(each) for each in topics_in(kinds)}
    by_name |= {row.name: row for row in rows}
    return [by_name[name] for name in sorted(by_name)]


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The counts of a topic's jobs; ``isCapped``: counting stopped, there may be more."""

    topic: str
    shards: int
    is_paused: bool
    delayed: int
    ready: int
    reserved: int
    dead: int
    is_capped: bool
    oldest_ready_seconds: float | None


def topic_stats(topic: str, *, using: str = DEFAULT_DB_ALIAS) -> TopicStats:
    """Count the topic's jobs over all shards, at a bounded cost."""
    row = read_topic(check_topic(topic), using=using)
    found = repeat(using, partial(depths, kinds_of(row), using=using))
    ages = [each.oldest_due_age for each in found if each.oldest_due_age is not None]
    counts = [count for each in found for count in each.counts.values()]
    return TopicStats(
        topic=topic,
        shards=row.shards,
        is_paused=is_paused(topic, using=using),
        delayed=sum(each.scheduled.value for each in found),
        ready=sum(each.due.value for each in found),
        reserved=sum(each.leased.value for each in found),
        dead=sum(each.dead.value for each in found),
        is_capped=any(each.is_cut for each in counts),
        oldest_ready_seconds=max(ages).total_seconds() if ages else None,
    )


def is_paused(topic: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Return whether the topic is paused."""
    return repeat(using, partial(Limit.objects.is_paused, topic_kind(topic), using=using))


def pause_topic(
    topic: str, *, reason: str = "", by: str = "", using: str = DEFAULT_DB_ALIAS
) -> bool:
    """Deliver no job of the topic, to consumers or urls; return False if it is paused already."""
    pause = partial(_pause, check_topic(topic), storable(reason), storable(by), using)
    return repeat(using, pause, doubt=never)


def _pause(topic: str, reason: str, by: str, using: str) -> bool:
    with transaction.atomic(using=using):
        # Locked, so that no shard is added meanwhile that is not paused.
        paused = [
            Limit.objects.pause(kind, reason=reason, by=by, using=using)
            for kind in kinds_of(hold_topic(topic, using=using))
        ]
    return any(paused)


def resume_topic(topic: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Deliver jobs again, to sleeping consumers too; return whether the topic was paused."""
    resume = partial(_resume, check_topic(topic), using)
    kinds, is_resumed = repeat(using, resume, doubt=never)
    wake(kinds, using=using)
    return is_resumed


def _resume(topic: str, using: str) -> tuple[list[str], bool]:
    with transaction.atomic(using=using):
        kinds = kinds_of(hold_topic(topic, using=using))
        resumed = [Limit.objects.resume(kind, using=using) for kind in kinds]
    return kinds, any(resumed)


def wake(kinds: Sequence[str], *, using: str = DEFAULT_DB_ALIAS) -> None:
    """Wake consumers that sleep on the kinds."""
    if get_settings().NOTIFY:
        for kind in kinds:
            announce(using, partial(Message.objects.notify, channel_of(kind), using=using))
