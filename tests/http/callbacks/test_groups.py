"""Callbacks of topics with limits: grouped by host, like handlers of queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from delayed_queue import Groups
from delayed_queue.http.jobs.catalogue import configure_topic
from delayed_queue.models import Message
from tests.http.callbacks.delivering import add_many, callback_worker, permitted
from tests.http.callbacks.servers import Received, Receiver, Wire
from tests.support.processes import wait_until
from tests.support.running import running

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh")]


class Busy:
    """Takes a moment for each request, and records its concurrency per kind."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, wire: Wire, request: Received) -> None:
        name = request.path.rpartition("/")[2][0]
        self.now[name] += 1
        self.most[name] = max(self.most[name], self.now[name])
        await asyncio.sleep(0.02)
        self.now[name] -= 1
        await wire.answer()


@pytest.fixture
def busy() -> Busy:
    return Busy()


@pytest.fixture
def receiver(busy: Busy) -> Iterator[Receiver]:
    with Receiver(busy) as opened, permitted(opened):
        yield opened


def test_no_more_of_a_group_are_on_the_wire_than_its_limit(receiver: Receiver, busy: Busy) -> None:
    configure_topic("orders", groups=Groups(concurrency=2))
    add_many("a", 12, receiver.url, group="a")
    add_many("b", 12, receiver.url, group="b")
    add_many("n", 12, receiver.url)
    with running(callback_worker()), running(callback_worker()):
        wait_until(lambda: not Message.objects.exists())
    assert len(receiver.requests) == 36
    assert (busy.most["a"], busy.most["b"]) == (2, 2)
    assert busy.most["n"] > 2


def test_in_order_they_come_one_after_the_other(receiver: Receiver, busy: Busy) -> None:
    configure_topic("orders", groups=Groups(order="fifo"))
    add_many("a", 8, receiver.url, group="a")
    with running(callback_worker()):
        wait_until(lambda: not Message.objects.exists())
    paths = [each.path.rpartition("/")[2] for each in receiver.requests]
    assert paths == [f"a{n}" for n in range(8)]
    assert busy.most["a"] == 1
