"""An API of the tests in the frame, and the real one beside it."""

from __future__ import annotations

from typing import Annotated, Any

from django.db import OperationalError
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from msgspec import Meta, Struct

from delayed_queue.http.api.auth import ApiRequest, demand
from delayed_queue.http.api.endpoints import Endpoints
from delayed_queue.http.api.openapi import Api
from delayed_queue.http.api.problems import Problem
from delayed_queue.http.api.waiting import waiting_pops

calls = Endpoints("orders")


class Item(Struct):
    name: str
    delay: Annotated[float, Meta(ge=0)] = 0


class Order(Struct):
    topic: str
    body: Any = None
    items: list[Item] = []


class Topic(Struct):
    topic: str


class StatsQuery(Struct):
    limit: int = 1


@calls.post("orders", "add", status=202)
def add(request: ApiRequest, body: Order) -> Order:
    demand(request, "add", body.topic)
    return body


@calls.get("topics/<topic>/stats", "read")
def stats(request: ApiRequest, topic: str, query: StatsQuery) -> Topic:
    return Topic(topic)


@calls.post(
    "bulk",
    "add",
    accepts={"application/json": list[Order], "application/x-ndjson": str},
    limit=lambda settings: settings.BULK_BYTES,
)
def bulk(request: ApiRequest) -> dict[str, int]:
    return {"bytes": len(request.body)}


@calls.get("fails/<how>", None)
def fail(request: HttpRequest, how: str) -> dict[str, str]:
    if how == "database":
        raise OperationalError("the secret password is wrong")
    if how == "problem":
        raise Problem(409, "job_already_exists", "Job already exists", "It is there.")
    raise ValueError("the payload was secret")


api = Api("Orders", "1", "test-orders", "", calls)


@non_atomic_requests
def waiting(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(waiting_pops.waiting))


urlpatterns = [
    path("waiting", waiting),
    path("orders/v1/", api.urls),
    path("queue/", include("delayed_queue.http.urls")),
]
