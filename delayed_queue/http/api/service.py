"""The job API as it is served: its calls, health checks and metrics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from django.db import Error
from django.http import HttpRequest, HttpResponse, JsonResponse

from delayed_queue import __version__
from delayed_queue.db.resilience import is_read_only
from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.http.api import attempts, batches, consuming, dead, jobs, tasks, topics
from delayed_queue.http.api.auth import check, grant_of
from delayed_queue.http.api.openapi import Api
from delayed_queue.http.api.problems import Problem, not_allowed, respond, unavailable
from delayed_queue.http.conf import api_settings
from delayed_queue.worker.deadlines import SharedProbe
from delayed_queue.worker.engine.database import check_schema

Probe = Callable[[HttpRequest], HttpResponse]


service: Final = Api(
    "Delayed jobs",
    __version__,
    "delayed-queue",
    "Schedule jobs; receive them by callback or pop them when they are due.",
    # The most frequent calls first: Django tries one URL after the other.
    [
        *jobs.calls, *topics.calls, *consuming.calls, *tasks.calls, *dead.calls,
        *attempts.calls, *batches.calls, *jobs.one_job,
    ],
)  # fmt: skip


def _get(view: Probe) -> Probe:
    """Answer errors by problems, and refuse other methods."""

    def answer(request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return not_allowed(("GET", "HEAD")).as_response()
        try:
            response = view(request)
        # A probe gets an answer for every error; errors of the server are logged.
        except Exception as error:
            response = respond(request, error)
        response.headers["Cache-Control"] = "no-store"
        return response

    answer.csrf_exempt = True  # type: ignore[attr-defined]
    return answer


@_get
def healthz(request: HttpRequest) -> HttpResponse:
    """Answer 200: the process takes requests. It runs no query: outages restart no servers."""
    return JsonResponse({"status": "ok"})


@_get
def readyz(request: HttpRequest) -> HttpResponse:
    """Answer 200 if the database takes writes and has this version's tables, else 503."""
    using = api_settings().DATABASE
    try:
        _readiness.ask(partial(_check_database, using))
    except (Error, TimeoutError):
        raise unavailable() from None
    except DelayedQueueError:
        raise unavailable("schema_mismatch", "The migrations do not match the package.") from None
    return JsonResponse({"status": "ready"})


# A probe waits at most this long, in seconds.
_readiness: Final = SharedProbe(5.0)


def _check_database(using: str) -> None:
    """Check the schema and the server on a new connection, in another thread."""
    check_schema(using)
    if is_read_only(using):
        raise unavailable("database_read_only", "The database is read-only.")


@_get
def metrics(request: HttpRequest) -> HttpResponse:
    """Expose all queues and this process to Prometheus; needs a token with the verb metrics."""
    if find_spec("prometheus_client") is None:
        raise Problem(404, "not_found", detail="prometheus-client is not installed on the server.")
    check(grant_of(request), "metrics", None)
    module: Any = import_module("delayed_queue.observe.metrics")
    collector = module.QueueCollector(using=api_settings().DATABASE)
    body, content_type = module.exposition(collector, accept=request.headers.get("Accept", ""))
    return HttpResponse(body, content_type=content_type)
