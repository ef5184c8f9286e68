"""The queues under test: in memory, and on PostgreSQL with both kinds of cursors."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from pytest_django import Settings

from delayed_queue import DelayedQueue
from delayed_queue.testing import InMemoryQueue, InMemoryStore, ManualClock
from delayed_queue.testing.fixtures import manual_clock
from tests.queue.contract.support import MakeQueue

__all__ = ["manual_clock"]


def _backends(mark: pytest.MarkDecorator) -> list[Any]:
    return [*(pytest.param(each, marks=mark) for each in ("postgresql", "cursors")), "memory"]


@pytest.fixture(params=_backends(pytest.mark.django_db))
def make_queue(request: pytest.FixtureRequest, settings: Settings) -> MakeQueue:
    """Return a function for queues that share messages, inside one transaction of the test."""
    return _maker(request.param, settings)


@pytest.fixture(params=_backends(pytest.mark.django_db(transaction=True)))
def make_shared_queue(request: pytest.FixtureRequest, settings: Settings) -> MakeQueue:
    """Return a function for queues whose calls commit, for tests with threads."""
    return _maker(request.param, settings)


def _maker(backend: str, settings: Settings) -> MakeQueue:
    if backend == "memory":
        return partial(InMemoryQueue, store=InMemoryStore())
    # A query log in every thread, so that all statements use Django's cursors.
    settings.DEBUG = backend == "cursors"
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
