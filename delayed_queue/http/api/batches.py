"""Batches: opened and closed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final

from django.http import HttpResponse
from msgspec import Meta, Struct

from delayed_queue.exceptions import InvalidJob
from delayed_queue.http.api.auth import ApiRequest, demand
from delayed_queue.http.api.bodies import as_json
from delayed_queue.http.api.endpoints import Endpoints
from delayed_queue.http.api.jobs import ADDS, answered_once, job_of, may_join
from delayed_queue.http.api.parameters import Id
from delayed_queue.http.api.problems import invalid, missing
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.batches import OnDead, close_batch, open_batch
from delayed_queue.http.jobs.idempotency import KeptAnswer
from delayed_queue.http.jobs.jobs import NewJob

calls: Final = Endpoints("batches")
# Times that count from now, and a batch of its own.
_NOT_IN_THEN: Final = ("delay", "expiresIn", "batch", "leaseToken")
_NO_FIELD: Final = "A then takes runAt and expiresAt, and is in no batch."
_Then = Annotated[
    dict[str, Any],
    Meta(
        description="The job to add when the batch has finished; without delay, expiresIn, batch.",
        extra_json_schema={"$ref": "#/components/schemas/JobRequest"},
    ),
]


class BatchRequest(Struct, rename="camel", forbid_unknown_fields=True):
    """A batch to open. With ``wait`` a dead job has not finished until it is kicked or deleted."""

    then: _Then
    on_dead: OnDead = "then"


@dataclass
class OpenedBatch:
    """The id by which jobs join the batch."""

    id: int


@calls.post("batches", "add", answer=OpenedBatch, **ADDS)
def open_one(request: ApiRequest, body: BatchRequest) -> HttpResponse:
    """Open a batch of the topic of ``then``, which is added when all its jobs have finished."""
    work = partial(_open, _read_then(request, body.then), body.on_dead)
    return answered_once(request, "POST batches", [body.then, body.on_dead], work)


def _open(then: NewJob, on_dead: OnDead) -> KeptAnswer:
    opened = open_batch(then, on_dead=on_dead, using=api_settings().DATABASE)
    return KeptAnswer(202, as_json({"id": opened}))


def _read_then(request: ApiRequest, fields: dict[str, Any]) -> NewJob:
    wrong = [(name, _NO_FIELD) for name in _NOT_IN_THEN if fields.get(name) is not None]
    try:
        then = job_of(fields, partial(demand, request, "add"))
    except InvalidJob as error:
        wrong += error.errors
    if wrong:
        raise invalid("body", ((f"then.{path}", text) for path, text in wrong))
    return then


@calls.post("batches/<batch_id>/close", "add", errors=[404])
def close(request: ApiRequest, batch_id: Id) -> None:
    """Add no more jobs. Without jobs left, ``then`` is added at once.

    A batch that has finished, or of a topic that the token does not cover, is missing.
    """
    if not may_join(request, batch_id):
        raise missing("batch")
    close_batch(batch_id, using=api_settings().DATABASE)
