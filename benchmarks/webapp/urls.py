"""The API, and the least a Django view can do with the same request."""

from __future__ import annotations

import json

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


urlpatterns = [
    path("bare", bare),
    path("bare-async", bare_async),
    path("queue/", include("delayed_queue.http.urls")),
]
