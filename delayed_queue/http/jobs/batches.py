"""Batches of jobs: a job is added when a set of others has finished."""

from __future__ import annotations

from functools import partial
from typing import Literal

from django.db import DEFAULT_DB_ALIAS, transaction

from delayed_queue.db.resilience import never, repeat
from delayed_queue.http.jobs.adding import offered_of
from delayed_queue.http.jobs.catalogue import ensure_hosts, ensure_topic, hold_topic
from delayed_queue.http.jobs.jobs import NewJob
from delayed_queue.http.jobs.kinds import check_callbacks, topic_kind, topics_in
from delayed_queue.models import StoredBatch

OnDead = Literal["then", "wait"]


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
            batch_id, topic_kind(then.topic), offered, waits=on_dead == "wait", using=using
        )


def topic_of_batch(batch_id: int, *, using: str = DEFAULT_DB_ALIAS) -> str | None:
    """Return the topic of an unfinished batch; None if there is none."""
    kinds = StoredBatch.objects.using(using).filter(pk=batch_id).values_list("kind", flat=True)
    return next(topics_in(repeat(using, partial(list, kinds))), None)


def close_batch(batch_id: int, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Add no more jobs; return whether it was open. Without jobs left, ``then`` is added now."""
    return repeat(using, partial(StoredBatch.objects.close, batch_id, using=using), doubt=never)
