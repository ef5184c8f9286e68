"""Pulling jobs: pop them under a lease, then finish, release, touch or bury them.

An attempt fails when its consumer releases the job or its lease expires. A released job waits for
the consumer's delay, by default for the next step of its ladder. A job whose lease has expired is
ready at once. A failed attempt after the last step makes it a dead letter.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from threading import Lock
from typing import Any, Final
from uuid import uuid4

from django.db import DEFAULT_DB_ALIAS, Error

from delayed_queue.codecs import decode
from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import never, repeat, waited_too_long
from delayed_queue.exceptions import InvalidMessage, PayloadNotDecodable, ResourceUnavailable
from delayed_queue.facade import DelayedQueue
from delayed_queue.handlers import error_text
from delayed_queue.http.jobs.adding import find_job, find_row, job_of
from delayed_queue.http.jobs.catalogue import kinds_of, known_topic, read_topic, wake
from delayed_queue.http.jobs.dead import dead_jobs
from delayed_queue.http.jobs.jobs import (
    CODEC,
    Answer,
    Job,
    JobState,
    PoppedJob,
    batch_counts,
    delay_after_failure,
    initial_retry,
    policy_of_job,
    read_headers,
    ttr_of_job,
)
from delayed_queue.http.jobs.kinds import Way, check_topic, kinds_of_topic, topic_kind
from delayed_queue.http.models import Topic
from delayed_queue.http.store.finding import JobRow
from delayed_queue.logs import log
from delayed_queue.messages import MILLISECOND, from_milliseconds
from delayed_queue.models import Limit, Message
from delayed_queue.queue.base import nothing
from delayed_queue.queue.group_claims import GroupWalk
from delayed_queue.queue.polling import MOST_LOOKS, TRUST_SECONDS
from delayed_queue.queue.store.claim import LeasedRow
from delayed_queue.queue.store.finishing import DONE, EXPIRED, batches_of

RELEASED: Final = "released by its consumer"
LEASE_EXPIRED: Final = "the lease expired"
EXHAUSTED: Final = "attempts exhausted"
BURIED: Final = "buried by its consumer"
# Longest wait for another claim of a topic with limits, in milliseconds.
_TURN_WAIT_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Pop:
    """A request for up to ``count`` due jobs of a topic that have no url.

    Each is leased for ``ttr``, or else for the time of the job or the settings. Shards take turns
    unless one is named; within one, earlier jobs come first.
    """

    topic: str
    count: int = 1
    ttr: timedelta | None = None
    shard: int | None = None
    using: str = DEFAULT_DB_ALIAS

    def claim(self) -> list[PoppedJob]:
        """Lease what is due, and return it. Raises InvalidMessage for a shard that is missing."""
        topic = known_topic(check_topic(self.topic), using=self.using)
        kinds = self._kinds(topic.shards)
        jobs: list[PoppedJob] = []
        while len(jobs) < self.count:
            left = self.count - len(jobs)
            token, rows = repeat(self.using, partial(self._take, kinds, left))
            limited = limited_topic(self.topic, self.using)
            if not rows and limited.kind in kinds and limited.is_limited():
                token, rows = limited.pop(left, self.ttr)
            if not rows:
                break
            opened = (_open(row, token, self.topic, self.using) for row in rows)
            jobs.extend(job for job in opened if job is not None)
        return jobs

    def _take(self, kinds: Sequence[str], limit: int) -> tuple[str, list[LeasedRow]]:
        token = str(uuid4())  # a new lease for each try, as in a poll
        ttr = None if self.ttr is None else self.ttr // MILLISECOND
        rows = Topic.objects.pop(
            kinds, limit, token, ttr=ttr, default_ttr=default_ttr(), using=self.using
        )
        return token, rows

    def _kinds(self, shards: int) -> list[str]:
        """Return the kinds to claim from, starting with a random shard."""
        kinds = kinds_of_topic(self.topic, shards, Way.PULLED)
        if self.shard is not None:
            if not 0 <= self.shard < shards:
                raise InvalidMessage(f"The topic has the shards 0 to {shards - 1}.")
            return [kinds[self.shard]]
        first = random.randrange(shards)  # noqa: S311 # only spreads consumers
        return kinds[first:] + kinds[:first]

    def kinds(self) -> list[str]:
        """Return the kinds to claim from; a job of one of them may end a wait."""
        return self._kinds(known_topic(self.topic, using=self.using).shards)

    def next_in(self) -> float:
        """Return the seconds to the next due time, permit of a group, or poll interval."""
        interval = get_settings().POLL_INTERVAL
        next_due = partial(
            Message.objects.next_due, self.kinds(), interval // MILLISECOND, using=self.using
        )
        wait = repeat(self.using, next_due)
        seconds = interval.total_seconds() if wait is None else wait / 1000
        return min(seconds, limited_topic(self.topic, self.using).permit_in())

    def give_back(self, jobs: Sequence[PoppedJob]) -> None:
        """Release jobs that no consumer has seen: due now, the attempt uncounted."""
        for token, group in groupby(jobs, key=attrgetter("lease_token")):
            ids = [job.message_id for job in group]
            release = partial(Message.objects.release, token, ids, refund=1, using=self.using)
            repeat(self.using, release, doubt=never)
        wake(self.kinds(), using=self.using)


class LimitedTopic:
    """Claims of a topic with limits: one at a time per process.

    Each continues with the groups behind those that the last one has served.
    """

    def __init__(self, topic: str, using: str) -> None:
        self.kind = topic_kind(topic)
        self._topic, self._using = topic, using
        self._turn = Lock()
        self._walk = GroupWalk()
        self._is_limited, self._known_until = False, 0.0
        self._permit_at = math.inf

    def is_limited(self) -> bool:
        """Return whether plain pops find nothing because of limits; read once a second at most."""
        if time.monotonic() >= self._known_until:
            rules = repeat(self._using, partial(Limit.objects.rules, self.kind, using=self._using))
            self._is_limited = rules is not None and not rules.is_paused
            self._known_until = time.monotonic() + TRUST_SECONDS
        return self._is_limited

    def permit_in(self) -> float:
        """Return the seconds until a group has a permit that had none at the last pop."""
        # Without limits no claim updates the time of the next permit.
        return max(self._permit_at - time.monotonic(), 0.0) if self._is_limited else math.inf

    def pop(self, limit: int, ttr: timedelta | None) -> tuple[str, list[LeasedRow]]:
        lease = get_settings().LEASE_DURATION if ttr is None else ttr
        queue = DelayedQueue(self._topic, kind=self.kind, lease_duration=lease, using=self._using)
        try:
            with self._turn:
                token, rows = repeat(self._using, partial(self._claim, queue, limit))
        except Error as error:
            if waited_too_long(error):
                self._permit_at = math.inf
                return "", []
            raise
        return token, rows if ttr is not None else self._with_own_ttr(token, rows)

    def _claim(self, queue: DelayedQueue, limit: int) -> tuple[str, list[LeasedRow]]:
        # A new lease for each try, as in a poll.
        token = str(uuid4())
        claim = queue._claim_by_group(
            self._walk, limit, token, token, looks=MOST_LOOKS, wait=_TURN_WAIT_MS
        )
        wait = math.inf if claim.permit_in is None else claim.permit_in / 1000
        self._permit_at = time.monotonic() + wait
        return token, claim.rows

    def _with_own_ttr(self, token: str, rows: list[LeasedRow]) -> list[LeasedRow]:
        """Set the leases of jobs that have a ttr of their own."""
        found = ((row.id, ttr_of_job(read_headers(row.headers))) for row in rows)
        own = {each: ttr // MILLISECOND for each, ttr in found if ttr is not None}
        if not own:
            return rows
        hold = partial(Topic.objects.hold_for, token, own, using=self._using)
        until = repeat(self._using, hold)
        return [row._replace(leased_until=until.get(row.id, row.leased_until)) for row in rows]


def default_ttr() -> int:
    """Return the milliseconds that a consumer may hold a job without a ttr of its own."""
    return get_settings().LEASE_DURATION // MILLISECOND


@lru_cache(maxsize=1000)
def limited_topic(topic: str, using: str) -> LimitedTopic:
    """Return the process's claims of a topic with limits."""
    return LimitedTopic(topic, using)


def _open(row: LeasedRow, token: str, topic: str, using: str) -> PoppedJob | None:
    """Return the job; None when it had expired, or became a dead letter."""
    if row.expires_in is not None and row.expires_in <= 0:
        repeat(using, _deletion(row, token, EXPIRED, using), doubt=never)
        log(logging.INFO, "expired", queue=topic, key=row.key)
        return None
    headers = read_headers(row.headers)
    attempt = initial_retry(headers) + row.attempts
    is_repeated = row.attempts > 1
    if is_repeated and attempt > policy_of_job(headers).max_attempts:
        _bury(row, token, EXHAUSTED, LEASE_EXPIRED, using)
        return None
    try:
        body = decode(CODEC, row.payload)
    except PayloadNotDecodable as error:
        _bury(row, token, "payload not decodable", error_text(error), using)
        return None
    until = from_milliseconds(row.leased_until)
    counts = batch_counts(headers)
    return PoppedJob(row.key, body, attempt, token, until, row.id, row.group, counts, row.batch_id)


def finish_job(
    topic: str, job_id: str, lease_token: str, *, using: str = DEFAULT_DB_ALIAS
) -> Answer:
    """Delete the job, if the lease still holds it."""
    row = _held_row(topic, job_id, lease_token, using)
    if isinstance(row, Answer):
        return row
    finished = repeat(using, _deletion(row, lease_token, DONE, using), doubt=nothing)
    return _ended(topic, finished, using)


def _deletion(
    row: JobRow | LeasedRow, token: str, outcome: str, using: str
) -> Callable[[], list[int]]:
    """Return the call that deletes the job under its lease; a member counts by the outcome."""
    return partial(
        Message.objects.acknowledge, token, [row.id], outcome=outcome, batches=batches_of([row]),
        using=using,
    )  # fmt: skip


def _wake_group(topic: str, using: str) -> None:
    """Wake consumers that wait for a job of a group: one of its jobs has ended."""
    limited = limited_topic(topic, using)
    # An error here does not undo that; consumers also poll.
    with suppress(Error, ResourceUnavailable):
        if limited.is_limited():
            wake([limited.kind], using=using)


def release_job(
    topic: str,
    job_id: str,
    lease_token: str,
    *,
    delay: timedelta | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> Answer:
    """Count the attempt as failed: the job waits by its ladder, or ``delay``, or is dead."""
    row = _held_row(topic, job_id, lease_token, using)
    if isinstance(row, Answer):
        return row
    wait = delay_after_failure(read_headers(row.headers), row.attempts)
    if wait is None:
        return _ended(topic, _bury(row, lease_token, EXHAUSTED, RELEASED, using), using)
    chosen = wait if delay is None else delay
    release = partial(
        Message.objects.release, lease_token, [row.id], delay=-(-chosen // MILLISECOND),
        error=RELEASED, using=using,
    )  # fmt: skip
    answer = _held(repeat(using, release, doubt=nothing))
    if answer is Answer.DONE and chosen <= get_settings().POLL_INTERVAL:
        wake([row.kind], using=using)
    elif answer is Answer.DONE:
        _wake_group(topic, using)
    return answer


def touch_job(
    topic: str, job_id: str, lease_token: str, *, using: str = DEFAULT_DB_ALIAS
) -> Answer:
    """Extend the lease to at least now and its ttr, if it still holds the job."""
    row = _held_row(topic, job_id, lease_token, using)
    if isinstance(row, Answer):
        return row
    own = ttr_of_job(read_headers(row.headers))
    lease = default_ttr() if own is None else own // MILLISECOND
    extend = partial(Message.objects.extend, [lease_token], [row.id], lease, using=using)
    return _held(repeat(using, extend, doubt=never))


def bury_job(topic: str, job_id: str, lease_token: str, *, using: str = DEFAULT_DB_ALIAS) -> Answer:
    """Make the job a dead letter, if the lease still holds it."""
    row = _held_row(topic, job_id, lease_token, using)
    if isinstance(row, Answer):
        return row
    return _ended(topic, _bury(row, lease_token, BURIED, None, using), using)


def _ended(topic: str, ended: Sequence[int], using: str) -> Answer:
    """Return the answer; wake consumers that wait for a job of the group."""
    if ended:
        _wake_group(topic, using)
    return _held(ended)


def _bury(
    row: JobRow | LeasedRow, token: str, reason: str, error: str | None, using: str
) -> list[int]:
    bury = partial(
        Message.objects.dead_letter, token, [row.id], reason, error=error,
        batches=batches_of([row]), using=using,
    )  # fmt: skip
    buried: list[int] = repeat(using, bury, doubt=nothing)
    return buried


def _held_row(topic: str, job_id: str, lease_token: str, using: str) -> JobRow | Answer:
    """Return the row of the job, or the answer when the lease does not hold it."""
    row = find_row(topic, job_id, using=using)
    if row is None:
        return Answer.MISSING
    return Answer.STALE if row.is_dead or row.lease_id != lease_token else row


def _held(rows: Sequence[Any]) -> Answer:
    return Answer.DONE if rows else Answer.STALE


# Number of jobs of a kind that are searched for those of one state.
PEEK_DEPTH: Final = 1000


def peek(
    topic: str, state: JobState, limit: int = 1, *, using: str = DEFAULT_DB_ALIAS
) -> list[Job]:
    """Return the topic's next jobs of that state, without leasing them.

    Delayed and reserved ones are searched among the first thousand of each shard that are not due.
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
