"""Tasks that the project has opened to callers, each by name."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Final

from django.http import HttpResponse
from msgspec import Struct

from delayed_queue.db.clock import database_now
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.http.api.auth import ApiRequest, demand_scope
from delayed_queue.http.api.bodies import JSON, as_json, read_object
from delayed_queue.http.api.endpoints import Endpoints
from delayed_queue.http.api.jobs import ADDS, answered_once
from delayed_queue.http.api.problems import Problem, invalid
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.idempotency import KeptAnswer
from delayed_queue.http.jobs.requests import NOT_BOTH, TaskRequest, call_from
from delayed_queue.messages import from_milliseconds
from delayed_queue.queue.hooks import hooks

calls: Final = Endpoints("tasks")
# Precedes the name of a task in the scopes of a token.
SCOPE: Final = "task:"
NewTaskBody = Annotated[TaskRequest, NOT_BOTH]


class TaskReply(Struct, rename="camel"):
    """A task that was enqueued."""

    task_id: str
    task: str
    queue: str


@calls.post("tasks", "add", accepts={JSON: NewTaskBody}, answer=TaskReply, **ADDS)
def enqueue(request: ApiRequest) -> HttpResponse:
    """Enqueue a task that is open to callers; once the answer is 202 it survives a crash."""
    fields = read_object(request.body)
    call = call_from(fields)
    # Checked first: a caller without the right does not learn which tasks exist.
    demand_scope(request, "add", f"{SCOPE}{call.task}")
    if hooks.remote_calls is None or not hooks.remote_calls.is_open(call.task):
        detail = "The server only accepts tasks with http=True."
        raise Problem(403, "task_not_served", detail=detail)
    return answered_once(request, "POST tasks", fields, partial(_enqueued, call))


def _enqueued(call: TaskRequest) -> KeptAnswer:
    at = None if call.run_at is None else from_milliseconds(call.run_at)
    if at is None and call.delay:
        at = database_now(api_settings().DATABASE) + timedelta(seconds=call.delay)
    args, kwargs = call.args or [], call.kwargs or {}
    try:
        answer: dict[str, Any] = hooks.remote_calls.call(call.task, args, kwargs, at)  # type: ignore[union-attr] # enqueue() has checked
    except InvalidMessage as error:
        raise invalid("body", [("args", str(error))]) from None
    return KeptAnswer(202, as_json(answer))
