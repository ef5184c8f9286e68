"""Add, find and delete jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from django.db import DEFAULT_DB_ALIAS, Error, transaction

from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import Lost, Tries, repeat
from delayed_queue.db.wakeups import channel_of
from delayed_queue.exceptions import BatchClosed, DelayedQueueError, ResourceUnavailable
from delayed_queue.http.jobs.catalogue import create_topic, ensure_hosts, ensure_topic, kinds_of
from delayed_queue.http.jobs.jobs import (
    AddedJob,
    IfExists,
    Job,
    JobState,
    NewJob,
    initial_retry,
    read_headers,
    url_of,
)
from delayed_queue.http.jobs.kinds import (
    Way,
    check_callbacks,
    check_topic,
    shard_of,
    shard_of_host,
    topic_kind,
)
from delayed_queue.http.models import Topic
from delayed_queue.http.store.adding import AddedRow
from delayed_queue.http.store.finding import DroppedRow, JobRow
from delayed_queue.http.store.topics import MOST_JOBS, TopicRow
from delayed_queue.messages import (
    MILLISECOND,
    OfferOutcome,
    check_key,
    from_milliseconds,
    to_milliseconds,
)
from delayed_queue.models import DeadLetter, Message, StoredBatch
from delayed_queue.queue.base import nothing
from delayed_queue.queue.offering import find_out
from delayed_queue.queue.store.finishing import Joining
from delayed_queue.queue.store.offer import Offered

BATCH: Final = MOST_JOBS
_TRIES: Final = 100


def add_job(
    job: NewJob, *, if_exists: IfExists = IfExists.FAIL, using: str = DEFAULT_DB_ALIAS
) -> AddedJob:
    """Store the job; the outcome is None if the topic has one of its id."""
    return add_jobs([job], if_exists=if_exists, using=using)[0]


def add_jobs(
    jobs: Sequence[NewJob], *, if_exists: IfExists = IfExists.FAIL, using: str = DEFAULT_DB_ALIAS
) -> list[AddedJob]:
    """Store jobs of any topics, 200 per transaction; return the results in input order.

    Inside a transaction of the caller all belong to it. Raises CallbacksOff, and stores none, if a
    job has a url and workers send no callbacks. Raises OutcomeUnknown when the connection was lost
    and a job that is due is missing: it may be handled already.
    """
    check_callbacks(job.way for job in jobs)
    added: dict[int, AddedJob] = {}
    for batch in _batches(jobs):
        chosen = [jobs[position] for position in batch]
        added.update(zip(batch, add_batch(chosen, IfExists(if_exists), using), strict=True))
    return [added[position] for position in range(len(jobs))]


def _batches(jobs: Sequence[NewJob]) -> Iterator[list[int]]:
    """Yield positions of jobs for one statement: of one topic, batch and lease, with distinct ids.

    A repeated id is in a later batch, so that it finds the job of the earlier one.
    """
    turns: dict[tuple[str, str], int] = {}
    groups: dict[tuple[int, str, int, str], list[int]] = {}
    for position, job in enumerate(jobs):
        name = (job.topic, job.job_id)
        turn = turns[name] = turns.get(name, -1) + 1
        place = (turn, job.topic, job.batch or 0, job.lease or "")
        groups.setdefault(place, []).append(position)
    for _, group in sorted(groups.items()):
        for start in range(0, len(group), BATCH):
            yield group[start : start + BATCH]


def add_batch(
    jobs: Sequence[NewJob], if_exists: IfExists, using: str, tries: Tries | None = None
) -> list[AddedJob]:
    """Store jobs of one topic and batch, with distinct ids; ``tries`` may have stored them."""
    try:
        by_id = {row.key: row for row in _add(jobs, if_exists, using, tries)}
    except BatchClosed:
        return [AddedJob(job.job_id, job.topic, None, is_batch_closed=True) for job in jobs]
    return [
        outcome_of(job, by_id.get(job.job_id), if_exists) or _unchanged(job, using) for job in jobs
    ]


def _add(
    jobs: Sequence[NewJob], if_exists: IfExists, using: str, tries: Tries | None = None
) -> list[AddedRow]:
    topic = ensure_topic(jobs[0].topic, using=using)
    written: list[AddedRow] = []
    for _ in range(_TRIES):
        topic = ensure_hosts(topic, (job.host for job in jobs), using=using)
        attempt = partial(write_jobs, topic, jobs, if_exists, using)
        again = partial(_write_again, topic, jobs, if_exists, using)
        rows = repeat(using, attempt, truth=again, tries=tries)
        if rows is None:
            # The topic was deleted, or its shards or hosts changed, since this process read it.
            topic = create_topic(topic.name, using=using)
            continue
        missed = {row.key for row in rows if row.scheduled_at is None}
        written += [row for row in rows if row.key not in missed]
        jobs = [job for job in jobs if job.job_id in missed]
        if not jobs:
            return written
    raise ResourceUnavailable(f"The topic {topic.name!r} keeps changing.")


def _write_again(
    topic: TopicRow, jobs: Sequence[NewJob], if_exists: IfExists, using: str, lost: Lost
) -> list[AddedRow] | None:
    """Return what a lost try has written, and write what it has not."""
    offered = [offered_of(job, topic) for job in jobs]
    can_update = if_exists is IfExists.UPDATE
    created, again = find_out(lost, offered, can_update=can_update, using=using)
    rows = [AddedRow(each.key, True, each.scheduled_at_initially, each.now) for each in created]
    if not again:
        return rows
    fixed = {each.key: each for each in again}
    missing = [
        replace(
            job, schedule_at=offer.schedule_at, delay=0, expires_at=offer.expires_at,
            expires_in=None,
        )
        for job in jobs
        if (offer := fixed.get(job.job_id)) is not None
    ]  # fmt: skip
    more = write_jobs(topic, missing, if_exists, using)
    return None if more is None else rows + more


def write_jobs(
    topic: TopicRow,
    jobs: Sequence[NewJob],
    if_exists: IfExists,
    using: str,
    *,
    timeout: int | None = None,
) -> list[AddedRow] | None:
    """Write jobs of one batch, with distinct ids, in one try.

    Returns None when the topic has other shards now. Raises BatchClosed.
    """
    offered = [offered_of(job, topic) for job in jobs]
    add = partial(
        Topic.objects.add, topic, offered, kinds_of(topic),
        can_update=if_exists is IfExists.UPDATE, channels=_channels(offered), timeout=timeout,
        using=using,
    )  # fmt: skip
    batch, lease = jobs[0].batch, jobs[0].lease
    if batch is None:
        return add()
    joining = Joining(batch) if lease is None else _joining_of_lease(batch, lease, using)
    return _add_members(joining, offered, add, using)


def _joining_of_lease(batch: int, lease: str, using: str) -> Joining:
    """Return the right of a leased job to add others to its batch."""
    members = Message.objects.using(using).filter(lease_id=lease, batch_id=batch)
    return Joining(batch, members.values_list("pk", flat=True).first() or 0, lease)


def _add_members(
    joining: Joining, offered: list[Offered], add: Callable[[], list[AddedRow] | None], using: str
) -> list[AddedRow] | None:
    """Add jobs, and make those that were written members of the batch, in one transaction."""
    batch = joining.batch_id
    with transaction.atomic(using=using):
        if not StoredBatch.objects.hold(joining, using=using):
            raise BatchClosed(f"The batch {batch} is closed or unknown; nothing was added.")
        rows = add()
        written = {row.key for row in rows or () if row.scheduled_at is not None}
        by_kind: dict[str, list[str]] = {}
        for job in offered:
            if job.key in written:
                by_kind.setdefault(job.kind, []).append(job.key)
        for kind, keys in sorted(by_kind.items()):
            StoredBatch.objects.move(batch, kind, keys, using=using)
    return rows


def offered_of(job: NewJob, topic: TopicRow) -> Offered:
    # By host, so that a host that is down delays no jobs of other hosts.
    if job.way is Way.CALLBACK:
        shard = shard_of_host(job.host, topic.hosts)
    else:
        shard = shard_of(job.job_id, topic.shards)
    kind = topic_kind(topic.name, shard, job.way)
    return Offered(
        job.job_id, kind, job.payload, job.schedule_at, job.delay, job.headers, job.group,
        job.expires_at, job.expires_in,
    )  # fmt: skip


def _channels(offered: list[Offered]) -> list[str]:
    """Return the channels of jobs that are due before sleeping workers poll again."""
    if not get_settings().NOTIFY:
        return []
    horizon = get_settings().POLL_INTERVAL // MILLISECOND
    now = to_milliseconds(datetime.now(UTC))
    soon = {
        job.kind
        for job in offered
        if (job.delay if job.schedule_at is None else job.schedule_at - now) <= horizon
    }
    return [channel_of(kind) for kind in sorted(soon)]


def outcome_of(job: NewJob, row: AddedRow | None, if_exists: IfExists) -> AddedJob | None:
    """Return the result for a job by its row; None if that needs a query: it stays as it is."""
    if row is not None and row.scheduled_at is not None:
        state = JobState.READY if row.scheduled_at <= row.now else JobState.DELAYED
        outcome = OfferOutcome.CREATED if row.is_created else OfferOutcome.UPDATED
        due_at = from_milliseconds(row.scheduled_at)
        return AddedJob(job.job_id, job.topic, outcome, state, due_at)
    if row is None and if_exists is IfExists.FAIL:
        return AddedJob(job.job_id, job.topic, None)
    return None


def _unchanged(job: NewJob, using: str) -> AddedJob:
    found = find_job(job.topic, job.job_id, using=using)
    if found is None:  # finished since
        return AddedJob(job.job_id, job.topic, OfferOutcome.IGNORED)
    return AddedJob(job.job_id, job.topic, OfferOutcome.IGNORED, found.state, found.run_at)


# Longest wait of a shared transaction for a locked id, in milliseconds. Then each job waits alone.
TIMEOUT: Final = 100

Place = tuple[str, str, IfExists]


def write_together(place: Place, jobs: list[NewJob]) -> list[AddedJob | Tries | None]:
    """Write jobs with distinct ids in one try; return the result of each.

    A job without a result must be added alone, after the tries that are returned instead: its id
    is locked, an error stopped all, or its result needs another query.
    """
    using, topic, if_exists = place
    tries = Tries(using)
    try:
        found = ensure_topic(topic, using=using)
        found = ensure_hosts(found, (job.host for job in jobs), using=using)
        tries.begin()
        rows = write_jobs(found, jobs, if_exists, using, timeout=TIMEOUT)
    except Error as error:
        tries.note(error)
        return [tries] * len(jobs)
    # Added alone, each job gets its own error.
    except (DelayedQueueError, ValueError):
        rows = None
    if rows is None:
        return [None] * len(jobs)
    by_id = {row.key: row for row in rows}
    return [outcome_of(job, by_id.get(job.job_id), if_exists) for job in jobs]


_MAX_ERROR: Final = 500


def find_job(topic: str, job_id: str, *, using: str = DEFAULT_DB_ALIAS) -> Job | None:
    """Return the job as it stands, dead ones included; None when there is none."""
    row = find_row(topic, job_id, using=using)
    return None if row is None else job_of(topic, job_id, row)


def find_row(topic: str, job_id: str, *, using: str = DEFAULT_DB_ALIAS) -> JobRow | None:
    check_topic(topic)
    check_key(job_id)
    return repeat(using, partial(Topic.objects.find, topic, job_id, using=using))


def job_of(topic: str, job_id: str, row: JobRow) -> Job:
    """Return the job of a row."""
    headers = read_headers(row.headers)
    state, at = state_of(row), from_milliseconds(row.scheduled_at)
    # The attempt under way is counted already, and has not failed.
    failures = row.attempts - (1 if state is JobState.RESERVED else 0)
    return Job(
        job_id=job_id,
        topic=topic,
        state=state,
        retry=initial_retry(headers) + max(failures, 0),
        run_at=at if state in {JobState.DELAYED, JobState.READY} else None,
        leased_until=at if state is JobState.RESERVED else None,
        expires_at=None if row.expires_at is None else from_milliseconds(row.expires_at),
        died_at=at if state is JobState.DEAD else None,
        dead_letter_id=row.id if row.is_dead else None,
        batch=row.batch_id,
        created_at=from_milliseconds(row.created_at),
        url=url_of(headers),
        last_error=last_line(row.last_error) or row.reason,
        group=row.group,
    )


def state_of(row: JobRow) -> JobState:
    if row.is_dead:
        return JobState.DEAD
    if row.scheduled_at <= row.now:
        return JobState.READY
    return JobState.DELAYED if row.lease_id is None else JobState.RESERVED


def last_line(error: str | None) -> str:
    """Return the last line of a traceback: the rest is for operators, not for callers."""
    lines = (error or "").strip().splitlines()
    return lines[-1].strip()[:_MAX_ERROR] if lines else ""


def delete_job(topic: str, job_id: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Delete the job in any state, dead ones too; return whether there was one.

    It is not delivered afterwards; a running attempt may finish, and is not repeated. Waits for
    locks of its row. Raises OutcomeUnknown when the connection was lost and the job is missing.
    """
    check_topic(topic)
    check_key(job_id)
    drop = partial(Topic.objects.drop, topic, job_id, using=using)
    was_there = False
    for _ in range(_TRIES):
        row = repeat(using, drop, doubt=None if was_there else _found_nothing)
        was_there = was_there or row.was_there
        if not row.is_doubtful:
            return was_there
        was_there = _drop_members(job_id, row, using) or was_there
    raise ResourceUnavailable(f"The job {job_id!r} keeps changing.")


def _found_nothing(row: DroppedRow) -> bool:
    return not (row.was_there or row.members or row.dead_members)


def _drop_members(job_id: str, row: DroppedRow, using: str) -> bool:
    """Delete members that a deletion has found, and count them; return whether any was there."""
    drops: list[Callable[[], int]] = [
        partial(Message.objects.drop, kind, job_id, using=using) for kind in row.members
    ]
    if row.dead_members:
        drops.append(partial(DeadLetter.objects.drop, row.dead_members, using=using))
    dropped = [repeat(using, drop, doubt=nothing) for drop in drops]
    return any(dropped)
