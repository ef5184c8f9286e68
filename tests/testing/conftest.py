"""The queues under test: on PostgreSQL and in memory."""

from __future__ import annotations

from tests.queue.contract.conftest import (
    clock,
    make_queue,
    make_shared_queue,
    manual_clock,
    queue,
    shared_queue,
)

__all__ = ["clock", "make_queue", "make_shared_queue", "manual_clock", "queue", "shared_queue"]
