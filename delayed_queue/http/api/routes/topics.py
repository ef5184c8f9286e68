"""Topics: list, count, peek, pause, resume."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Query, Router

from delayed_queue.http.api.auth import ApiRequest, reaches, requires
from delayed_queue.http.api.replies import (
    JobReply,
    PauseReply,
    StatsReply,
    TopicName,
    TopicReply,
    job_as_dict,
    reply,
    stats_as_dict,
)
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.catalogue import list_topics
from delayed_queue.http.jobs.inspecting import pause_topic, peek, resume_topic, topic_stats
from delayed_queue.http.jobs.jobs import JobState
from delayed_queue.http.store.topics import TopicRow

router = Router(tags=["topics"])


@router.get("/topics", auth=requires("read"), response=list[TopicReply], summary="List topics")
def topics(request: ApiRequest) -> HttpResponse:
    """List the topics that the token covers, in the order of their names."""
    found = list_topics(using=api_settings().DATABASE)
    is_ours = reaches(request.auth)
    return reply(200, [_as_dict(each) for each in found if is_ours(each.name)])


def _as_dict(topic: TopicRow) -> dict[str, Any]:
    ttr = None if topic.ttr is None else topic.ttr / 1000
    fields = topic._asdict()
    del fields["hosts"]  # of all tokens' jobs
    return {**fields, "ttr": ttr}


@router.get(
    "/topics/{topic}/stats", auth=requires("read"), response=StatsReply, summary="Count jobs"
)
def stats(request: ApiRequest, topic: TopicName) -> HttpResponse:
    """Count a topic's jobs by state, at a bounded cost."""
    return reply(200, stats_as_dict(topic_stats(topic, using=api_settings().DATABASE)))


@router.get(
    "/topics/{topic}/peek", auth=requires("read"), response=list[JobReply], summary="Look ahead"
)
def peek_at(
    request: ApiRequest,
    topic: TopicName,
    state: JobState = JobState.READY,
    count: Annotated[int, Query(ge=1, le=100)] = 1,
) -> HttpResponse:
    """Answer the next jobs of a state, without leasing them."""
    found = peek(topic, state, count, using=api_settings().DATABASE)
    return reply(200, [job_as_dict(each) for each in found])


@router.post("/topics/{topic}/pause", auth=requires("manage"), response=PauseReply, summary="Pause")
def pause(request: ApiRequest, topic: TopicName) -> HttpResponse:
    """Hand out no jobs of the topic, to consumers or urls, until it is resumed."""
    pause_topic(topic, by=request.auth.name, using=api_settings().DATABASE)
    return reply(200, {"isPaused": True})


@router.post(
    "/topics/{topic}/resume", auth=requires("manage"), response=PauseReply, summary="Resume"
)
def resume(request: ApiRequest, topic: TopicName) -> HttpResponse:
    """Hand out jobs again."""
    resume_topic(topic, using=api_settings().DATABASE)
    return reply(200, {"isPaused": False})
