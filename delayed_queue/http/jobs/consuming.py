"""Pulling jobs: pop them under a lease, then finish, release, touch or bury them.

An attempt fails when its consumer releases the job or lets the lease expire. A released job
waits as the consumer says, or else as its ladder says; one whose lease expired has waited for
that already, and is ready at once. When the ladder is used up, either makes it a dead letter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final
from uuid import uuid4

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.codecs import decode
from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import repeat
from delayed_queue.db.wakeups import channel_of
from delayed_queue.exceptions import InvalidMessage, PayloadNotDecodable
from delayed_queue.handlers import error_text, storable
from delayed_queue.http.jobs.adding import find_row
from delayed_queue.http.jobs.catalogue import default_ttr, treatment_at_hand, treatment_of
from delayed_queue.http.jobs.jobs import (
    CODEC,
    Answer,
    PoppedJob,
    delay_after_failure,
    initial_retry,
    policy_of_job,
    read_headers,
    ttr_of_job,
)
from delayed_queue.http.jobs.kinds import Way, check_topic, kinds_of_topic
from delayed_queue.http.models import Topic
from delayed_queue.http.store.consuming import PoppedRow
from delayed_queue.http.store.finding import JobRow
from delayed_queue.http.store.topics import TopicRow
from delayed_queue.messages import MILLISECOND, from_milliseconds
from delayed_queue.models import Message
from delayed_queue.queue.base import nothing

MAX_COUNT: Final = 100
RELEASED: Final = "released by its consumer"
EXPIRED: Final = "the lease expired"
EXHAUSTED: Final = "attempts exhausted"


def pop_jobs(
    topic: str,
    count: int = 1,
    *,
    ttr: timedelta | None = None,
    shard: int | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> list[PoppedJob]:
    """Lease up to ``count`` of the topic's due jobs that have no url, for ``ttr`` each.

    Without ``ttr`` for as long as the job says, or the topic, or the settings. Shards take
    turns unless one is named; within one, earlier jobs come first.
    """
    kinds = kinds_to_pop(topic, shard=shard, using=using)
    treatment = treatment_of(topic, using=using)
    jobs: list[PoppedJob] = []
    while len(jobs) < count:
        token, rows = repeat(using, partial(_pop, kinds, count - len(jobs), treatment, ttr, using))
        if not rows:
            break
        opened = (_open(row, token, treatment, using) for row in rows)
        jobs.extend(job for job in opened if job is not None)
    return jobs


def kinds_to_pop(
    topic: str, *, shard: int | None = None, using: str = DEFAULT_DB_ALIAS
) -> list[str]:
    """Return the kinds to pop from, beginning with a random shard."""
    return _kinds_to_pop(topic, treatment_of(check_topic(topic), using=using).shards, shard)


def kinds_at_hand(
    topic: str, *, shard: int | None = None, using: str = DEFAULT_DB_ALIAS
) -> list[str] | None:
    """Return what kinds_to_pop() does, or None when the database must be asked."""
    found = treatment_at_hand(topic, using=using)
    return None if found is None else _kinds_to_pop(topic, found.shards, shard)


def _kinds_to_pop(topic: str, shards: int, shard: int | None) -> list[str]:
    kinds = kinds_of_topic(topic, shards, Way.PULLED)
    if shard is not None:
        if not 0 <= shard < shards:
            raise InvalidMessage(f"The topic has the shards 0 to {shards - 1}.")
        return [kinds[shard]]
    first = random.randrange(shards)  # noqa: S311 # only spreads consumers
    return kinds[first:] + kinds[:first]


def _pop(
    kinds: Sequence[str], limit: int, topic: TopicRow, ttr: timedelta | None, using: str
) -> tuple[str, list[PoppedRow]]:
    # A new lease for each try, as in a poll.
    token = str(uuid4())
    rows = Topic.objects.pop(
        kinds,
        limit,
        token,
        ttr=None if ttr is None else ttr // MILLISECOND,
        default_ttr=default_ttr(topic),
        using=using,
    )
    return token, rows


def _open(row: PoppedRow, token: str, topic: TopicRow, using: str) -> PoppedJob | None:
    """Return the job; None when it became a dead letter instead of another attempt."""
    headers = read_headers(row.headers)
    attempt = initial_retry(headers) + row.attempts
    is_repeated = row.attempts > 1
    if is_repeated and attempt > policy_of_job(headers, topic.ladder, topic.jitter).max_attempts:
        _bury(row.id, token, EXHAUSTED, EXPIRED, using)
        return None
    try:
        body = decode(CODEC, row.payload)
    except PayloadNotDecodable as error:
        _bury(row.id, token, "payload not decodable", error_text(error), using)
        return None
    until = from_milliseconds(row.leased_until)
    return PoppedJob(row.key, body, attempt, token, until, row.id)


def give_back(topic: str, jobs: Sequence[PoppedJob], *, using: str = DEFAULT_DB_ALIAS) -> None:
    """Release jobs that no consumer has seen: due now, the attempt uncounted."""
    for token, group in groupby(jobs, key=attrgetter("lease_token")):
        ids = [job.message_id for job in group]
        release = partial(Message.objects.release, token, ids, refund=1, using=using)
        repeat(using, release)
    wake(kinds_to_pop(topic, using=using), using=using)


def seconds_to_next_job(kinds: Sequence[str], *, using: str = DEFAULT_DB_ALIAS) -> float:
    """Return how long a consumer may sleep: to the next due time or the poll interval."""
    interval = get_settings().POLL_INTERVAL
    next_due = partial(Topic.objects.next_due, kinds, interval // MILLISECOND, using=using)
    wait = repeat(using, next_due)
    return interval.total_seconds() if wait is None else wait / 1000


def finish_job(
    topic: str, job_id: str, lease_token: str, *, using: str = DEFAULT_DB_ALIAS
) -> Answer:
    """Delete the job, if the lease still holds it."""
    finish = partial(Topic.objects.finish, topic, job_id, lease_token, using=using)
    # After a lost connection, "not finished" may be because the lost try has done it.
    finished, exists = repeat(using, finish, doubt=lambda answer: not answer[0])
    return Answer.DONE if finished else _refusal(exists)


def release_job(
    topic: str,
    job_id: str,
    lease_token: str,
    *,
    delay: timedelta | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> Answer:
    """Let the attempt have failed: the job waits by its ladder, or ``delay``, or is dead."""
    row = find_row(topic, job_id, using=using)
    if row is None or not _is_held(row, lease_token):
        return _refusal(row is not None)
    treatment = treatment_of(topic, using=using)
    wait = delay_after_failure(
        read_headers(row.headers), row.attempts, treatment.ladder, treatment.jitter
    )
    if wait is None:
        return _held(_bury(row.id, lease_token, EXHAUSTED, RELEASED, using))
    chosen = wait if delay is None else delay
    release = partial(
        Message.objects.release,
        lease_token,
        [row.id],
        delay=-(-chosen // MILLISECOND),
        error=RELEASED,
        using=using,
    )
    answer = _held(repeat(using, release, doubt=nothing))
    if answer is Answer.DONE and chosen <= get_settings().POLL_INTERVAL:
        wake([row.kind], using=using)
    return answer


def touch_job(
    topic: str,
    job_id: str,
    lease_token: str,
    *,
    ttr: timedelta | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> Answer:
    """Prolong the lease to at least now and its ttr, if it still holds the job."""
    row = find_row(topic, job_id, using=using)
    if row is None or not _is_held(row, lease_token):
        return _refusal(row is not None)
    own = ttr or ttr_of_job(read_headers(row.headers))
    lease = default_ttr(treatment_of(topic, using=using)) if own is None else own // MILLISECOND
    extend = partial(Message.objects.extend, [lease_token], [row.id], lease, using=using)
    return _held(repeat(using, extend))


def bury_job(
    topic: str,
    job_id: str,
    lease_token: str,
    *,
    reason: str = "buried by its consumer",
    using: str = DEFAULT_DB_ALIAS,
) -> Answer:
    """Make the job a dead letter, if the lease still holds it."""
    row = find_row(topic, job_id, using=using)
    if row is None or not _is_held(row, lease_token):
        return _refusal(row is not None)
    return _held(_bury(row.id, lease_token, storable(reason), None, using))


def _bury(row_id: int, token: str, reason: str, error: str | None, using: str) -> list[int]:
    bury = partial(Message.objects.dead_letter, token, [row_id], reason, error=error, using=using)
    buried: list[int] = repeat(using, bury, doubt=nothing)
    return buried


def _is_held(row: JobRow, lease_token: str) -> bool:
    return not row.is_dead and row.lease_id == lease_token


def _held(rows: Sequence[Any]) -> Answer:
    return Answer.DONE if rows else Answer.STALE


def _refusal(exists: bool) -> Answer:
    return Answer.STALE if exists else Answer.MISSING


def wake(kinds: Sequence[str], *, using: str = DEFAULT_DB_ALIAS) -> None:
    """Tell those who sleep on the kinds to look again."""
    if get_settings().NOTIFY:
        for kind in kinds:
            Message.objects.notify(channel_of(kind), using=using)
