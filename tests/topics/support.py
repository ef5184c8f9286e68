"""Shorthands for tests of topics."""

from __future__ import annotations

from typing import Any

from delayed_queue.models import Message
from delayed_queue.topics import (
    AddedJob,
    IfExists,
    Job,
    PoppedJob,
    add_job,
    find_job,
    job_from,
    pop_jobs,
)

URL = "https://example.org/hook"


def add(
    job_id: str = "a", topic: str = "orders", *, if_exists: str = "fail", **fields: Any
) -> AddedJob:
    job = job_from({"jobId": job_id, "topic": topic, **fields})
    return add_job(job, if_exists=IfExists(if_exists))


def popped(topic: str = "orders") -> PoppedJob:
    (job,) = pop_jobs(topic)
    return job


def found(job_id: str = "a", topic: str = "orders") -> Job:
    job = find_job(topic, job_id)
    assert job is not None
    return job


def let_pass(seconds: float) -> None:
    """Make all that is stored that much older."""
    from django.db.models import F

    Message.objects.update(scheduled_at=F("scheduled_at") - int(seconds * 1000))
