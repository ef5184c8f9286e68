"""Tasks enqueued over HTTP: those alone that the project has opened to callers, each by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from django.http import HttpResponse
from ninja import Router, Schema

from delayed_queue.exceptions import InvalidJob, InvalidMessage
from delayed_queue.http.api.auth import ApiRequest, demand_scope, requires
from delayed_queue.http.api.bodies import JSON, Problem, as_json, read_object, takes_body
from delayed_queue.http.api.docs import ENQUEUING
from delayed_queue.http.api.jobs import answered_once, as_response
from delayed_queue.http.api.replies import invalid
from delayed_queue.http.jobs.idempotency import KeptAnswer
from delayed_queue.http.jobs.jobs import NewCall, call_from
from delayed_queue.queue.hooks import hooks

router = Router(tags=["tasks"])
# Before the name of a task, where a token says what it covers.
SCOPE: Final = "task:"


class TaskReply(Schema):
    """A task that was enqueued."""

    taskId: str
    task: str
    queue: str


@router.post(
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
        detail = "Of this server's tasks only those that say http=True are served."
        raise Problem(403, "task_not_served", detail=detail)
    return as_response(answered_once(request, "POST tasks", fields, partial(_enqueue, call)))


def _enqueue(call: NewCall) -> KeptAnswer:
    at = call.schedule_at
    if at is None and call.delay:
        at = datetime.now(UTC) + timedelta(milliseconds=call.delay)
    try:
        answer: dict[str, Any] = hooks.remote_calls.call(call.name, call.args, call.kwargs, at)  # type: ignore[union-attr] # enqueue() has asked
    except InvalidMessage as error:
        raise invalid(InvalidJob(errors=[("args", str(error))])) from None
    return KeptAnswer(202, as_json(answer))
