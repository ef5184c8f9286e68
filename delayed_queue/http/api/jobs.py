"""Jobs: added one by one or in bulk, read and deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import attrgetter
from typing import Annotated, Any, Final

from django.http import HttpResponse
from msgspec import UNSET, Meta, Struct, UnsetType

from delayed_queue.codecs import encode
from delayed_queue.db.gathering import LoopGathering, LoopLocal
from delayed_queue.db.resilience import Tries
from delayed_queue.exceptions import CallbacksOff, InvalidMessage
from delayed_queue.http.api.auth import ApiRequest, allows, charge, demand
from delayed_queue.http.api.bodies import (
    JSON,
    NDJSON,
    as_json,
    check_object,
    lines_of,
    parse,
    read_object,
    reply,
)
from delayed_queue.http.api.endpoints import Endpoints
from delayed_queue.http.api.parameters import JobId
from delayed_queue.http.api.pool import in_event_loop, in_thread
from delayed_queue.http.api.problems import (
    MEDIA_TYPE,
    Problem,
    ProblemReply,
    invalid,
    missing,
    problem_of,
)
from delayed_queue.http.callbacks.guard import check_url
from delayed_queue.http.conf import MAX_KEY, api_settings
from delayed_queue.http.jobs.adding import (
    BATCH,
    Place,
    add_batch,
    add_job,
    add_jobs,
    delete_job,
    find_job,
    write_together,
)
from delayed_queue.http.jobs.batches import topic_of_batch
from delayed_queue.http.jobs.idempotency import KeptAnswer, Refusal, once
from delayed_queue.http.jobs.jobs import CODEC, AddedJob, IfExists, Job, NewJob
from delayed_queue.http.jobs.kinds import check_callbacks
from delayed_queue.http.jobs.requests import NOT_BOTH, JobRequest, TopicName, job_from
from delayed_queue.http.reading import MAX_GUESSES

# Largest body, in bytes, of a job that shares a transaction with others.
MAX_BYTES: Final = 16 * 1024
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
# Not `request.headers`, which builds a table of all of them.
KEY_IN_META: Final = "HTTP_" + IDEMPOTENCY_KEY.upper().replace("-", "_")
KEY_HEADER: Final = {
    "in": "header",
    "name": IDEMPOTENCY_KEY,
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[ -+\\--~]+$"},
    "description": "A repeated request with the same key gets the first answer.",
}
# Options of the endpoints that add one job or task.
ADDS: Final[dict[str, Any]] = {"status": 202, "errors": [409, 422], "headers": [KEY_HEADER]}
_EXPIRY: Final = {"expiresAt", "expiresIn"}
NewJobBody = Annotated[JobRequest, NOT_BOTH]
MANY_JOBS: Final = Meta(extra_json_schema={"maxItems": "API.BULK_ITEMS"})


class AddQuery(Struct, rename="camel", forbid_unknown_fields=True):
    """How to treat a job whose id its topic has already."""

    if_exists: IfExists = IfExists.FAIL


@dataclass
class BulkItem:
    """The outcome of one job of a bulk: the job, or a problem."""

    status: int
    job: AddedJob | UnsetType = UNSET
    problem: ProblemReply | UnsetType = UNSET


@dataclass
class BulkReply:
    """The outcome of each job of a bulk, in the order in which they were sent."""

    items: list[BulkItem]


calls: Final = Endpoints("jobs")
# Its route matches all longer paths, so these come last.
one_job: Final = Endpoints("jobs")


@calls.post("jobs", "add", accepts={JSON: NewJobBody}, answer=AddedJob, **ADDS)
async def add(request: ApiRequest, query: AddQuery) -> HttpResponse:
    """Store a job; once the answer is 202 it survives a crash of the server."""
    fields = read_object(request.body)
    read_job = partial(job_of, fields, partial(demand, request, "add"))
    # The expiry may be compared with the database's clock.
    job = await in_thread(read_job) if _EXPIRY & fields.keys() else read_job()
    if KEY_IN_META in request.META or job.batch is not None:
        work = partial(_add_now, request, job, query.if_exists)
        # As read, not as sent: blanks and the order of names make no other request.
        sent = [fields, query.if_exists]
        return await in_thread(answered_once, request, "POST jobs", sent, work)
    return as_response(answer_of(await store(job, query.if_exists)))


def job_of(
    fields: dict[str, Any], demand_topic: Callable[[str], None], *, guesses: int = MAX_GUESSES
) -> NewJob:
    job = job_from(fields, check_url=check_url, guesses=guesses)
    demand_topic(job.topic)
    check_callbacks([job.way])
    return job


def _add_now(request: ApiRequest, job: NewJob, if_exists: IfExists) -> KeptAnswer:
    if job.batch is not None and not may_join(request, job.batch):
        raise _no_batch()
    return answer_of(add_job(job, if_exists=if_exists, using=api_settings().DATABASE))


def may_join(request: ApiRequest, batch: int) -> bool:
    """Return whether the batch exists, and the token covers its topic."""
    topic = topic_of_batch(batch, using=api_settings().DATABASE)
    return topic is not None and allows(request, "add", topic)


def _no_batch() -> Problem:
    return invalid("body", [("batch", "There is no such batch, or it has finished.")])


async def store(job: NewJob, if_exists: IfExists) -> AddedJob:
    """Add the job; on an event loop, in one transaction with those that arrive meanwhile."""
    using = api_settings().DATABASE
    if not in_event_loop() or len(job.payload) > MAX_BYTES:
        return await in_thread(add_job, job, if_exists=if_exists, using=using)
    return await add_together(job, (using, job.topic, if_exists))


async def add_together(job: NewJob, place: Place) -> AddedJob:
    """Store the job in one transaction with others; also when the caller is cancelled."""
    found = await _gathered.of(None).ask(place, job)
    if isinstance(found, AddedJob):
        return found
    using, _, if_exists = place
    (added,) = await in_thread(add_batch, [job], if_exists, using, found)
    return added


async def _write_together(place: Place, jobs: list[NewJob]) -> list[AddedJob | Tries | None]:
    return await in_thread(write_together, place, jobs)


Gathering = LoopGathering[Place, NewJob, AddedJob | Tries | None]
_gathered: Final[LoopLocal[None, Gathering]] = LoopLocal(
    lambda _: LoopGathering(_write_together, most=BATCH, name=attrgetter("job_id"))
)


def answer_of(added: AddedJob) -> KeptAnswer:
    if added.outcome is None:
        return KeptAnswer(409, _refusal(added).as_json().decode())
    return KeptAnswer(202, as_json(_added(added)))


def _added(added: AddedJob) -> dict[str, Any]:
    return {
        "jobId": added.job_id, "topic": added.topic, "state": added.state, "runAt": added.run_at,
    }  # fmt: skip


def _refusal(added: AddedJob) -> Problem:
    if added.is_batch_closed:
        detail = "The batch is closed or has finished, or the lease is lost."
        return Problem(409, "batch_closed", detail=detail)
    return taken()


def taken() -> Problem:
    return Problem(
        409,
        "job_already_exists",
        detail="The topic already has a job with this id; it may be dead.",
    )


def answered_once(
    request: ApiRequest, call: str, sent: Any, work: Callable[[], KeptAnswer]
) -> HttpResponse:
    """Return the answer; for a repeated idempotency key, the one that it had before."""
    key = request.META.get(KEY_IN_META)
    if key is None:
        return as_response(work())
    scope = f"{request.auth.token_id or 'public'} {call}"
    try:
        found = once(scope, key, encode(CODEC, sent), work, using=api_settings().DATABASE)
    except InvalidMessage as error:
        raise invalid("header", [(IDEMPOTENCY_KEY, str(error))]) from None
    if found is Refusal.OTHER_REQUEST:
        raise Problem(
            422, "idempotency_key_reused", detail="The key was used for a different request."
        )
    if found is Refusal.IN_PROGRESS:
        raise Problem(
            409, "idempotency_key_in_use", detail="A request with this key is in progress."
        )
    return as_response(found)


def as_response(answer: KeptAnswer) -> HttpResponse:
    media_type = JSON if answer.status < 400 else MEDIA_TYPE
    headers = {"Idempotency-Replayed": "true"} if answer.is_replay else {}
    return HttpResponse(answer.body, status=answer.status, content_type=media_type, headers=headers)


@calls.post(
    "jobs/bulk",
    "add",
    status=202,
    accepts={JSON: Annotated[list[NewJobBody], MANY_JOBS], NDJSON: str},
    limit=lambda settings: settings.BULK_BYTES,
    answer=BulkReply,
)
def add_bulk(request: ApiRequest, query: AddQuery) -> HttpResponse:
    """Store jobs, each for itself: a refused one does not affect the others.

    An item of the answer has a status and either a job or a problem. After a lost answer, repeat
    the request as it was, with ``ifExists=ignore``.
    """
    if KEY_IN_META in request.META:
        message = "A bulk takes no Idempotency-Key. To repeat one, use ifExists=ignore."
        raise invalid("header", [(IDEMPOTENCY_KEY, message)])
    items = _items(request)
    charge(request, len(items))
    # Cached, because most jobs of a bulk are of one topic.
    demand_topic = lru_cache(partial(demand, request, "add"))
    may_join_batch = lru_cache(partial(may_join, request))
    results = [_read_item(each, demand_topic, may_join_batch) for each in items]
    jobs = [each for each in results if isinstance(each, NewJob)]
    added = iter(add_jobs(jobs, if_exists=query.if_exists, using=api_settings().DATABASE))
    answers = [
        _result(next(added)) if isinstance(each, NewJob) else _refused(each) for each in results
    ]
    return reply(202, {"items": answers})


def _items(request: ApiRequest) -> list[Any]:
    """Return the parsed items of a JSON array, or the unparsed lines of NDJSON."""
    limits = api_settings()
    if request.content_type == NDJSON:
        return lines_of(request.body, limits.BULK_ITEMS)
    # The array is one more level of nesting.
    items = parse(request.body, limits.DEPTH + 1, most=limits.BULK_ITEMS)
    if not isinstance(items, list):
        raise Problem(400, "invalid_request", "Invalid request", "A bulk is an array of jobs.")
    return items


def _read_item(
    item: Any, demand_topic: Callable[[str], None], may_join_batch: Callable[[int], bool]
) -> NewJob | Problem:
    try:
        fields = read_object(item) if isinstance(item, bytes) else check_object(item)
        job = job_of(fields, demand_topic, guesses=0)
    except (Problem, InvalidMessage, CallbacksOff) as error:
        problem = problem_of(error)
        assert problem is not None  # noqa: S101 # these have one
        return problem
    if job.batch is not None and not may_join_batch(job.batch):
        return _no_batch()
    limit = api_settings().BODY_BYTES
    if len(job.payload) > limit:
        return Problem(413, "body_too_large", detail=f"A job's body has at most {limit} bytes.")
    return job


def _result(added: AddedJob) -> dict[str, Any]:
    if added.outcome is None:
        return _refused(_refusal(added))
    return {"status": 202, "job": _added(added)}


def _refused(problem: Problem) -> dict[str, Any]:
    return {"status": problem.status, "problem": problem.as_dict()}


@one_job.get("topics/<topic>/jobs/<path:job_id>", "read", errors=[404])
def read(request: ApiRequest, topic: TopicName, job_id: JobId) -> Job:
    """Return the state of a job, a dead one too, without leasing it."""
    job = find_job(topic, job_id, using=api_settings().DATABASE)
    if job is None:
        raise missing()
    return job


@one_job.delete("topics/<topic>/jobs/<path:job_id>", "delete", errors=[404])
def delete(request: ApiRequest, topic: TopicName, job_id: JobId) -> None:
    """Delete a job in any state: after the answer it is not delivered.

    A running attempt may finish; no retry follows.
    """
    if not delete_job(topic, job_id, using=api_settings().DATABASE):
        raise missing()
