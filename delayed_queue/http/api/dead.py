"""Dead jobs: listed by id and by cause, put back, deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from delayed_queue.db.sql import page_of
from delayed_queue.http.api.auth import ApiRequest, allows, demand, reaches
from delayed_queue.http.api.endpoints import Endpoints
from delayed_queue.http.api.jobs import taken
from delayed_queue.http.api.parameters import Id, JobId, Limit, PageQuery
from delayed_queue.http.api.problems import missing
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.adding import find_job
from delayed_queue.http.jobs.dead import (
    MAX_KICK,
    DeadGroup,
    DeadJob,
    dead_groups,
    dead_jobs,
    delete_dead_job,
    find_dead_job,
    kick_job,
    kick_topic,
    replay,
)
from delayed_queue.http.jobs.jobs import AddedJob, Answer, JobState
from delayed_queue.http.jobs.requests import TopicName
from delayed_queue.messages import OfferOutcome

calls: Final = Endpoints("dead jobs")


@dataclass
class KickedReply:
    """The number of dead jobs that were put back."""

    kicked: int


@dataclass
class DeadPage:
    """Dead jobs in id order; ``next`` is the ``after`` of the next page, if there is one."""

    items: list[DeadJob]
    next: int | None


@dataclass
class DeadGroups:
    """Failures by cause, the latest first."""

    items: list[DeadGroup]


class KickQuery(Struct, forbid_unknown_fields=True):
    """The largest number of jobs to put back."""

    limit: Annotated[int, Meta(ge=1, le=MAX_KICK)] = 100


class GroupsQuery(Struct, forbid_unknown_fields=True):
    """The failures of one topic or of all."""

    topic: TopicName | UnsetType = UNSET
    limit: Limit = 20


@calls.post("topics/<topic>/jobs/<path:job_id>/kick", "manage", errors=[404])
def kick(request: ApiRequest, topic: TopicName, job_id: JobId) -> KickedReply:
    """Make a dead job ready, at the start of its ladder; any other job stays as it is."""
    kicked = kick_job(topic, job_id, using=api_settings().DATABASE)
    if kicked is None:
        raise missing()
    return KickedReply(kicked)


@calls.post("topics/<topic>/kick", "manage")
def kick_all(request: ApiRequest, topic: TopicName, query: KickQuery) -> KickedReply:
    """Make dead jobs ready, the oldest deaths first."""
    return KickedReply(kick_topic(topic, query.limit, using=api_settings().DATABASE))


@calls.get("dead", "read")
def list_dead(request: ApiRequest, query: PageQuery) -> DeadPage:
    """List the dead jobs of a topic, or of all that the token covers, in id order."""
    found = dead_jobs(
        _demanded(request, query.topic),
        after=query.after,
        limit=query.limit + 1,
        covers=reaches(request.auth),
        using=api_settings().DATABASE,
    )
    page = page_of(found, query.limit, lambda each: each.id)
    return DeadPage(list(page.items), page.next)


@calls.get("dead/groups", "read")
def list_groups(request: ApiRequest, query: GroupsQuery) -> DeadGroups:
    """List the failures of a topic, or of all that the token covers, by cause."""
    found = dead_groups(
        _demanded(request, query.topic),
        limit=query.limit,
        covers=reaches(request.auth),
        using=api_settings().DATABASE,
    )
    return DeadGroups(found)


def _demanded(request: ApiRequest, topic: str | UnsetType) -> str | None:
    if isinstance(topic, UnsetType):
        return None
    demand(request, "read", topic)
    return topic


@calls.post("dead/<letter_id>/replay", "manage", status=202, errors=[404, 409])
def replay_one(request: ApiRequest, letter_id: Id) -> AddedJob:
    """Make a dead job ready; 409 when a job of its id lives."""
    using = api_settings().DATABASE
    dead = _covered(request, "manage", letter_id, using)
    answer = replay(letter_id, using=using)
    if answer is Answer.MISSING:
        raise missing("dead job")
    if answer is Answer.STALE:
        raise taken()
    job = find_job(dead.topic, dead.job_id, using=using)
    state, run_at = (JobState.READY, None) if job is None else (job.state, job.run_at)
    return AddedJob(dead.job_id, dead.topic, OfferOutcome.CREATED, state, run_at)


@calls.delete("dead/<letter_id>", "delete", errors=[404])
def delete_one(request: ApiRequest, letter_id: Id) -> None:
    """Delete one dead job for good."""
    using = api_settings().DATABASE
    _covered(request, "delete", letter_id, using)
    if not delete_dead_job(letter_id, using=using):
        raise missing("dead job")


def _covered(request: ApiRequest, verb: str, letter_id: int, using: str) -> DeadJob:
    """Return the dead job; one of a topic that the token does not cover is missing."""
    dead = find_dead_job(letter_id, using=using)
    if dead is None or not allows(request, verb, dead.topic):
        raise missing("dead job")
    return dead
