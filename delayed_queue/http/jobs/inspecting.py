"""Inspect a topic: its counts, its next jobs, and its pause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from django.db import DEFAULT_DB_ALIAS, transaction

from delayed_queue.db.resilience import repeat
from delayed_queue.handlers import storable
from delayed_queue.http.jobs.adding import find_job, job_of
from delayed_queue.http.jobs.catalogue import hold_topic, kinds_of, read_topic
from delayed_queue.http.jobs.consuming import wake
from delayed_queue.http.jobs.dead import dead_jobs
from delayed_queue.http.jobs.jobs import Job, JobState
from delayed_queue.http.jobs.kinds import check_topic, topic_kind
from delayed_queue.http.models import Topic
from delayed_queue.models import Limit
from delayed_queue.observe.overview import Count, QueueDepth, depths

# How many jobs of a kind are looked at for those of one state.
PEEK_DEPTH: Final = 1000


@dataclass(frozen=True, slots=True)
class TopicStats:
    """The number of a topic's jobs in each state; a count that was cut off may be larger."""

    topic: str
    shards: int
    is_paused: bool
    delayed: Count
    ready: Count
    reserved: Count
    dead: Count
    oldest_ready_age: timedelta | None


def topic_stats(topic: str, *, using: str = DEFAULT_DB_ALIAS) -> TopicStats:
    """Count the topic's jobs over all shards, at a bounded cost."""
    row = read_topic(check_topic(topic), using=using)
    found = repeat(using, partial(depths, kinds_of(row), using=using))
    ages = [each.oldest_due_age for each in found if each.oldest_due_age is not None]
    return TopicStats(
        topic=topic,
        shards=row.shards,
        is_paused=is_paused(topic, using=using),
        delayed=_sum(each.scheduled for each in found),
        ready=_sum(each.due for each in found),
        reserved=_most_leased(found),
        dead=_sum(each.dead for each in found),
        oldest_ready_age=max(ages, default=None),
    )


def _sum(counts: Iterable[Count]) -> Count:
    found = list(counts)
    return Count(sum(each.value for each in found), any(each.is_cut for each in found))


def _most_leased(found: list[QueueDepth]) -> Count:
    return _sum(each.leased for each in found)


def peek(
    topic: str, state: JobState, limit: int = 1, *, using: str = DEFAULT_DB_ALIAS
) -> list[Job]:
    """Return the topic's next jobs of that state, without leasing them.

    Delayed and reserved ones are looked for among the first thousand that are not due of each
    shard.
    """
    if state is JobState.DEAD:
        dead = dead_jobs(topic, limit=limit, using=using)
        found = (find_job(topic, each.job_id, using=using) for each in dead)
        return [each for each in found if each is not None]
    kinds = kinds_of(read_topic(check_topic(topic), using=using))
    rows = repeat(
        using,
        partial(
            Topic.objects.peek,
            kinds,
            limit,
            PEEK_DEPTH,
            is_due=state is JobState.READY,
            is_leased=state is JobState.RESERVED,
            using=using,
        ),
    )
    return [job_of(topic, key, row) for key, row in rows]


def is_paused(topic: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Return whether the topic hands out no jobs."""
    return repeat(using, partial(Limit.objects.is_paused, topic_kind(topic), using=using))


def pause_topic(
    topic: str, *, reason: str = "", by: str = "", using: str = DEFAULT_DB_ALIAS
) -> bool:
    """Hand out no job of the topic, to consumers or urls; return False when it is paused."""
    return repeat(using, partial(_pause, check_topic(topic), storable(reason), storable(by), using))


def _pause(topic: str, reason: str, by: str, using: str) -> bool:
    with transaction.atomic(using=using):
        # Held, so that no shard is added meanwhile that is not paused.
        paused = [
            Limit.objects.pause(kind, reason=reason, by=by, using=using)
            for kind in kinds_of(hold_topic(topic, using=using))
        ]
    return any(paused)


def resume_topic(topic: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Hand out jobs again, to sleeping consumers too; return whether the topic was paused."""
    kinds, is_resumed = repeat(using, partial(_resume, check_topic(topic), using))
    wake(kinds, using=using)
    return is_resumed


def _resume(topic: str, using: str) -> tuple[list[str], bool]:
    with transaction.atomic(using=using):
        kinds = kinds_of(hold_topic(topic, using=using))
        resumed = [Limit.objects.resume(kind, using=using) for kind in kinds]
    return kinds, any(resumed)
