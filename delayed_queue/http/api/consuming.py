"""Pulling jobs: pop, finish, release, touch, bury."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import Field

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.http.api.auth import ApiRequest, requires
from delayed_queue.http.api.building import in_thread
from delayed_queue.http.api.replies import (
    JobId,
    Lease,
    PoppedReply,
    TopicName,
    invalid_query,
    nothing,
    reply,
    settled,
)
from delayed_queue.http.api.waiting import Wish, waiting_pops
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.consuming import (
    bury_job,
    finish_job,
    give_back,
    kinds_at_hand,
    kinds_to_pop,
    pop_jobs,
    release_job,
    seconds_to_next_job,
    touch_job,
)
from delayed_queue.http.jobs.jobs import MAX_DELAY, MAX_TTR, PoppedJob
from delayed_queue.http.jobs.kinds import MAX_SHARDS

router = Router(tags=["consuming"])
PATH = "/topics/{topic}/jobs/{path:job_id}"
Seconds = Annotated[
    float | None, Field(ge=0, le=MAX_DELAY.total_seconds(), allow_inf_nan=False, strict=True)
]
Ttr = Annotated[float | None, Query(ge=1, le=MAX_TTR.total_seconds(), allow_inf_nan=False)]
REFUSALS: dict[int, Any] = {204: None, 404: None, 409: None}


class Release(Lease):
    """The lease, and the seconds until the job is due again; null is as its ladder says."""

    delay: Seconds = None


@router.post(
    "/topics/{topic}/pop",
    auth=requires("consume"),
    response={200: list[PoppedReply], 204: None},
    summary="Lease due jobs",
)
async def pop(
    request: ApiRequest,
    topic: TopicName,
    count: Annotated[int, Query(ge=1), Field(json_schema_extra={"maximum": "API.POP_COUNT"})] = 1,
    timeout: Annotated[
        float,
        Query(ge=0, allow_inf_nan=False),
        Field(json_schema_extra={"maximum": "API.POP_TIMEOUT"}),
    ] = 0,
    ttr: Ttr = None,
    shard: Annotated[int | None, Query(ge=0, lt=MAX_SHARDS)] = None,
) -> HttpResponse:
    """Lease due jobs without a url, waiting for the first one as long as asked for.

    204 when none fell due. Who does not finish a job before ``expiresAt`` loses it to another.
    """
    settings = api_settings()
    _check_limit("count", count, settings.POP_COUNT)
    _check_limit("timeout", timeout, settings.POP_TIMEOUT.total_seconds())
    using = settings.DATABASE
    kinds = await _kinds(topic, shard, using)
    lease = None if ttr is None else timedelta(seconds=ttr)
    wish = Wish(
        topic if shard is None else f"{topic}#{shard}",
        kinds,
        partial(pop_jobs, topic, count, ttr=lease, shard=shard, using=using),
        partial(seconds_to_next_job, topic, kinds, using=using),
        partial(give_back, topic, using=using),
        using,
    )
    jobs = await waiting_pops.wait_for(request, wish, timeout)
    return reply(200, [_as_dict(each) for each in jobs]) if jobs else nothing()


async def _kinds(topic: str, shard: int | None, using: str) -> list[str]:
    try:
        kinds = kinds_at_hand(topic, shard=shard, using=using)
        if kinds is None:
            kinds = await in_thread(kinds_to_pop, topic, shard=shard, using=using)
    except InvalidMessage as error:
        raise invalid_query("shard", str(error)) from None
    return kinds


def _check_limit(name: str, value: float, most: float) -> None:
    if value > most:
        raise invalid_query(name, f"It is at most {most:g}.")


def _as_dict(job: PoppedJob) -> dict[str, Any]:
    return {
        "jobId": job.job_id, "body": job.body, "attempt": job.attempt,
        "group": job.group, "leaseToken": job.lease_token, "expiresAt": job.expires_at,
    }  # fmt: skip


@router.post(f"{PATH}/finish", auth=requires("consume"), response=REFUSALS, summary="Finish a job")
def finish(request: ApiRequest, topic: TopicName, job_id: JobId, lease: Lease) -> HttpResponse:
    """Delete a job that is done."""
    using = api_settings().DATABASE
    return settled(finish_job(topic, job_id, lease.leaseToken, using=using))


@router.post(
    f"{PATH}/release", auth=requires("consume"), response=REFUSALS, summary="Release a job"
)
def release(request: ApiRequest, topic: TopicName, job_id: JobId, lease: Release) -> HttpResponse:
    """Let the attempt have failed: the job is due after ``delay``, or else by its ladder.

    With the ladder used up it becomes a dead job, whatever the delay.
    """
    delay = None if lease.delay is None else timedelta(seconds=lease.delay)
    using = api_settings().DATABASE
    return settled(release_job(topic, job_id, lease.leaseToken, delay=delay, using=using))


@router.post(
    f"{PATH}/touch", auth=requires("consume"), response=REFUSALS, summary="Prolong a lease"
)
def touch(request: ApiRequest, topic: TopicName, job_id: JobId, lease: Lease) -> HttpResponse:
    """Prolong the lease to its ttr from now."""
    using = api_settings().DATABASE
    return settled(touch_job(topic, job_id, lease.leaseToken, using=using))


@router.post(
    f"{PATH}/bury", auth=requires("consume"), response=REFUSALS, summary="Dead-letter a job"
)
def bury(request: ApiRequest, topic: TopicName, job_id: JobId, lease: Lease) -> HttpResponse:
    """Make a job a dead one: it is kept, and not tried again unless it is kicked."""
    using = api_settings().DATABASE
    return settled(bury_job(topic, job_id, lease.leaseToken, using=using))
