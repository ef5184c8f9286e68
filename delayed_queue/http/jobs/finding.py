"""Looking for one job, and deleting it."""

from __future__ import annotations

from functools import partial

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.db.resilience import repeat
from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.http.jobs.jobs import Job, JobState, read_headers, url_of
from delayed_queue.http.jobs.kinds import check_topic
from delayed_queue.http.jobs.ladders import initial_retry
from delayed_queue.http.models import Topic
from delayed_queue.http.store.topics import DroppedRow, JobRow
from delayed_queue.messages import check_key, from_milliseconds

_MAX_ERROR: int = 500
_TRIES: int = 100


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
        expires_at=at if state is JobState.RESERVED else None,
        died_at=at if state is JobState.DEAD else None,
        dead_letter_id=row.id if row.is_dead else None,
        created_at=from_milliseconds(row.created_at),
        url=url_of(headers),
        last_error=last_line(row.last_error) or row.reason,
    )


def state_of(row: JobRow) -> JobState:
    if row.is_dead:
        return JobState.DEAD
    if row.scheduled_at <= row.now:
        return JobState.READY
    return JobState.DELAYED if row.lease_id is None else JobState.RESERVED


def last_line(error: str | None) -> str:
    """Return what a traceback ends with: the rest is for operators, not for callers."""
    lines = (error or "").strip().splitlines()
    return lines[-1].strip()[:_MAX_ERROR] if lines else ""


def delete_job(topic: str, job_id: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Delete the job whatever its state, dead ones too; return whether there was one.

    It is not delivered after the answer; an attempt under way may end, and is not repeated.
    Waits for whoever holds its row. Raises OutcomeUnknown when the connection was lost meanwhile
    and no job is there.
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
    raise ResourceUnavailable(f"The job {job_id!r} does not stand still.")


def _found_nothing(row: DroppedRow) -> bool:
    return not row.was_there
