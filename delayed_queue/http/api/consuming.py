"""Consuming jobs: pop, finish, release, touch, bury."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.http.api.auth import ApiRequest
from delayed_queue.http.api.endpoints import Endpoints
from delayed_queue.http.api.parameters import JobId
from delayed_queue.http.api.problems import Problem, invalid, missing
from delayed_queue.http.api.waiting import waiting_pops
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.consuming import Pop, bury_job, finish_job, release_job, touch_job
from delayed_queue.http.jobs.jobs import Answer, PoppedJob
from delayed_queue.http.jobs.kinds import MAX_SHARDS
from delayed_queue.http.jobs.requests import Delay, TopicName, Ttr, Wait

calls: Final = Endpoints("consuming")
JOB: Final = "topics/<topic>/jobs/<path:job_id>"


_POP_TIMEOUT: Final = Meta(
    description="Default: 0.", extra_json_schema={"maximum": "API.POP_TIMEOUT"}
)


class PopQuery(Struct, forbid_unknown_fields=True):
    """Maximum number of jobs, maximum wait for the first one, and duration of the lease."""

    count: Annotated[int, Meta(ge=1, extra_json_schema={"maximum": "API.POP_COUNT"})] = 1
    timeout: Annotated[Wait, _POP_TIMEOUT] | UnsetType = UNSET
    ttr: Ttr | UnsetType = UNSET
    shard: Annotated[int, Meta(ge=0, lt=MAX_SHARDS)] | UnsetType = UNSET


class Lease(Struct, rename="camel", forbid_unknown_fields=True):
    """The proof that a consumer holds a job."""

    lease_token: Annotated[str, Meta(min_length=1, max_length=36)]


class Release(Lease, rename="camel", forbid_unknown_fields=True):
    """The lease, and the time until the job is due again; null follows its ladder."""

    delay: Delay | None = None


@calls.post("topics/<topic>/pop", "consume", waits=True)
async def pop(request: ApiRequest, topic: TopicName, query: PopQuery) -> list[PoppedJob] | None:
    """Lease due jobs without a url, waiting up to ``timeout`` for the first one.

    204 when none fell due. A job that is not finished before ``leasedUntil`` goes to another
    consumer.
    """
    settings = api_settings()
    _check_limit("count", query.count, settings.POP_COUNT)
    timeout = query.timeout or 0.0
    _check_limit("timeout", timeout, settings.POP_TIMEOUT.total_seconds())
    ttr = timedelta(seconds=query.ttr) if query.ttr else None
    shard = None if query.shard is UNSET else query.shard
    wanted = Pop(topic, query.count, ttr, shard, settings.DATABASE)
    try:
        return await waiting_pops.wait_for(request, wanted, timeout) or None
    except InvalidMessage as error:
        raise invalid("query", [("shard", str(error))]) from None


def _check_limit(name: str, value: float, most: float) -> None:
    if value > most:
        raise invalid("query", [(name, f"It is at most {most:g}.")])


@calls.post(f"{JOB}/finish", "consume", errors=[404, 409])
def finish(request: ApiRequest, topic: TopicName, job_id: JobId, body: Lease) -> None:
    """Delete a job that is done."""
    _check(finish_job(topic, job_id, body.lease_token, using=api_settings().DATABASE))


@calls.post(f"{JOB}/release", "consume", errors=[404, 409])
def release(request: ApiRequest, topic: TopicName, job_id: JobId, body: Release) -> None:
    """Count the attempt as failed: the job is due after ``delay``, or else by its ladder.

    After the last step of its ladder it becomes a dead job, with any delay.
    """
    delay = None if body.delay is None else timedelta(seconds=body.delay)
    using = api_settings().DATABASE
    _check(release_job(topic, job_id, body.lease_token, delay=delay, using=using))


@calls.post(f"{JOB}/touch", "consume", errors=[404, 409])
def touch(request: ApiRequest, topic: TopicName, job_id: JobId, body: Lease) -> None:
    """Extend the lease to its ttr from now."""
    _check(touch_job(topic, job_id, body.lease_token, using=api_settings().DATABASE))


@calls.post(f"{JOB}/bury", "consume", errors=[404, 409])
def bury(request: ApiRequest, topic: TopicName, job_id: JobId, body: Lease) -> None:
    """Make it a dead job: it is kept, and not retried unless it is kicked."""
    _check(bury_job(topic, job_id, body.lease_token, using=api_settings().DATABASE))


def _check(answer: Answer) -> None:
    """Raise Problem 404 or 409 unless the lease held the job."""
    if answer is Answer.MISSING:
        raise missing()
    if answer is Answer.STALE:
        raise Problem(409, "stale_lease", detail="The lease was lost.")
