"""What failed: dead jobs, bulk runs over many of them, and the log of callbacks."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from django.http import HttpResponse
from ninja import Path, Query, Router, Schema

from delayed_queue.db.sql import page_of
from delayed_queue.exceptions import InvalidConfiguration, NoSuchLetters, RunInProgress
from delayed_queue.http.api.auth import ApiRequest, demand, reaches, requires
from delayed_queue.http.api.bodies import Problem
from delayed_queue.http.api.replies import (
    MAX_ID,
    AddedReply,
    After,
    BulkRunReply,
    BulkRuns,
    DeadGroups,
    DeadPage,
    JobId,
    KickedReply,
    Limit,
    NewBulkRun,
    OfJob,
    OfTopic,
    PreviewReply,
    TopicName,
    dead_as_dict,
    group_as_dict,
    missing,
    nothing,
    page_reply,
    reply,
    run_as_dict,
    taken,
)
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.adding import find_job
from delayed_queue.http.jobs.dead import (
    MAX_KICK,
    DeadJob,
    dead_groups,
    dead_jobs,
    delete_dead_job,
    find_dead_job,
    find_run,
    kick_job,
    kick_topic,
    latest_runs,
    replay,
)
from delayed_queue.http.jobs.jobs import Answer, JobState
from delayed_queue.http.jobs.kinds import parse_kind
from delayed_queue.http.models import CallbackAttempt
from delayed_queue.http.store.callbacks import LoggedRow
from delayed_queue.messages import from_milliseconds
from delayed_queue.models import BulkRun
from delayed_queue.queue.bulk import PREVIEW_CAP, REDRIVE, BulkPlan, switch_run

router = Router(tags=["dead jobs"])
LetterId = Annotated[int, Path(ge=1, le=MAX_ID)]
RunId = Annotated[int, Path(ge=1, le=MAX_ID)]
RunSwitch = Literal["pause", "resume", "cancel"]


@router.post(
    "/topics/{topic}/jobs/{path:job_id}/kick",
    auth=requires("manage"),
    response={200: KickedReply, 404: None},
    summary="Redrive a dead job",
)
def kick(request: ApiRequest, topic: TopicName, job_id: JobId) -> HttpResponse:
    """Make a dead job ready, from the beginning of its ladder; one that lives is left as it is."""
    kicked = kick_job(topic, job_id, using=api_settings().DATABASE)
    if kicked is None:
        raise missing()
    return reply(200, {"kicked": kicked})


@router.post(
    "/topics/{topic}/kick",
    auth=requires("manage"),
    response={200: KickedReply},
    summary="Redrive the dead jobs of a topic",
)
def kick_all(
    request: ApiRequest,
    topic: TopicName,
    limit: Annotated[int, Query(ge=1, le=MAX_KICK)] = 100,
) -> HttpResponse:
    """Make dead jobs ready, those that died first before others."""
    return reply(200, {"kicked": kick_topic(topic, limit, using=api_settings().DATABASE)})


@router.get("/dead", auth=requires("read"), response=DeadPage, summary="List dead jobs")
def list_dead(
    request: ApiRequest,
    topic: OfTopic = None,
    after: After = 0,
    limit: Limit = 20,
) -> HttpResponse:
    """List the dead jobs of a topic, or of all that the token covers, in id order."""
    if topic is not None:
        demand(request, "read", topic)
    found = dead_jobs(
        topic,
        after=after,
        limit=limit + 1,
        covers=reaches(request.auth),
        using=api_settings().DATABASE,
    )
    return page_reply(page_of(found, limit, lambda each: each.id), dead_as_dict)


@router.get(
    "/dead/groups", auth=requires("read"), response=DeadGroups, summary="List failures by cause"
)
def list_groups(request: ApiRequest, topic: OfTopic = None, limit: Limit = 20) -> HttpResponse:
    """List what is dead in a topic, or in all that the token covers, by its cause."""
    if topic is not None:
        demand(request, "read", topic)
    using, covers = api_settings().DATABASE, reaches(request.auth)
    found = dead_groups(topic, limit=limit, covers=covers, using=using)
    return reply(200, {"items": [group_as_dict(each) for each in found]})


@router.get("/dead/runs", auth=requires("read"), response=BulkRuns, summary="List bulk runs")
def list_runs(request: ApiRequest, limit: Limit = 20) -> HttpResponse:
    """List the bulk runs over what the token covers, the newest first."""
    found = latest_runs(limit, covers=reaches(request.auth), using=api_settings().DATABASE)
    return reply(200, {"items": [run_as_dict(each) for each in found]})


@router.post(
    "/dead/runs",
    auth=requires("manage"),
    response={202: BulkRunReply, 404: None, 409: None},
    summary="Redrive or delete the dead jobs of a failure",
)
def begin_run(request: ApiRequest, body: NewBulkRun) -> HttpResponse:
    """Have workers do it at a pace, or spread over a time; a canary goes first where one is named.

    It takes the jobs that are dead now. 404 when the failure has none, 409 while another run is
    over it.
    """
    using, plan = api_settings().DATABASE, _plan_of(request, body)
    try:
        run_id = plan.start(by=request.auth.name, why=body.why, using=using)
    except NoSuchLetters:
        raise missing("failure") from None
    except RunInProgress as error:
        raise Problem(409, "run_in_progress", detail=str(error)) from None
    return reply(202, run_as_dict(_run(request, "manage", run_id)))


@router.post(
    "/dead/runs/preview",
    auth=requires("manage"),
    response={200: PreviewReply, 404: None},
    summary="Count the dead jobs that a bulk run would take",
)
def preview_run(request: ApiRequest, body: NewBulkRun) -> HttpResponse:
    """Count it, as far as counting goes; nothing is changed."""
    found = _plan_of(request, body).preview(api_settings().DATABASE)
    return reply(200, {"total": found.meant, "isCapped": found.seen == PREVIEW_CAP})


def _plan_of(request: ApiRequest, body: NewBulkRun) -> BulkPlan:
    place = parse_kind(body.queue)
    if place is None:
        raise missing("failure")
    demand(request, "manage" if body.action == REDRIVE else "delete", place.topic)
    over = None if body.overSeconds is None else timedelta(seconds=body.overSeconds)
    try:
        return BulkPlan(
            body.action, body.queue, body.group, reason=body.reason, key_from=body.keyFrom,
            key_before=body.keyBefore, since=body.since, until=body.until, pace=body.pace,
            over=over, limit=body.limit, canary=body.canary, canary_deaths=body.canaryDeaths,
        )  # fmt: skip
    except InvalidConfiguration as error:
        raise Problem(400, "invalid_request", "Invalid request", str(error)) from None


@router.get(
    "/dead/runs/{run_id}",
    auth=requires("read"),
    response={200: BulkRunReply, 404: None},
    summary="Read a bulk run",
)
def read_run(request: ApiRequest, run_id: RunId) -> HttpResponse:
    """Answer how far it is."""
    return reply(200, run_as_dict(_run(request, "read", run_id)))


@router.post(
    "/dead/runs/{run_id}/{switch}",
    auth=requires("manage"),
    response={200: BulkRunReply, 404: None, 409: None},
    summary="Pause, resume or cancel a bulk run",
)
def switch(request: ApiRequest, run_id: RunId, switch: RunSwitch) -> HttpResponse:
    """Change its state; 409 when it is in none for that."""
    run = _run(request, "manage", run_id)
    if not switch_run(run_id, switch, using=api_settings().DATABASE):
        raise Problem(409, "wrong_state", detail=f"The run is {run.state}.")
    return reply(200, run_as_dict(_run(request, "manage", run_id)))


def _run(request: ApiRequest, verb: str, run_id: int) -> BulkRun:
    """Return the run; one over what the token does not cover is not there."""
    covers = reaches(request.auth)
    run = find_run(run_id, covers=covers, using=api_settings().DATABASE)
    if run is None or not request.auth.may(verb):
        raise missing("run")
    return run


@router.post(
    "/dead/{letter_id}/replay",
    auth=requires("manage"),
    response={202: AddedReply, 404: None, 409: None},
    summary="Redrive one dead job",
)
def replay_one(request: ApiRequest, letter_id: LetterId) -> HttpResponse:
    """Make a dead job ready; 409 when a job of its id lives."""
    using = api_settings().DATABASE
    dead = _covered(request, "manage", letter_id, using)
    answer = replay(letter_id, using=using)
    if answer is Answer.MISSING:
        raise missing("dead job")
    if answer is Answer.STALE:
        raise taken()
    job = find_job(dead.topic, dead.job_id, using=using)
    state = job.state if job is not None else JobState.READY
    run_at = job.run_at if job is not None else None
    return reply(202, {"jobId": dead.job_id, "topic": dead.topic, "state": state, "runAt": run_at})


@router.delete(
    "/dead/{letter_id}",
    auth=requires("delete"),
    response={204: None, 404: None},
    summary="Delete a dead job",
)
def delete_one(request: ApiRequest, letter_id: LetterId) -> HttpResponse:
    """Delete one dead job for good."""
    using = api_settings().DATABASE
    _covered(request, "delete", letter_id, using)
    if not delete_dead_job(letter_id, using=using):
        raise missing("dead job")
    return nothing()


def _covered(request: ApiRequest, verb: str, letter_id: int, using: str) -> DeadJob:
    """Return the dead job; one of a topic that the token does not cover is not there."""
    dead = find_dead_job(letter_id, using=using)
    is_ours = reaches(request.auth)
    if dead is None or not (request.auth.may(verb) and is_ours(dead.topic)):
        raise missing("dead job")
    return dead


PAGE = 500


class AttemptReply(Schema):
    """One callback. ``failure`` is empty where the job was received."""

    id: int
    jobId: str
    topic: str
    webhookId: str
    attempt: int
    startedAt: str
    durationMs: int
    status: int | None
    failure: str
    detail: str
    address: str
    excerpt: str
    isAmbiguous: bool
    endpoint: int | None


class AttemptPage(Schema):
    """Attempts in the order they were logged; ``next`` is what to ask ``after``."""

    items: list[AttemptReply]
    next: int | None


@router.get(
    "/attempts",
    auth=requires("read"),
    response={200: AttemptPage},
    tags=["callbacks"],
    summary="List attempts",
)
def list_attempts(
    request: ApiRequest,
    job: OfJob,
    topic: OfTopic = None,
    after: After = 0,
    limit: Limit = 20,
) -> HttpResponse:
    """List the callbacks of a job, of that id in one topic or in all, the oldest first.

    Without a topic, those of topics that the token does not cover are left out.
    """
    if topic is not None:
        demand(request, "read", topic)
    found = _covered_attempts(request, job, topic, after, limit + 1)
    return page_reply(page_of(found, limit, lambda each: each.id), _attempt_as_dict)


def _covered_attempts(
    request: ApiRequest, job: str, topic: str | None, after: int, limit: int
) -> list[LoggedRow]:
    """Return the next attempts of topics that the token covers.

    A page is filled up behind those of others: one cut short would tell that they are there.
    """
    using = api_settings().DATABASE
    found: list[LoggedRow] = []
    is_ours = reaches(request.auth)
    while len(found) < limit:
        rows = CallbackAttempt.objects.of_job(job, topic, after=after, limit=PAGE, using=using)
        found += (each for each in rows if is_ours(each.topic))
        if len(rows) < PAGE:
            break
        after = rows[-1].id
    return found[:limit]


def _attempt_as_dict(row: LoggedRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "jobId": row.key,
        "topic": row.topic,
        "webhookId": row.webhook_id,
        "attempt": row.attempt,
        "startedAt": from_milliseconds(row.started_at),
        "durationMs": row.duration,
        "status": row.status,
        "failure": row.failure,
        "detail": row.detail,
        "address": row.address,
        "excerpt": row.excerpt,
        "isAmbiguous": row.is_ambiguous,
        "endpoint": row.endpoint_id,
    }
