"""The APIs, and the least a Django view can do with the same requests, storing them or not."""

from __future__ import annotations

import json
import uuid

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt

from delayed_queue import DelayedQueue
from delayed_queue.notifications.api import api as notifications


@csrf_exempt
def bare(request: HttpRequest) -> HttpResponse:
    """Read the JSON and answer as much as the API does; nothing is stored."""
    job = json.loads(request.body)
    answer = {
        **{key: job[key] for key in ("jobId", "topic")},
        "state": "delayed",
        "runAt": "x" * 24,
    }
    return HttpResponse(json.dumps(answer), status=202, content_type="application/json")


@csrf_exempt
async def bare_async(request: HttpRequest) -> HttpResponse:
    return bare(request)


INSERT = """
INSERT INTO bare_job (key, kind, payload, due_at)
VALUES (%s, %s, %s, statement_timestamp() + make_interval(secs => %s))
RETURNING due_at
"""


@csrf_exempt
def one_insert(request: HttpRequest) -> HttpResponse:
    """Read the JSON, store it under a unique key, and answer as much as the API does."""
    job = json.loads(request.body)
    params = [job["jobId"], job["topic"], json.dumps(job["body"]).encode(), job["delay"]]
    with connection.cursor() as cursor:
        cursor.execute(INSERT, params)
        [due_at] = cursor.fetchone()
    answer = {
        **{key: job[key] for key in ("jobId", "topic")},
        "state": "delayed",
        "runAt": due_at.isoformat(),
    }
    return HttpResponse(json.dumps(answer), status=202, content_type="application/json")


INSERT_MANY = """
INSERT INTO bare_job (key, kind, payload, due_at)
SELECT key, kind, payload, statement_timestamp() + make_interval(secs => delay)
FROM unnest(%s::text[], %s::text[], %s::bytea[], %s::float8[]) AS job (key, kind, payload, delay)
RETURNING key, due_at
"""


@csrf_exempt
def bare_bulk(request: HttpRequest) -> HttpResponse:
    """Store many by one INSERT."""
    jobs = json.loads(request.body)
    params = [
        [job["jobId"] for job in jobs], [job["topic"] for job in jobs],
        [json.dumps(job["body"]).encode() for job in jobs], [float(job["delay"]) for job in jobs],
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(INSERT_MANY, params)
        answers = [
            {"jobId": key, "topic": "benchmark", "state": "delayed", "runAt": due_at.isoformat()}
            for key, due_at in cursor.fetchall()
        ]
    items = [{"status": 202, "job": each} for each in answers]
    return HttpResponse(json.dumps({"items": items}), status=202, content_type="application/json")


ROW = """
INSERT INTO delayed_queue_notification (
    id, tenant, source, channel, priority, category, recipient, recipient_hash, template,
    subject, body, html, send_at, dedupe_key, callback_url, status, attempts, provider,
    provider_id, outcome, error_class
)
VALUES (
    %s, 'bench', 'rest', %s, 'normal', '', %s, '0123456789abcdef', '', %s, %s, '', now(), %s,
    '', 'ENQUEUED', 0, '', '', '', ''
)
"""
messages = DelayedQueue("notifications-of-a-view")


@csrf_exempt
def row_and_offer(request: HttpRequest) -> HttpResponse:
    """Store one row, and offer one message, in a transaction."""
    asked, id_ = json.loads(request.body), str(uuid.uuid4())
    names = ("channel", "to", "subject", "body", "dedupeKey")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(ROW, [id_, *(asked[each] for each in names)])
        messages.offer_or_update(id_, None)
    answer = {"id": id_, "status": "ENQUEUED", "duplicate": False}
    return HttpResponse(json.dumps(answer), status=202, content_type="application/json")


urlpatterns = [
    path("bare", bare),
    path("one-insert", one_insert),
    path("bare-async", bare_async),
    path("bare-bulk", bare_bulk),
    path("row-and-offer", row_and_offer),
    path("notify/v1/", notifications.urls),
    path("queue/", include("delayed_queue.http.urls")),
]
