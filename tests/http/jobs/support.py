"""Shorthands for tests of topics."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import F

from delayed_queue.http.jobs.adding import add_job, find_job
from delayed_queue.http.jobs.consuming import Pop
from delayed_queue.http.jobs.jobs import AddedJob, IfExists, Job, PoppedJob
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import Message

URL = "https://example.org/hook"


def add(
    job_id: str = "a", topic: str = "orders", *, if_exists: str = "fail", **fields: Any
) -> AddedJob:
    job = job_from({"jobId": job_id, "topic": topic, **fields})
    return add_job(job, if_exists=IfExists(if_exists))


def pop_jobs(topic: str, count: int = 1, **options: Any) -> list[PoppedJob]:
    return Pop(topic, count, **options).claim()


def popped(topic: str = "orders") -> PoppedJob:
    (job,) = pop_jobs(topic)
    return job


def found(job_id: str = "a", topic: str = "orders") -> Job:
    job = find_job(topic, job_id)
    assert job is not None
    return job


def let_pass(span: timedelta) -> None:
    """Shift the clock: make every stored time that much earlier."""
    Message.objects.update(
        scheduled_at=F("scheduled_at") - span // timedelta(milliseconds=1),
        created_at=F("created_at") - span // timedelta(milliseconds=1),
        version_at=F("version_at") - span // timedelta(milliseconds=1),
    )


def server_now() -> datetime:
    """Return the database's clock, in whole milliseconds as stored instants are."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT date_trunc('milliseconds', clock_timestamp())")
        now: datetime = cursor.fetchone()[0]
    return now
