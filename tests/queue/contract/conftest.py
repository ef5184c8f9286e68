"""The queues under test: every contract test runs on PostgreSQL and on the in-memory queue."""

from __future__ import annotations

from functools import partial

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.testing import InMemoryQueue, InMemoryStore, ManualClock
from delayed_queue.testing.fixtures import manual_clock
from tests.queue.contract.support import MakeQueue

__all__ = ["manual_clock"]


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.django_db), "memory"])
def make_queue(request: pytest.FixtureRequest) -> MakeQueue:
    """Make queues that see each other's messages, inside one transaction of the test."""
    return _maker(request.param)


@pytest.fixture(
    params=[pytest.param("postgresql", marks=pytest.mark.django_db(transaction=True)), "memory"]
)
def make_shared_queue(request: pytest.FixtureRequest) -> MakeQueue:
    """Make queues whose calls commit, for tests with threads or transactions of their own."""
    return _maker(request.param)


def _maker(backend: str) -> MakeQueue:
    if backend == "memory":
        return partial(InMemoryQueue, store=InMemoryStore())
    return DelayedQueue


@pytest.fixture
def clock(manual_clock: ManualClock) -> ManualClock:
    return manual_clock


@pytest.fixture
def queue(make_queue: MakeQueue, manual_clock: ManualClock) -> DelayedQueue:
    return make_queue("orders", clock=manual_clock)


@pytest.fixture
def shared_queue(make_shared_queue: MakeQueue, manual_clock: ManualClock) -> DelayedQueue:
    return make_shared_queue("orders", clock=manual_clock)
