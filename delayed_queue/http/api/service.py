"""The job API as it is served: its calls, and what probes and scrapers ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from asgiref.sync import markcoroutinefunction
from django.db import Error, connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern

from delayed_queue import __version__
from delayed_queue.db.resilience import is_read_only
from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.http.api import consuming, failed, jobs
from delayed_queue.http.api.auth import BearerToken, check, grant_of
from delayed_queue.http.api.bodies import Problem, unavailable
from delayed_queue.http.api.building import Api, LoopView, View, make_api, respond, unstoppable
from delayed_queue.http.conf import api_settings
from delayed_queue.worker.database import check_schema

Probe = Callable[[HttpRequest], HttpResponse]

# What a larger body takes to be read and checked, other requests would wait for.
MAX_BYTES: Final = 16 * 1024


def make_service() -> Api:
    """Return the API of jobs with all its routes; what names no `requires` needs a token."""
    api = make_api(
        "Delayed jobs",
        __version__,
        "delayed-queue",
        description="Delay work, and have it called back or pull it when it is due.",
        auth=BearerToken(),
    )
    # What is asked for most is first: urls are tried one after the other.
    for each in (jobs.router, consuming.router, jobs.tasks, failed.router, jobs.one_job):
        api.add_router("", each)
    api.in_loop = in_loop()
    return api


def in_loop() -> dict[str, LoopView]:
    """Return what makes of a view in the pool one that answers on the event loop what it can."""
    api = make_api("", __version__, "delayed-queue-in-loop", auth=BearerToken())
    api.add_router("", jobs.in_loop)
    found = (each for each in api.urls[0] if isinstance(each, URLPattern))
    return {"add": _beside(next(each.callback for each in found if each.name == "add"))}


def _beside(quick: View) -> LoopView:
    def choosing(run: View) -> View:
        @wraps(run)
        async def choose(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            view = quick if _is_plain(request) else run
            return await view(request, *args, **kwargs)

        return unstoppable(markcoroutinefunction(choose))

    return choosing


def _is_plain(request: HttpRequest) -> bool:
    # An answer that is kept under a key is written with the job, in a transaction of its own.
    size = request.META.get("CONTENT_LENGTH") or ""
    is_small = size.isdecimal() and len(size) < 9 and int(size) <= MAX_BYTES
    return request.method == "POST" and is_small and jobs.KEY_IN_META not in request.META


def _get(view: Probe) -> Probe:
    """Have errors be problems, and other methods refused."""

    def answer(request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return Problem(405, "method_not_allowed", headers={"Allow": "GET, HEAD"}).as_response()
        try:
            response = view(request)
        # A probe is answered whatever is wrong; what is ours is logged.
        except Exception as error:
            response = respond(request, error)
        response.headers["Cache-Control"] = "no-store"
        return response

    answer.csrf_exempt = True  # type: ignore[attr-defined]
    return answer


@_get
def healthz(request: HttpRequest) -> HttpResponse:
    """Answer 200: the process takes requests. It asks nobody, so no outage restarts servers."""
    return JsonResponse({"status": "ok"})


@_get
def readyz(request: HttpRequest) -> HttpResponse:
    """Answer 200 when the database takes writes and has this version's tables, else 503."""
    using = api_settings().DATABASE
    try:
        check_schema(using)
        only_reads = is_read_only(using)
    except Error:
        raise unavailable() from None
    except DelayedQueueError:
        raise unavailable("schema_mismatch", "Migrations and package differ.") from None
    if only_reads:
        # The next probe asks anew, and where it is sent then.
        connections[using].close()
        raise unavailable("database_read_only", "The database takes no writes.")
    return JsonResponse({"status": "ready"})


@_get
def metrics(request: HttpRequest) -> HttpResponse:
    """Expose all queues and this process to Prometheus; needs a token with the verb metrics."""
    if find_spec("prometheus_client") is None:
        raise Problem(404, "not_found", detail="The server has no prometheus-client.")
    settings = api_settings()
    if not settings.METRICS_PUBLIC:
        check(grant_of(request), "metrics", None)
    module: Any = import_module("delayed_queue.observe.metrics")
    collector = module.QueueCollector(using=settings.DATABASE)
    body, content_type = module.exposition(collector, accept=request.headers.get("Accept", ""))
    return HttpResponse(body, content_type=content_type)
