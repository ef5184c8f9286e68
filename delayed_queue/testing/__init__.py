"""For tests of code that uses queues: an in-memory queue, a clock, ``drain`` and assertions."""

from __future__ import annotations

from delayed_queue.testing.draining import (
    Drained,
    assert_dead,
    assert_not_offered,
    assert_offered,
    dead_letters,
    drain,
)
from delayed_queue.testing.queues import InMemoryQueue
from delayed_queue.testing.stores import InMemoryStore, ManualClock

__all__ = [
    "Drained",
    "InMemoryQueue",
    "InMemoryStore",
    "ManualClock",
    "assert_dead",
    "assert_not_offered",
    "assert_offered",
    "dead_letters",
    "drain",
]
