"""The queues under test: in memory, on PostgreSQL with both kinds of cursors, by SQL functions."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pytest
from pytest_django import Settings

from delayed_queue import DelayedQueue
from delayed_queue.testing import InMemoryQueue, InMemoryStore, ManualClock
from delayed_queue.testing.fixtures import manual_clock
from tests.queue.contract.support import MakeQueue
from tests.support.functions import FunctionQueue, install_clocked

__all__ = ["manual_clock"]

# The functions keep no position among the groups: these turns are theirs by chance only.
TURNS: Final = (
    "test_g4_a_claim_of_one", "test_g4_by_weight", "test_g4_messages_without",
    "test_g4_what_was_begun", "test_g4_a_hundred_equal", "test_g4_a_weight_that_is_lowered",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [each for each in items if not _is_for_queues_only(each)]


def _is_for_queues_only(item: pytest.Item) -> bool:
    return item.name.startswith(TURNS) and "[functions" in item.name


def _backends(mark: pytest.MarkDecorator) -> list[Any]:
    on_postgresql = ("postgresql", "cursors", "functions")
    return [*(pytest.param(each, marks=mark) for each in on_postgresql), "memory"]


@pytest.fixture(params=_backends(pytest.mark.django_db))
def make_queue(request: pytest.FixtureRequest, settings: Settings) -> MakeQueue:
    """Return a function for queues that share messages, inside one transaction of the test."""
    return maker(request.param, settings)


@pytest.fixture(params=_backends(pytest.mark.django_db(transaction=True)))
def make_shared_queue(request: pytest.FixtureRequest, settings: Settings) -> MakeQueue:
    """Return a function for queues whose calls commit, for tests with threads."""
    return maker(request.param, settings)


def maker(backend: str, settings: Settings) -> MakeQueue:
    if backend == "memory":
        return partial(InMemoryQueue, store=InMemoryStore())
    if backend == "functions":
        install_clocked()
        return _by_functions
    # A query log in every thread, so that all statements use Django's cursors.
    settings.DEBUG = backend == "cursors"
    return DelayedQueue


def _by_functions(name: str, *, kind: str | None = None, **options: Any) -> DelayedQueue:
    """Return a queue of JSON under a kind that its name or itself can say, else a plain one."""
    is_plain = options.get("codec", "json") != "json" or "|" not in (kind or "|")
    made = DelayedQueue if is_plain else FunctionQueue
    return made(name, kind=kind, **options)


@pytest.fixture
def clock(manual_clock: ManualClock) -> ManualClock:
    return manual_clock


@pytest.fixture
def queue(make_queue: MakeQueue, manual_clock: ManualClock) -> DelayedQueue:
    return make_queue("orders", clock=manual_clock)


@pytest.fixture
def shared_queue(make_shared_queue: MakeQueue, manual_clock: ManualClock) -> DelayedQueue:
    return make_shared_queue("orders", clock=manual_clock)
