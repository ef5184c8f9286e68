"""The log of a callback's attempts."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from ninja import Router, Schema

from delayed_queue.db.rows import page_of
from delayed_queue.http.api.auth import ApiRequest, demand, reaches, requires
from delayed_queue.http.api.replies import After, Limit, OfJob, OfTopic, page_reply
from delayed_queue.http.conf import api_settings
from delayed_queue.http.models import CallbackAttempt
from delayed_queue.http.store.callbacks import LoggedRow
from delayed_queue.messages import from_milliseconds

router = Router(tags=["callbacks"])
PAGE = 500


class AttemptReply(Schema):
    """One callback. ``failure`` is empty where the job was received."""

    id: int
    jobId: str
    topic: str
    webhookId: str
    attempt: int
    startedAt: str
    durationMs: int
    status: int | None
    failure: str
    detail: str
    address: str
    excerpt: str
    isAmbiguous: bool
    endpoint: int | None


class AttemptPage(Schema):
    """Attempts in the order they were logged; ``next`` is what to ask ``after``."""

    items: list[AttemptReply]
    next: int | None


@router.get(
    "/attempts", auth=requires("read"), response={200: AttemptPage}, summary="List attempts"
)
def list_attempts(
    request: ApiRequest,
    job: OfJob,
    topic: OfTopic = None,
    after: After = 0,
    limit: Limit = 20,
) -> HttpResponse:
    """List the callbacks of a job, of that id in one topic or in all, the oldest first.

    Without a topic, those of topics that the token does not cover are left out.
    """
    if topic is not None:
        demand(request, "read", topic)
    found = _covered(request, job, topic, after, limit + 1)
    return page_reply(page_of(found, limit, lambda each: each.id), _as_dict)


def _covered(
    request: ApiRequest, job: str, topic: str | None, after: int, limit: int
) -> list[LoggedRow]:
    """Return the next attempts of topics that the token covers.

    A page is filled up behind those of others: one cut short would tell that they are there.
    """
    using = api_settings().DATABASE
    found: list[LoggedRow] = []
    is_ours = reaches(request.auth)
    while len(found) < limit:
        rows = CallbackAttempt.objects.of_job(job, topic, after=after, limit=PAGE, using=using)
        found += (each for each in rows if is_ours(each.topic))
        if len(rows) < PAGE:
            break
        after = rows[-1].id
    return found[:limit]


def _as_dict(row: LoggedRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "jobId": row.key,
        "topic": row.topic,
        "webhookId": row.webhook_id,
        "attempt": row.attempt,
        "startedAt": from_milliseconds(row.started_at),
        "durationMs": row.duration,
        "status": row.status,
        "failure": row.failure,
        "detail": row.detail,
        "address": row.address,
        "excerpt": row.excerpt,
        "isAmbiguous": row.is_ambiguous,
        "endpoint": row.endpoint_id,
    }
