"""Batches of jobs: a job is added when a set of others has finished."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Literal

from django.db import DEFAULT_DB_ALIAS, transaction

from delayed_queue.db.resilience import never, repeat
from delayed_queue.http.jobs.adding import offered_of
from delayed_queue.http.jobs.catalogue import ensure_hosts, ensure_topic, hold_topic
from delayed_queue.http.jobs.jobs import NewJob
from delayed_queue.http.jobs.kinds import check_callbacks, parse_kind, topic_kind, topics_in
from delayed_queue.models import StoredBatch
from delayed_queue.observe.stored_batches import count_left
from delayed_queue.queue.base import nothing

OnDead = Literal["then", "wait"]
WAIT: Final = "wait"


@dataclass(frozen=True, slots=True)
class JobBatch:
    """A batch that has not finished: the jobs that have left it, by outcome, and those in it.

    ``isCapped``: counting those in it stopped, there may be more.
    """

    id: int
    topic: str
    on_dead: OnDead
    is_open: bool
    done: int
    dead: int
    dropped: int
    expired: int
    left: int
    is_capped: bool
    created_at: datetime
    closed_at: datetime | None


def open_batch(then: NewJob, *, on_dead: OnDead = "then", using: str = DEFAULT_DB_ALIAS) -> int:
    """Open a batch of the topic of ``then``; return its id.

    ``then`` is added, or updated, when the batch is closed and all its jobs have finished. With
    ``on_dead="wait"`` a dead job has not, until it is kicked or deleted.
    """
    check_callbacks([then.way])
    ensure_hosts(ensure_topic(then.topic, using=using), [then.host], using=using)
    # A repetition opens the same batch.
    batch_id = repeat(using, partial(StoredBatch.objects.next_id, using=using))
    return repeat(using, partial(_open, batch_id, then, on_dead, using), doubt=never)


def _open(batch_id: int, then: NewJob, on_dead: OnDead, using: str) -> int:
    with transaction.atomic(using=using):
        # Locked, so that the shard of ``then`` is not removed meanwhile.
        offered = offered_of(then, hold_topic(then.topic, using=using))
        return StoredBatch.objects.open(
            batch_id, topic_kind(then.topic), offered, waits=on_dead == WAIT, using=using
        )


def topic_of_batch(batch_id: int, *, using: str = DEFAULT_DB_ALIAS) -> str | None:
    """Return the topic of an unfinished batch; None if there is none."""
    kinds = StoredBatch.objects.using(using).filter(pk=batch_id).values_list("kind", flat=True)
    return next(topics_in(repeat(using, partial(list, kinds))), None)


def find_batch(batch_id: int, *, using: str = DEFAULT_DB_ALIAS) -> JobBatch | None:
    """Return an unfinished batch of a topic."""
    row = repeat(using, StoredBatch.objects.using(using).filter(pk=batch_id).first)
    place = None if row is None else parse_kind(row.kind)
    if row is None or place is None:
        return None
    left = repeat(using, partial(count_left, [row.pk], using=using))[row.pk]
    return JobBatch(
        row.pk, place.topic, WAIT if row.waits_for_dead else "then", row.closed_at is None,
        row.done, row.dead, row.dropped, row.expired, left.value, left.is_cut,
        row.created_at, row.closed_at,
    )  # fmt: skip


def close_batch(batch_id: int, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Add no more jobs; return whether it was open. Without jobs left, ``then`` is added now."""
    return repeat(using, partial(StoredBatch.objects.close, batch_id, using=using), doubt=never)


def cancel_batch(batch_id: int, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Never add ``then``; the jobs stay. Returns whether there was such a batch."""
    return repeat(using, partial(StoredBatch.objects.cancel, batch_id, using=using), doubt=nothing)
