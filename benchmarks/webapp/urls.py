"""The APIs, and beside them the least that a Django view does with the same requests."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, Final

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt

from delayed_queue import DelayedQueue
from delayed_queue.notifications.api import api as notifications

BARE_TABLE: Final = """
CREATE TABLE bare_job (
    id bigserial PRIMARY KEY,
    key text UNIQUE,
    kind text,
    payload bytea,
    due_at timestamptz
)
"""
INSERT: Final = """
INSERT INTO bare_job (key, kind, payload, due_at)
VALUES (%s, %s, %s, statement_timestamp() + make_interval(secs => %s))
RETURNING due_at
"""
# A row of a notification, as the intake stores it.
NOTIFICATION: Final = """
INSERT INTO delayed_queue_notification (
    id, tenant, channel, priority, category, recipient, recipient_hash, template,
    subject, body, html, send_at, dedupe_key, callback_url, status, attempts, provider,
    provider_id, outcome, error_class
)
VALUES (
    %s, 'bench', %s, 'normal', '', %s, '0123456789abcdef', '', %s, %s, '', now(), %s,
    '', 'ENQUEUED', 0, '', '', '', ''
)
"""
FIELDS: Final = ("channel", "to", "subject", "body", "dedupeKey")
MESSAGES: Final = DelayedQueue("notifications-of-a-view")


def view(answer: Callable[[Any], Any]) -> Callable[[HttpRequest], HttpResponse]:
    """Return a view that reads JSON and replies with JSON."""

    @csrf_exempt
    def called(request: HttpRequest) -> HttpResponse:
        body = json.dumps(answer(json.loads(request.body)))
        return HttpResponse(body, status=202, content_type="application/json")

    return called


def nothing(job: dict[str, Any]) -> dict[str, str]:
    """Store nothing; reply as much as the API does."""
    return {"jobId": job["jobId"], "topic": job["topic"], "state": "delayed", "runAt": "x" * 24}


def one_insert(job: dict[str, Any]) -> dict[str, str]:
    """Store the job under a unique key."""
    params = [job["jobId"], job["topic"], json.dumps(job["body"]).encode(), job["delay"]]
    with connection.cursor() as cursor:
        cursor.execute(INSERT, params)
        [due_at] = cursor.fetchone()
    return {**nothing(job), "runAt": due_at.isoformat()}


def row_and_offer(asked: dict[str, Any]) -> dict[str, Any]:
    """Store a row and offer a message in one transaction."""
    id_ = str(uuid.uuid4())
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(NOTIFICATION, [id_, *(asked[name] for name in FIELDS)])
        MESSAGES.offer_or_update(id_, None)
    return {"id": id_, "status": "ENQUEUED", "duplicate": False}


urlpatterns = [
    path("bare", view(nothing)),
    path("one-insert", view(one_insert)),
    path("row-and-offer", view(row_and_offer)),
    path("notify/v1/", notifications.urls),
    path("queue/", include("delayed_queue.http.urls")),
]
