"""The job API: every module of ``routes``, and the calls that the event loop answers itself."""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

from asgiref.sync import markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from ninja import Router

from delayed_queue import __version__
from delayed_queue.db.gathering import LoopGathering, LoopLocal
from delayed_queue.http.api import routes
from delayed_queue.http.api.auth import ApiRequest, BearerToken, requires
from delayed_queue.http.api.bodies import JSON, takes_body
from delayed_queue.http.api.building import Api, LoopView, View, make_api, unstoppable
from delayed_queue.http.api.replies import read_object
from delayed_queue.http.api.routes.jobs import KEY_IN_META, Exists, answer_of, as_response, job_of
from delayed_queue.http.api.threads import in_thread
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.adding import (
    BATCH,
    Place,
    Written,
    id_of,
    needs_database,
    settle,
    write_together,
)
from delayed_queue.http.jobs.jobs import AddedJob, IfExists, NewJob

# What a larger body takes to be read and checked, other requests would wait for.
MAX_BYTES: Final = 16 * 1024

router = Router()


@router.post("/jobs", auth=requires("add"))
@takes_body(lambda settings: settings.BODY_BYTES, JSON)
async def add(request: ApiRequest, if_exists: Exists = IfExists.FAIL) -> HttpResponse:
    """Do as ``routes.jobs.add`` does, with one write for all that come together."""
    job = job_of(request, read_object(request.body))
    return as_response(answer_of(await _add(job, (api_settings().DATABASE, job.topic, if_exists))))


def _gathering(key: None) -> LoopGathering[Place, NewJob, Written]:
    return LoopGathering(_write_together, most=BATCH, name=id_of)


async def _write_together(place: Place, jobs: list[NewJob]) -> list[Written]:
    return await in_thread(write_together, place, jobs)


_gathered: Final[LoopLocal[None, LoopGathering[Place, NewJob, Written]]] = LoopLocal(_gathering)


async def _add(job: NewJob, place: Place) -> AddedJob:
    """Store the job as ``add_job_in_group`` does; also when the caller is cancelled."""
    written = await _gathered.of(None).ask(place, job)
    if needs_database(written, place[-1]):
        return await in_thread(settle, job, written, place)
    return settle(job, written, place)


def in_loop() -> dict[str, LoopView]:
    """Return what makes of a view in the pool one that answers here what can be, by its name."""
    api = make_api("", __version__, "delayed-queue-in-loop", auth=BearerToken())
    api.add_router("", router)
    found = (each for each in api.urls[0] if isinstance(each, URLPattern))
    return {each.name: _beside(each.callback) for each in found if each.name == add.__name__}


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
    return request.method == "POST" and is_small and KEY_IN_META not in request.META


def make_service() -> Api:
    """Return the API of jobs with all its routes; what names no `requires` needs a token."""
    api = make_api(
        "Delayed jobs",
        __version__,
        "delayed-queue",
        description="Delay work, and have it called back or pull it when it is due.",
        auth=BearerToken(),
    )
    for module in sorted(each.name for each in iter_modules(routes.__path__)):
        api.add_router("", import_module(f"{routes.__name__}.{module}").router)
    api.in_loop = in_loop()
    return api
