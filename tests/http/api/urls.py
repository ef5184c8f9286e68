"""An API of the tests in the frame, and the real one beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from django.db import OperationalError
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import include, path
from ninja import Field, Router, Schema, Status

from delayed_queue import DelayedQueue, RetryPolicy
from delayed_queue.http.api import Problem, make_api, requires, takes_body
from delayed_queue.http.api.auth import demand
from delayed_queue.http.api.waiting import Wish, waiting_pops
from delayed_queue.messages import Envelope

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


def wish(topic: str, count: int) -> Wish[Envelope]:
    queue = DelayedQueue(topic, retry_policy=RetryPolicy.exponential())

    def give_back(jobs: Sequence[Envelope]) -> object:
        ids = [each.message_id for each in jobs]
        return queue._release_unacknowledged(jobs[0].lease_id, ids, refund=1)

    return Wish(
        topic, [queue.kind], lambda: queue.try_poll_many(count), queue.seconds_to_next_look,
        give_back,
    )  # fmt: skip


class Popped(Schema):
    key: str
    lease: str
    attempt: int


@router.post(
    "/topics/{topic}/pop", auth=requires("consume"), response={200: list[Popped], 204: None}
)
async def pop(request: Any, topic: str, count: int = 1, timeout: float = 0) -> Any:
    jobs = await waiting_pops.wait_for(request, wish(topic, count), timeout)
    found = [{"key": each.key, "lease": each.lease_id, "attempt": each.attempt} for each in jobs]
    return Status(200, found) if found else Status(204, None)


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


@non_atomic_requests
def waiting(request: HttpRequest) -> HttpResponse:
    waiters = waiting_pops.room.waiters()
    leaving = sum(each.is_leaving for each in waiters)
    return HttpResponse(f"{len(waiters)} {leaving}")


streams: list[str] = []


@non_atomic_requests
async def stream(request: HttpRequest) -> StreamingHttpResponse:
    """Answer without end, as events do."""

    async def parts() -> AsyncIterator[str]:
        streams.append("one")
        try:
            while True:
                yield "part\n"
                await asyncio.sleep(0.01)
        finally:
            streams.pop()

    return StreamingHttpResponse(parts())


@non_atomic_requests
async def streaming(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(len(streams)))


urlpatterns = [
    path("stream", stream),
    path("streaming", streaming),
    path("waiting", waiting),
    path("orders/v1/", api.urls),
    path("queue/", include("delayed_queue.http.urls")),
]
