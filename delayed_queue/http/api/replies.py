"""Requests and answers of the calls about jobs: schemas to describe them, bytes for the wire."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

from django.http import HttpResponse
from ninja import Path, Query, Schema
from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from delayed_queue.db.sql import Page
from delayed_queue.exceptions import InvalidJob
from delayed_queue.http.api.bodies import Problem, as_json
from delayed_queue.http.jobs.catalogue import TopicStats
from delayed_queue.http.jobs.dead import DeadGroup, DeadJob
from delayed_queue.http.jobs.jobs import Answer, Job, check_run_at
from delayed_queue.http.jobs.kinds import MAX_TOPIC_LENGTH, TOPIC_PATTERN
from delayed_queue.messages import MAX_KEY_LENGTH
from delayed_queue.models import BulkRun
from delayed_queue.queue.bulk import MAX_CANARY, MAX_LETTERS, MAX_PACE, MAX_SPREAD

T = TypeVar("T")

# No control characters, as of the ids of new jobs.
_PRINTABLE: Final = r"^[^\x00-\x1f\x7f-\x9f]+$"
_TOPIC: Final[dict[str, Any]] = {
    "min_length": 1, "max_length": MAX_TOPIC_LENGTH, "pattern": f"^{TOPIC_PATTERN}$",
}  # fmt: skip
_JOB: Final[dict[str, Any]] = {
    "min_length": 1, "max_length": MAX_KEY_LENGTH, "pattern": _PRINTABLE,
}  # fmt: skip
MAX_ID: Final = 2**63 - 1
TopicName = Annotated[str, Path(**_TOPIC)]
JobId = Annotated[str, Path(**_JOB)]
# Of lists: whose they are, and which page.
OfTopic = Annotated[str | None, Query(**_TOPIC)]
OfJob = Annotated[str, Query(**_JOB)]
After = Annotated[int, Query(ge=0, le=MAX_ID)]
Limit = Annotated[int, Query(ge=1, le=100)]
Body = Annotated[Any, Field(description="Any JSON.")]
# In milliseconds, of an ISO 8601 text with a zone.
Instant = Annotated[
    int, BeforeValidator(check_run_at), WithJsonSchema({"type": "string", "format": "date-time"})
]


class AddedReply(Schema):
    """A job that was stored."""

    jobId: str
    topic: str
    state: str
    runAt: datetime | None


class JobReply(Schema):
    """A job as it stands; ``retry`` counts failures so far."""

    jobId: str
    topic: str
    state: str
    retry: int
    runAt: datetime | None
    createdAt: datetime
    expiresAt: datetime | None
    diedAt: datetime | None
    deadLetterId: int | None
    url: str | None
    group: str | None
    lastError: str


class PoppedReply(Schema):
    """A job under a lease."""

    jobId: str
    body: Body
    attempt: int
    group: str | None
    leaseToken: str
    expiresAt: datetime


class DeadReply(Schema):
    """A job that was given up on."""

    id: int
    jobId: str
    topic: str
    body: Body
    url: str | None
    retry: int
    reason: str
    lastError: str
    createdAt: datetime
    diedAt: datetime


class DeadPage(Schema):
    """Dead jobs in id order; ``next`` is the ``after`` of the next page, if there is one."""

    items: list[DeadReply]
    next: int | None


class DeadGroupReply(Schema):
    """Dead jobs that failed alike; ``isCapped``: counting stopped, there may be more."""

    id: str
    topic: str
    queue: str
    failure: str
    count: int
    isCapped: bool
    firstAt: datetime
    lastAt: datetime
    newestId: int


class DeadGroups(Schema):
    """Failures by cause, those seen last first."""

    items: list[DeadGroupReply]


class BulkRunReply(Schema):
    """Dead jobs being put back or deleted in bulk; ``isCapped``: there may be more left."""

    id: int
    action: str
    queue: str
    group: str | None
    state: str
    note: str
    total: int
    isCapped: bool
    done: int
    skipped: int
    startedBy: str
    why: str
    startedAt: datetime
    endedAt: datetime | None


class BulkRuns(Schema):
    """Bulk runs, the newest first."""

    items: list[BulkRunReply]


class PreviewReply(Schema):
    """The number of dead jobs that a bulk run would take; ``isCapped``: there may be more."""

    total: int
    isCapped: bool


class NewBulkRun(Schema):
    """A bulk run to begin, over a failure as the list of failures names it."""

    model_config = ConfigDict(extra="forbid")

    action: Literal["redrive", "drop"]
    queue: Annotated[str, Field(min_length=1, max_length=100, pattern=_PRINTABLE)]
    group: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    reason: Annotated[str, Field(min_length=1, max_length=200, pattern=_PRINTABLE)] | None = None
    keyFrom: Annotated[str, Field(min_length=1, max_length=200, pattern=_PRINTABLE)] | None = None
    keyBefore: Annotated[str, Field(min_length=1, max_length=200, pattern=_PRINTABLE)] | None = None
    since: Instant | None = None
    until: Instant | None = None
    pace: Annotated[int, Field(ge=1, le=MAX_PACE)] | None = None
    overSeconds: Annotated[int, Field(ge=1, le=int(MAX_SPREAD.total_seconds()))] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_LETTERS)] | None = None
    canary: Annotated[int, Field(ge=0, le=MAX_CANARY)] = 0
    canaryDeaths: Annotated[int, Field(ge=1, le=MAX_CANARY)] = 1
    why: Annotated[str, Field(max_length=500)] = ""


def run_as_dict(run: BulkRun) -> dict[str, Any]:
    return {
        "id": run.pk, "action": run.action, "queue": run.kind, "group": run.fingerprint,
        "state": run.state, "note": run.note, "total": run.total, "isCapped": run.is_total_cut,
        "done": run.done, "skipped": run.skipped, "startedBy": run.started_by, "why": run.why,
        "startedAt": run.created_at, "endedAt": run.ended_at,
    }  # fmt: skip


class KickedReply(Schema):
    """The number of dead jobs that were put back."""

    kicked: int


class TopicReply(Schema):
    """The settings of a topic's jobs; ``ttr`` in seconds, null is the server's."""

    name: str
    shards: int
    ladder: str
    jitter: float
    ttr: float | None


class StatsReply(Schema):
    """The counts of a topic's jobs; ``isCapped``: counting stopped, there may be more."""

    topic: str
    shards: int
    isPaused: bool
    delayed: int
    ready: int
    reserved: int
    dead: int
    isCapped: bool
    oldestReadySeconds: float | None


class PauseReply(Schema):
    """The state of a topic's pause: while paused it hands out no jobs."""

    isPaused: bool


class Lease(Schema):
    """The proof that a consumer holds a job."""

    model_config = ConfigDict(extra="forbid")

    leaseToken: str = Field(min_length=1, max_length=36)


def reply(status: int, data: Any, **headers: str) -> HttpResponse:
    return HttpResponse(
        as_json(data), status=status, content_type="application/json", headers=headers
    )


def page_reply(page: Page[T, int], as_dict: Callable[[T], dict[str, Any]]) -> HttpResponse:
    return reply(200, {"items": [as_dict(each) for each in page.items], "next": page.next})


def nothing() -> HttpResponse:
    return HttpResponse(status=204)


def invalid(error: InvalidJob) -> Problem:
    """Return the problem of a job whose fields are wrong."""
    errors = [{"in": "body", "path": path, "message": wrong} for path, wrong in error.errors]
    return Problem(400, "invalid_request", "Invalid request", errors=errors)


def invalid_query(path: str, message: str) -> Problem:
    errors = [{"in": "query", "path": path, "message": message}]
    return Problem(400, "invalid_request", "Invalid request", errors=errors)


def missing(what: str = "job") -> Problem:
    return Problem(404, "not_found", detail=f"There is no such {what}.")


def taken() -> Problem:
    return Problem(
        409,
        "job_already_exists",
        detail="The topic already has a job with this id; it may be dead.",
    )


def settled(answer: Answer) -> HttpResponse:
    """Return 204, or raise what the lease was refused with."""
    if answer is Answer.MISSING:
        raise missing()
    if answer is Answer.STALE:
        raise Problem(409, "stale_lease", detail="The lease was lost.")
    return nothing()


def job_as_dict(job: Job) -> dict[str, Any]:
    return {
        "jobId": job.job_id, "topic": job.topic, "state": job.state, "retry": job.retry,
        "runAt": job.run_at, "createdAt": job.created_at, "expiresAt": job.expires_at,
        "diedAt": job.died_at, "deadLetterId": job.dead_letter_id, "url": job.url,
        "group": job.group, "lastError": job.last_error,
    }  # fmt: skip


def dead_as_dict(job: DeadJob) -> dict[str, Any]:
    return {
        "id": job.id, "jobId": job.job_id, "topic": job.topic, "body": job.body, "url": job.url,
        "retry": job.retry, "reason": job.reason, "lastError": job.last_error,
        "createdAt": job.created_at, "diedAt": job.died_at,
    }  # fmt: skip


def group_as_dict(group: DeadGroup) -> dict[str, Any]:
    return {
        "id": group.id, "topic": group.topic, "queue": group.queue, "failure": group.failure,
        "count": group.count, "isCapped": group.is_capped, "firstAt": group.first_at,
        "lastAt": group.last_at, "newestId": group.newest_id,
    }  # fmt: skip


def stats_as_dict(stats: TopicStats) -> dict[str, Any]:
    counts = {"delayed": stats.delayed, "ready": stats.ready, "reserved": stats.reserved,
              "dead": stats.dead}  # fmt: skip
    age = stats.oldest_ready_age
    return {
        "topic": stats.topic,
        "shards": stats.shards,
        "isPaused": stats.is_paused,
        **{name: count.value for name, count in counts.items()},
        "isCapped": any(count.is_cut for count in counts.values()),
        "oldestReadySeconds": None if age is None else age.total_seconds(),
    }
