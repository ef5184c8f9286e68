"""Dead jobs: list them, put them back, delete them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.db.resilience import repeat
from delayed_queue.db.sql import Step
from delayed_queue.http.jobs.adding import BATCH, find_row, last_line
from delayed_queue.http.jobs.catalogue import MAX_LISTED, kinds_of, read_topic, wake
from delayed_queue.http.jobs.jobs import Answer, initial_retry, read_headers, url_of
from delayed_queue.http.jobs.kinds import Way, check_callbacks, check_topic, parse_kind
from delayed_queue.http.models import Topic
from delayed_queue.http.store.finding import DeadJobRow
from delayed_queue.http.store.kinds import topic_of
from delayed_queue.http.store.topics import MOST_JOBS, locking_letters
from delayed_queue.messages import from_milliseconds
from delayed_queue.models import DeadLetter
from delayed_queue.queue.base import nothing
from delayed_queue.queue.fingerprints import describe
from delayed_queue.queue.offering import redrive_again
from delayed_queue.queue.store.claim import NO_FLOOR
from delayed_queue.queue.store.dead_letters import GROUP_CAP, GroupRow

MAX_KICK: Final = 10_000


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead jobs with one cause; ``isCapped``: counting stopped, there may be more."""

    id: str
    topic: str
    queue: str
    failure: str
    newest_id: int
    count: int
    is_capped: bool
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A dead job."""

    id: int
    job_id: str
    topic: str
    body: Any = field(repr=False)
    url: str | None = field(repr=False)
    retry: int
    reason: str
    last_error: str = field(repr=False)
    created_at: datetime
    died_at: datetime


def dead_jobs(
    topic: str | None = None,
    *,
    after: int = 0,
    limit: int = 100,
    covers: Callable[[str], bool] | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> list[DeadJob]:
    """Return the next dead jobs in id order, of a topic or of all that ``covers`` accepts."""
    kinds = _kinds_of(topic, using) if topic is not None else _kinds_of_all(covers, using)
    rows = repeat(using, partial(Topic.objects.dead, kinds, after, limit, using=using))
    return [_dead_job(row) for row in rows]


def _kinds_of(topic: str, using: str) -> list[str]:
    return kinds_of(read_topic(check_topic(topic), using=using))


def _kinds_of_all(covers: Callable[[str], bool] | None, using: str) -> list[str]:
    kinds = repeat(using, partial(DeadLetter.objects.kinds, MAX_LISTED, using=using))
    parsed = ((kind, parse_kind(kind)) for kind in kinds)
    return [
        kind
        for kind, place in parsed
        if place is not None and (covers is None or covers(place.topic))
    ]


def dead_groups(
    topic: str | None = None,
    *,
    limit: int = 25,
    covers: Callable[[str], bool] | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> list[DeadGroup]:
    """Return the failures of a topic, or of all, by cause; the latest come first."""
    meant = None if topic is None else set(_kinds_of(topic, using))
    kinds = [each for each in _kinds_of_all(covers, using) if meant is None or each in meant]
    rows = repeat(using, partial(DeadLetter.objects.groups, kinds, shown=limit, using=using))
    return [_dead_group(row) for row in rows]


def _dead_group(row: GroupRow) -> DeadGroup:
    place = parse_kind(row.kind)
    assert place is not None  # noqa: S101 # only kinds of topics are read
    return DeadGroup(
        id=row.fingerprint,
        topic=place.topic,
        queue=row.kind,
        failure=describe(row.reason, row.error),
        count=min(row.letters, GROUP_CAP - 1),
        is_capped=row.letters == GROUP_CAP,
        first_at=from_milliseconds(row.first_at),
        last_at=from_milliseconds(row.last_at),
        newest_id=row.newest,
    )


def find_dead_job(letter_id: int, *, using: str = DEFAULT_DB_ALIAS) -> DeadJob | None:
    """Return the dead job of that id; None if it is missing, or belongs to no topic."""
    row = repeat(using, partial(Topic.objects.read_dead, letter_id, using=using))
    return None if row is None or parse_kind(row.kind) is None else _dead_job(row)


def _dead_job(row: DeadJobRow) -> DeadJob:
    place = parse_kind(row.kind)
    assert place is not None  # noqa: S101 # only kinds of topics are read
    headers = read_headers(row.headers)
    return DeadJob(
        id=row.id,
        job_id=row.key,
        topic=place.topic,
        body=_body(row.payload),
        url=url_of(headers),
        retry=initial_retry(headers) + row.attempts,
        reason=last_line(row.reason),
        last_error=last_line(row.last_error),
        created_at=from_milliseconds(row.created_at),
        died_at=from_milliseconds(row.died_at),
    )


def _body(payload: bytes) -> Any:
    """Return the body; None if it is no JSON, which may be why the job is dead."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None


def kick_job(topic: str, job_id: str, *, using: str = DEFAULT_DB_ALIAS) -> int | None:
    """Make the dead job ready; return 1, 0 if it is not dead, or None if it is missing.

    Its attempts start again at its initial retry. Raises CallbacksOff for a job with a url while
    workers send no callbacks.
    """
    row = find_row(topic, job_id, using=using)
    if row is None:
        return None
    if not row.is_dead:
        return 0
    _check_callbacks(url_of(read_headers(row.headers)))
    return _kick([row.id], using)


def kick_topic(topic: str, limit: int = 100, *, using: str = DEFAULT_DB_ALIAS) -> int:
    """Make at most ``limit`` dead jobs of the topic ready, the oldest of each shard first.

    Returns the number. If a job has died several times, its newest dead letter is used; the others
    stay. Raises CallbacksOff, and changes nothing, if one has a url while workers send no
    callbacks.
    """
    row = read_topic(check_topic(topic), using=using)
    if repeat(using, partial(Topic.objects.dead, kinds_of(row, Way.CALLBACK), 0, 1, using=using)):
        check_callbacks([Way.CALLBACK])
    kicked = 0
    for kind in kinds_of(row):
        after = (NO_FLOOR, 0)
        while kicked < limit:
            page = partial(
                DeadLetter.objects.next_letters, kind, after=after,
                limit=min(BATCH, limit - kicked), using=using,
            )  # fmt: skip
            letters = repeat(using, page)
            if not letters:
                break
            after = (letters[-1].died_at, letters[-1].id)
            kicked += _kick([each.id for each in letters if each.is_newest], using)
    return kicked


def replay(letter_id: int, *, using: str = DEFAULT_DB_ALIAS) -> Answer:
    """Make one dead job ready; STALE if it was added again.

    Raises CallbacksOff for a job with a url while workers send no callbacks.
    """
    found = find_dead_job(letter_id, using=using)
    if found is None:
        return Answer.MISSING
    _check_callbacks(found.url)
    return Answer.DONE if _kick([letter_id], using) else Answer.STALE


def _check_callbacks(url: str | None) -> None:
    if url is not None:
        check_callbacks([Way.CALLBACK])


def _kick(ids: Sequence[int], using: str) -> int:
    kick = partial(DeadLetter.objects.redrive, ids, using=using)
    rows = repeat(using, kick, truth=partial(redrive_again, ids, kick, using=using)) if ids else []
    kinds = [row.kind for row in rows if row.created]
    wake(sorted(set(kinds)), using=using)
    return len(kinds)


def delete_dead_job(letter_id: int, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Delete one dead job; return whether there was one."""
    if find_dead_job(letter_id, using=using) is None:
        return False
    drop = partial(DeadLetter.objects.drop, [letter_id], using=using)
    return bool(repeat(using, drop, doubt=nothing))


class JobsGuard:
    """Locks the jobs of dead letters: a job is unique over all kinds of its topic."""

    def locks(self, ids: Sequence[int], kind: str | None) -> list[Step]:
        return locking_letters(ids, kind)

    def most_at_once(self, kind: str, using: str) -> int | None:
        """Return the limit of jobs for a topic: a larger redrive would lock the topic itself."""
        topic = topic_of(kind)
        return MOST_JOBS if topic is not None and is_topic(topic, using) else None


def is_topic(name: str, using: str) -> bool:
    return Topic.objects.read(name, using=using) is not None
