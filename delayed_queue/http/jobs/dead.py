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
from delayed_queue.messages import check_key, from_milliseconds
from delayed_queue.models import BulkRun, DeadLetter
from delayed_queue.queue.base import nothing
from delayed_queue.queue.fingerprints import describe
from delayed_queue.queue.offering import redrive_again
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


def find_run(
    run_id: int, *, covers: Callable[[str], bool], using: str = DEFAULT_DB_ALIAS
) -> BulkRun | None:
    """Return the bulk run of that id; None unless ``covers`` accepts its topic."""
    run = repeat(using, BulkRun.objects.using(using).filter(pk=run_id).first)
    return run if run is not None and _is_over(run, covers) else None


def latest_runs(
    limit: int, *, covers: Callable[[str], bool], using: str = DEFAULT_DB_ALIAS
) -> list[BulkRun]:
    """Return the bulk runs over those topics, the newest first, out of the last ``MAX_LISTED``."""
    rows = BulkRun.objects.using(using).order_by("-id")[:MAX_LISTED]
    found: list[BulkRun] = repeat(using, partial(list, rows))
    return [each for each in found if _is_over(each, covers)][:limit]


def _is_over(run: BulkRun, covers: Callable[[str], bool]) -> bool:
    place = parse_kind(run.kind)
    return place is not None and covers(place.topic)


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
    check_key(job_id)
    find = partial(Topic.objects.letters_of, check_topic(topic), job_id, using=using)
    ids = repeat(using, find)
    if not ids:
        return None if find_row(topic, job_id, using=using) is None else 0
    _check_callbacks(find_dead_job(max(ids), using=using))
    return len(_kick(topic, ids, [job_id], using))


def kick_topic(topic: str, limit: int = 100, *, using: str = DEFAULT_DB_ALIAS) -> int:
    """Make at most ``limit`` dead jobs of the topic ready, the oldest first; return the number.

    If a job has died several times, its newest dead letter is used; the others stay. Raises
    CallbacksOff, and changes nothing, if one has a url while workers send no callbacks.
    """
    kinds = _kinds_of(topic, using)
    places = ((kind, parse_kind(kind)) for kind in kinds)
    callbacks = [kind for kind, place in places if place and place.way is Way.CALLBACK]
    if repeat(using, partial(Topic.objects.dead, callbacks, 0, 1, using=using)):
        check_callbacks([Way.CALLBACK])
    kicked, after = 0, 0
    while kicked < limit:
        batch = min(BATCH, limit - kicked)
        rows = repeat(using, partial(Topic.objects.dead, kinds, after, batch, using=using))
        if not rows:
            break
        after = rows[-1].id
        ids, names = [row.id for row in rows], [row.key for row in rows]
        kicked += len(_kick(topic, ids, names, using, newest_only=True))
    return kicked


def replay(letter_id: int, *, using: str = DEFAULT_DB_ALIAS) -> Answer:
    """Make one dead job ready; STALE if it was added again.

    Raises CallbacksOff for a job with a url while workers send no callbacks.
    """
    found = find_dead_job(letter_id, using=using)
    if found is None:
        return Answer.MISSING
    _check_callbacks(found)
    return Answer.DONE if _kick(found.topic, [letter_id], [found.job_id], using) else Answer.STALE


def _check_callbacks(job: DeadJob | None) -> None:
    if job is not None and job.url is not None:
        check_callbacks([Way.CALLBACK])


def _kick(
    topic: str, ids: Sequence[int], job_ids: Sequence[str], using: str, *, newest_only: bool = False
) -> dict[int, str]:
    kick = partial(Topic.objects.kick, topic, ids, job_ids, newest_only=newest_only, using=using)
    kicked = repeat(using, kick, truth=partial(redrive_again, ids, kick, using=using))
    wake(sorted(set(kicked.values())), using=using)
    return kicked


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
