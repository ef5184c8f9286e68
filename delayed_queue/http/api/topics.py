"""Topics: listed, counted, peeked into, paused and resumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta, Struct

from delayed_queue.http.api.auth import ApiRequest, reaches
from delayed_queue.http.api.endpoints import Endpoints
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.catalogue import (
    TopicStats,
    list_topics,
    pause_topic,
    resume_topic,
    topic_stats,
)
from delayed_queue.http.jobs.consuming import peek
from delayed_queue.http.jobs.jobs import Job, JobState
from delayed_queue.http.jobs.requests import TopicName

calls: Final = Endpoints("topics")


@dataclass
class TopicReply:
    """A topic."""

    name: str
    shards: int


@dataclass
class PauseReply:
    """The state of a topic's pause: a paused topic hands out no jobs."""

    is_paused: bool


class PeekQuery(Struct, forbid_unknown_fields=True):
    """The jobs to read."""

    state: JobState = JobState.READY
    count: Annotated[int, Meta(ge=1, le=100)] = 1


@calls.get("topics", "read")
def topics(request: ApiRequest) -> list[TopicReply]:
    """List the topics that the token covers, in the order of their names."""
    found = list_topics(using=api_settings().DATABASE)
    is_ours = reaches(request.auth)
    # Without the hosts, which are of all tokens' jobs.
    return [TopicReply(each.name, each.shards) for each in found if is_ours(each.name)]


@calls.get("topics/<topic>/stats", "read")
def stats(request: ApiRequest, topic: TopicName) -> TopicStats:
    """Count a topic's jobs by state, at a bounded cost."""
    return topic_stats(topic, using=api_settings().DATABASE)


@calls.get("topics/<topic>/peek", "read")
def peek_at(request: ApiRequest, topic: TopicName, query: PeekQuery) -> list[Job]:
    """Return the next jobs of a state, without leasing them."""
    return peek(topic, query.state, query.count, using=api_settings().DATABASE)


@calls.post("topics/<topic>/pause", "manage")
def pause(request: ApiRequest, topic: TopicName) -> PauseReply:
    """Hand out no jobs of the topic, to consumers or urls, until it is resumed."""
    pause_topic(topic, by=request.auth.name, using=api_settings().DATABASE)
    return PauseReply(True)


@calls.post("topics/<topic>/resume", "manage")
def resume(request: ApiRequest, topic: TopicName) -> PauseReply:
    """Hand out jobs again."""
    resume_topic(topic, using=api_settings().DATABASE)
    return PauseReply(False)
