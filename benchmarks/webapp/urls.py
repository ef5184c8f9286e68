"""The API, and the least a Django view can do with the same request, storing it or not."""

from __future__ import annotations

import json

from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt


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


urlpatterns = [
    path("bare", bare),
    path("one-insert", one_insert),
    path("bare-async", bare_async),
    path("queue/", include("delayed_queue.http.urls")),
]
