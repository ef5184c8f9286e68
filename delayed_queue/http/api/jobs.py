"""Jobs: added, read and deleted; their topics: listed, counted, looked at, paused; and tasks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache, partial
from typing import Annotated, Any, Final

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema

from delayed_queue.codecs import encode
from delayed_queue.db.clock import database_now
from delayed_queue.db.gathering import LoopGathering, LoopLocal
from delayed_queue.exceptions import CallbacksOff, InvalidJob, InvalidMessage
from delayed_queue.http.api.auth import ApiRequest, charge, demand, demand_scope, reaches, requires
from delayed_queue.http.api.bodies import (
    JSON,
    MEDIA_TYPE,
    BodyRule,
    Problem,
    admit,
    as_json,
    callbacks_off,
    check_object,
    lines_of,
    parse,
    read_object,
    takes_body,
)
from delayed_queue.http.api.building import in_thread
from delayed_queue.http.api.docs import ADDING, BULK, ENQUEUING, IDEMPOTENCY_KEY
from delayed_queue.http.api.replies import (
    AddedReply,
    JobId,
    JobReply,
    PauseReply,
    StatsReply,
    TopicName,
    TopicReply,
    invalid,
    job_as_dict,
    missing,
    nothing,
    reply,
    stats_as_dict,
    taken,
)
from delayed_queue.http.callbacks.guard import check_url
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.adding import (
    BATCH,
    Place,
    Written,
    add_job,
    add_jobs,
    delete_job,
    find_job,
    id_of,
    needs_database,
    settle,
    write_together,
)
from delayed_queue.http.jobs.catalogue import list_topics, pause_topic, resume_topic, topic_stats
from delayed_queue.http.jobs.consuming import peek
from delayed_queue.http.jobs.idempotency import KeptAnswer, Refusal, once
from delayed_queue.http.jobs.jobs import (
    CODEC,
    MAX_GUESSES,
    AddedJob,
    IfExists,
    JobState,
    NewCall,
    NewJob,
    call_from,
    job_from,
)
from delayed_queue.http.jobs.kinds import check_callbacks
from delayed_queue.http.store.topics import TopicRow
from delayed_queue.queue.hooks import hooks

router = Router(tags=["jobs"])
# Its path takes in all that is longer: of all routes it is the last.
one_job = Router(tags=["jobs"])
NDJSON: Final = "application/x-ndjson"
_ADDS: Final = BodyRule(lambda settings: settings.BODY_BYTES, (JSON,))
# What a larger body takes to be read and checked, other requests of an event loop would wait for.
MAX_BYTES: Final = 16 * 1024
KEY_IN_META: Final = "HTTP_" + IDEMPOTENCY_KEY.upper().replace("-", "_")
Exists = Annotated[IfExists, Query(alias="ifExists")]


class BulkReply(Schema):
    """The outcome of each job of a bulk, in the order in which they were sent."""

    items: list[dict[str, Any]]


@router.post(
    "/jobs",
    auth=requires("add"),
    response={202: AddedReply, 409: None, 422: None},
    openapi_extra=ADDING,
    summary="Add a job",
)
@takes_body(_ADDS.limit, *_ADDS.types)
def add(request: ApiRequest, if_exists: Exists = IfExists.FAIL) -> HttpResponse:
    """Store a job; once the answer is 202 it survives a crash of the server."""
    fields = read_object(request.body)
    job = job_of(fields, partial(demand, request, "add"))
    # As read, not as sent: white space and the order of names make no other request.
    return as_response(
        answered_once(request, "POST jobs", [fields, if_exists], partial(_add, job, if_exists))
    )


def job_of(
    fields: dict[str, Any], demand_topic: Callable[[str], None], *, guesses: int = MAX_GUESSES
) -> NewJob:
    try:
        job = job_from(fields, check_url=check_url, guesses=guesses)
    except InvalidJob as error:
        raise invalid(error) from None
    demand_topic(job.topic)
    check_callbacks([job.way])
    return job


def _add(job: NewJob, if_exists: IfExists) -> KeptAnswer:
    return answer_of(add_job(job, if_exists=if_exists, using=api_settings().DATABASE))


def answer_of(added: AddedJob) -> KeptAnswer:
    if added.outcome is None:
        return KeptAnswer(409, taken().as_json().decode())
    return KeptAnswer(202, as_json(_as_dict(added)))


def answered_once(
    request: ApiRequest, call: str, sent: Any, answer: Callable[[], KeptAnswer]
) -> KeptAnswer:
    """Return the answer, or of a request with an idempotency key the one it had before."""
    # Not `request.headers`, which makes a table of all of them first.
    key = request.META.get(KEY_IN_META)
    if key is None:
        return answer()
    scope = f"{request.auth.token_id or 'public'} {call}"
    try:
        found = once(scope, key, encode(CODEC, sent), answer, using=api_settings().DATABASE)
    except InvalidMessage as error:
        errors = [{"in": "header", "path": IDEMPOTENCY_KEY, "message": str(error)}]
        raise Problem(400, "invalid_request", "Invalid request", errors=errors) from None
    if found is Refusal.OTHER_REQUEST:
        raise Problem(
            422, "idempotency_key_reused", detail="The key was used for a different request."
        )
    if found is Refusal.IN_PROGRESS:
        raise Problem(
            409, "idempotency_key_in_use", detail="A request with this key is in progress."
        )
    return found


def as_response(answer: KeptAnswer) -> HttpResponse:
    media_type = JSON if answer.status < 400 else MEDIA_TYPE
    headers = {"Idempotency-Replayed": "true"} if answer.is_replay else {}
    return HttpResponse(answer.body, status=answer.status, content_type=media_type, headers=headers)


# Most requests
_MAY_ADD: Final = requires("add")
_QUERIES: Final = {"": IfExists.FAIL, **{f"ifExists={each}": each for each in IfExists}}


def is_plain(request: HttpRequest) -> bool:
    """Return whether ``add_plainly`` can do what ``add`` does."""
    # An answer that is kept under a key is written with the job, in a transaction of its own.
    meta = request.META
    is_asked = request.method == "POST" and KEY_IN_META not in meta
    return is_asked and meta.get("QUERY_STRING", "") in _QUERIES


def is_small(request: HttpRequest) -> bool:
    """Return whether ``add_in_loop`` can do it, and hold up no other request."""
    size = request.META.get("CONTENT_LENGTH") or ""
    return is_plain(request) and size.isdecimal() and len(size) < 9 and int(size) <= MAX_BYTES


def add_plainly(request: Any) -> HttpResponse:
    request.auth = _MAY_ADD.let_in(request)
    admit(request, _ADDS)
    job = job_of(read_object(request.body), partial(demand, request, "add"))
    return as_response(_add(job, _if_exists(request)))


async def add_in_loop(request: Any) -> HttpResponse:
    """Read and check here, which takes less than changing to a thread; write in a thread.

    Together with all that come while another is written.
    """
    request.auth = await _MAY_ADD.let_in_from_loop(request)
    admit(request, _ADDS)
    job = job_of(read_object(request.body), partial(demand, request, "add"))
    place = (api_settings().DATABASE, job.topic, _if_exists(request))
    return as_response(answer_of(await add_together(job, place)))


def _if_exists(request: HttpRequest) -> IfExists:
    return _QUERIES[request.META.get("QUERY_STRING", "")]


def _gathering(key: None) -> LoopGathering[Place, NewJob, Written]:
    return LoopGathering(_write_together, most=BATCH, name=id_of)


async def _write_together(place: Place, jobs: list[NewJob]) -> list[Written]:
    return await in_thread(write_together, place, jobs)


_gathered: Final[LoopLocal[None, LoopGathering[Place, NewJob, Written]]] = LoopLocal(_gathering)


async def add_together(job: NewJob, place: Place) -> AddedJob:
    """Store the job in one transaction with others; also when the caller is cancelled."""
    written = await _gathered.of(None).ask(place, job)
    if needs_database(written, place[-1]):
        return await in_thread(settle, job, written, place)
    return settle(job, written, place)


def _as_dict(added: AddedJob) -> dict[str, Any]:
    return {
        "jobId": added.job_id, "topic": added.topic, "state": added.state, "runAt": added.run_at
    }  # fmt: skip


@router.post(
    "/jobs/bulk",
    auth=requires("add"),
    response={202: BulkReply},
    openapi_extra=BULK,
    summary="Add many jobs",
)
@takes_body(lambda settings: settings.BULK_BYTES, JSON, NDJSON)
def add_bulk(request: ApiRequest, if_exists: Exists = IfExists.FAIL) -> HttpResponse:
    """Store jobs, each for itself: one that is refused does not hold up the others.

    An item of the answer has a status and either a job or a problem. Repeat it as it was after
    a lost answer, with ``ifExists=ignore``.
    """
    if KEY_IN_META in request.META:
        errors = [{"in": "header", "path": IDEMPOTENCY_KEY, "message":
            "A bulk takes no Idempotency-Key. To repeat one, use ifExists=ignore."}]  # fmt: skip
        raise Problem(400, "invalid_request", "Invalid request", errors=errors)
    items = _items(request)
    charge(request, len(items))
    # Asked once for each topic: most of a bulk are of one.
    demand_topic = lru_cache(partial(demand, request, "add"))
    results = [_read(each, demand_topic) for each in items]
    jobs = [each for each in results if isinstance(each, NewJob)]
    added = iter(add_jobs(jobs, if_exists=if_exists, using=api_settings().DATABASE))
    answers = [
        _result(next(added)) if isinstance(each, NewJob) else _refused(each) for each in results
    ]
    return reply(202, {"items": answers})


def _items(request: ApiRequest) -> list[Any]:
    """Return the parsed items of a JSON array, or the lines of NDJSON as they are."""
    limits = api_settings()
    if request.content_type == NDJSON:
        return lines_of(request.body, limits.BULK_ITEMS)
    # The array is a level of nesting more.
    items = parse(request.body, limits.DEPTH + 1, most=limits.BULK_ITEMS)
    if not isinstance(items, list):
        raise Problem(400, "invalid_request", "Invalid request", "A bulk is an array of jobs.")
    return items


def _read(item: Any, demand_topic: Callable[[str], None]) -> NewJob | Problem:
    try:
        fields = read_object(item) if isinstance(item, bytes) else check_object(item)
        job = job_of(fields, demand_topic, guesses=0)
    except Problem as problem:
        return problem
    except CallbacksOff as error:
        return callbacks_off(error)
    limit = api_settings().BODY_BYTES
    if len(job.payload) > limit:
        return Problem(413, "body_too_large", detail=f"A job's body has at most {limit} bytes.")
    return job


def _result(added: AddedJob) -> dict[str, Any]:
    return _refused(taken()) if added.outcome is None else {"status": 202, "job": _as_dict(added)}


def _refused(problem: Problem) -> dict[str, Any]:
    return {"status": problem.status, "problem": problem.as_dict()}


@one_job.get(
    "/topics/{topic}/jobs/{path:job_id}",
    auth=requires("read"),
    response={200: JobReply, 404: None},
    summary="Read a job",
)
def read(request: ApiRequest, topic: TopicName, job_id: JobId) -> HttpResponse:
    """Answer where a job stands, a dead one too, without leasing it."""
    job = find_job(topic, job_id, using=api_settings().DATABASE)
    if job is None:
        raise missing()
    return reply(200, job_as_dict(job))


@one_job.delete(
    "/topics/{topic}/jobs/{path:job_id}",
    auth=requires("delete"),
    response={204: None, 404: None},
    summary="Delete a job",
)
def delete(request: ApiRequest, topic: TopicName, job_id: JobId) -> HttpResponse:
    """Delete a job whatever its state: after the answer it is not delivered.

    An attempt under way may end; no other follows.
    """
    if not delete_job(topic, job_id, using=api_settings().DATABASE):
        raise missing()
    return nothing()


@router.get(
    "/topics",
    auth=requires("read"),
    response=list[TopicReply],
    tags=["topics"],
    summary="List topics",
)
def topics(request: ApiRequest) -> HttpResponse:
    """List the topics that the token covers, in the order of their names."""
    found = list_topics(using=api_settings().DATABASE)
    is_ours = reaches(request.auth)
    return reply(200, [_topic_as_dict(each) for each in found if is_ours(each.name)])


def _topic_as_dict(topic: TopicRow) -> dict[str, Any]:
    ttr = None if topic.ttr is None else topic.ttr / 1000
    fields = topic._asdict()
    del fields["hosts"]  # of all tokens' jobs
    return {**fields, "ttr": ttr}


@router.get(
    "/topics/{topic}/stats",
    auth=requires("read"),
    response=StatsReply,
    tags=["topics"],
    summary="Count jobs",
)
def stats(request: ApiRequest, topic: TopicName) -> HttpResponse:
    """Count a topic's jobs by state, at a bounded cost."""
    return reply(200, stats_as_dict(topic_stats(topic, using=api_settings().DATABASE)))


@router.get(
    "/topics/{topic}/peek",
    auth=requires("read"),
    response=list[JobReply],
    tags=["topics"],
    summary="Look ahead",
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


@router.post(
    "/topics/{topic}/pause",
    auth=requires("manage"),
    response=PauseReply,
    tags=["topics"],
    summary="Pause",
)
def pause(request: ApiRequest, topic: TopicName) -> HttpResponse:
    """Hand out no jobs of the topic, to consumers or urls, until it is resumed."""
    pause_topic(topic, by=request.auth.name, using=api_settings().DATABASE)
    return reply(200, {"isPaused": True})


@router.post(
    "/topics/{topic}/resume",
    auth=requires("manage"),
    response=PauseReply,
    tags=["topics"],
    summary="Resume",
)
def resume(request: ApiRequest, topic: TopicName) -> HttpResponse:
    """Hand out jobs again."""
    resume_topic(topic, using=api_settings().DATABASE)
    return reply(200, {"isPaused": False})


# Tasks: those alone that the project has opened to callers, each by name

tasks: Final = Router(tags=["tasks"])
# Before the name of a task, where a token says what it covers.
SCOPE: Final = "task:"


class TaskReply(Schema):
    """A task that was enqueued."""

    taskId: str
    task: str
    queue: str


@tasks.post(
    "/tasks",
    auth=requires("add"),
    response={202: TaskReply, 409: None, 422: None},
    openapi_extra=ENQUEUING,
    summary="Enqueue a task",
)
@takes_body(lambda settings: settings.BODY_BYTES, JSON)
def enqueue(request: ApiRequest) -> HttpResponse:
    """Enqueue a task that is open to callers; once the answer is 202 it survives a crash."""
    fields = read_object(request.body)
    try:
        call = call_from(fields)
    except InvalidJob as error:
        raise invalid(error) from None
    # First: who may not does not learn which tasks there are.
    demand_scope(request, "add", f"{SCOPE}{call.name}")
    if hooks.remote_calls is None or not hooks.remote_calls.is_open(call.name):
        detail = "The server only accepts tasks with http=True."
        raise Problem(403, "task_not_served", detail=detail)
    return as_response(answered_once(request, "POST tasks", fields, partial(_enqueued, call)))


def _enqueued(call: NewCall) -> KeptAnswer:
    at = call.schedule_at
    if at is None and call.delay:
        at = database_now(api_settings().DATABASE) + timedelta(milliseconds=call.delay)
    try:
        answer: dict[str, Any] = hooks.remote_calls.call(call.name, call.args, call.kwargs, at)  # type: ignore[union-attr] # enqueue() has asked
    except InvalidMessage as error:
        raise invalid(InvalidJob(errors=[("args", str(error))])) from None
    return KeptAnswer(202, as_json(answer))
