"""Dead jobs: kick, list, replay, delete."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpResponse
from ninja import Path, Query, Router

from delayed_queue.db.rows import page_of
from delayed_queue.http.api.auth import ApiRequest, demand, reaches, requires
from delayed_queue.http.api.replies import (
    MAX_ID,
    AddedReply,
    After,
    DeadGroups,
    DeadPage,
    JobId,
    KickedReply,
    Limit,
    OfTopic,
    TopicName,
    dead_as_dict,
    group_as_dict,
    missing,
    nothing,
    page_reply,
    reply,
    taken,
)
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.dead import (
    MAX_KICK,
    dead_groups,
    dead_jobs,
    delete_dead_job,
    find_dead_job,
    kick_job,
    kick_topic,
    replay,
)
from delayed_queue.http.jobs.finding import find_job
from delayed_queue.http.jobs.jobs import Answer, DeadJob, JobState

router = Router(tags=["dead jobs"])
LetterId = Annotated[int, Path(ge=1, le=MAX_ID)]


@router.post(
    "/topics/{topic}/jobs/{path:job_id}/kick",
    auth=requires("manage"),
    response={200: KickedReply, 404: None},
    summary="Put a dead job back",
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
    summary="Put a topic's dead jobs back",
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


@router.post(
    "/dead/{letter_id}/replay",
    auth=requires("manage"),
    response={202: AddedReply, 404: None, 409: None},
    summary="Put one dead job back",
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
