"""An API of the tests in the frame, and the real one beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from django.db import OperationalError
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import include, path
from msgspec import Meta, Struct

from delayed_queue import DelayedQueue, RetryPolicy
from delayed_queue.http.api import Api, ApiRequest, Endpoints, Problem, demand
from delayed_queue.http.api.waiting import Wish, waiting_pops
from delayed_queue.messages import Envelope

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


def wish(topic: str, count: int) -> Wish[Envelope]:
    queue = DelayedQueue(topic, retry_policy=RetryPolicy.exponential())

    def give_back(jobs: Sequence[Envelope]) -> object:
        ids = [each.message_id for each in jobs]
        return queue._release_unacknowledged(jobs[0].lease_id, ids, refund=1)

    return Wish(
        topic, [queue.kind], lambda: queue.try_poll_many(count), queue.seconds_to_next_look,
        give_back,
    )  # fmt: skip


class Popped(Struct):
    key: str
    lease: str
    attempt: int


class PopQuery(Struct):
    count: int = 1
    timeout: float = 0


@calls.post("topics/<topic>/pop", "consume", waits=True)
async def pop(request: ApiRequest, topic: str, query: PopQuery) -> list[Popped] | None:
    jobs = await waiting_pops.wait_for(request, wish(topic, query.count), query.timeout)
    return [Popped(each.key, each.lease_id, each.attempt) for each in jobs] or None


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
