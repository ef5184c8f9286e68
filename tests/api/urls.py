"""An API of the tests in the frame, and the real one beside it."""

from __future__ import annotations

from typing import Any

from django.db import OperationalError
from django.http import HttpRequest
from django.urls import include, path
from ninja import Field, Router, Schema, Status

from delayed_queue.api import Problem, make_api, requires, takes_body
from delayed_queue.api.auth import demand

router = Router()


class Item(Schema):
    delay: float = Field(0, ge=0)
    name: str


class Order(Schema):
    topic: str
    body: Any = None
    items: list[Item] = []


@router.post("/orders", auth=requires("add"), response={202: Order})
def add(request: HttpRequest, order: Order) -> Any:
    demand(request, "add", order.topic)
    return Status(202, order)


@router.get("/topics/{topic}/stats", auth=requires("read"), response=dict[str, str])
def stats(request: HttpRequest, topic: str, limit: int = 1) -> Any:
    return {"topic": topic}


@router.post("/topics/{topic}/pop", auth=requires("consume"), response=dict[str, str])
async def pop(request: Any, topic: str) -> Any:
    return {"name": request.auth.name, "topic": topic}


@router.post("/bulk", auth=requires("add"), response=dict[str, int])
@takes_body(lambda settings: settings.BULK_BYTES, "application/json", "application/x-ndjson")
def bulk(request: HttpRequest) -> Any:
    return {"bytes": len(request.body)}


@router.get("/fails/{how}", auth=None, response=dict[str, str])
def fail(request: HttpRequest, how: str) -> Any:
    if how == "database":
        raise OperationalError("the secret password is wrong")
    if how == "problem":
        raise Problem(409, "job_already_exists", "Job already exists", "It is there.")
    raise ValueError("the payload was secret")


api = make_api("Orders", "1", "test-orders")
api.add_router("", router)

urlpatterns = [
    path("orders/v1/", api.urls),
    path("queue/", include("delayed_queue.urls")),
]
