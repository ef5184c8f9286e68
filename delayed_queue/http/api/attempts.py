"""The log of callbacks."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Struct, field

from delayed_queue.db.sql import page_of
from delayed_queue.http.api.auth import ApiRequest, demand, reaches
from delayed_queue.http.api.endpoints import Endpoints
from delayed_queue.http.api.parameters import JobId, PageQuery, Time, shown
from delayed_queue.http.conf import api_settings
from delayed_queue.http.models import CallbackAttempt

calls: Final = Endpoints("callbacks")
PAGE = 500


class AttemptReply(Struct, rename="camel"):
    """One callback. ``failure`` is empty where the job was received."""

    id: int
    key: str = field(name="jobId")
    topic: str
    webhook_id: str
    attempt: int
    started_at: Time
    duration: int = field(name="durationMs")
    status: int | None
    endpoint_id: int | None = field(name="endpoint")
    failure: str
    detail: str
    address: str
    excerpt: str
    is_ambiguous: bool


class AttemptPage(Struct):
    """Attempts in the order they were logged; ``next`` is the ``after`` of the next page."""

    items: list[AttemptReply]
    next: int | None


class AttemptsQuery(PageQuery, kw_only=True, forbid_unknown_fields=True):
    """The attempts of a job, of that id in one topic or in all."""

    job: JobId


@calls.get("attempts", "read")
def list_attempts(request: ApiRequest, query: AttemptsQuery) -> AttemptPage:
    """List the callbacks of a job, of that id in one topic or in all, the oldest first.

    Without a topic, those of topics that the token does not cover are left out.
    """
    if query.topic is not UNSET:
        demand(request, "read", str(query.topic))
    found = _covered_attempts(request, query)
    page = page_of(found, query.limit, lambda each: each.id)
    return AttemptPage([shown(each, AttemptReply) for each in page.items], page.next)


def _covered_attempts(request: ApiRequest, query: AttemptsQuery) -> list[CallbackAttempt]:
    """Return the next attempts of topics that the token covers, one more than the limit.

    A page is filled up behind attempts of other topics: a short one would reveal them.
    """
    using, is_ours = api_settings().DATABASE, reaches(request.auth)
    topic = None if query.topic is UNSET else str(query.topic)
    found: list[CallbackAttempt] = []
    after = query.after
    while len(found) <= query.limit:
        rows = CallbackAttempt.objects.of_job(
            query.job, topic, after=after, limit=PAGE, using=using
        )
        found += (each for each in rows if is_ours(each.topic))
        if len(rows) < PAGE:
            break
        after = rows[-1].id
    return found[: query.limit + 1]
