"""pytest fixtures: import them in a conftest, or name this module in ``pytest_plugins``."""

from __future__ import annotations

import pytest

from delayed_queue.testing.stores import InMemoryStore, ManualClock


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still, for ``clock=`` of queues."""
    return ManualClock()


@pytest.fixture
def in_memory_store() -> InMemoryStore:
    """A store for ``store=`` of all the in-memory queues of one test."""
    return InMemoryStore()
