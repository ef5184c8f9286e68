"""Register with the queue's hooks what topics need: guards of redrives, kinds and names."""

from __future__ import annotations

from collections.abc import Sequence

from delayed_queue.db.statements import Step
from delayed_queue.http.models import Topic
from delayed_queue.http.store.fragments import topic_of
from delayed_queue.http.store.locks import MOST_JOBS, locking_letters


class JobsGuard:
    """Holds the jobs that dead letters belong to: a job is one over the kinds of its topic."""

    def locks(self, ids: Sequence[int], kind: str | None) -> list[Step]:
        return locking_letters(ids, kind)

    def most_at_once(self, kind: str, using: str) -> int | None:
        """Return how many jobs a topic holds: with more it would keep all others waiting."""
        topic = topic_of(kind)
        return MOST_JOBS if topic is not None and is_topic(topic, using) else None


def is_topic(name: str, using: str) -> bool:
    return Topic.objects.read(name, using=using) is not None
