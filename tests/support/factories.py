"""The factories of the package, for tests that read rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from delayed_queue.models import Worker
from delayed_queue.testing.factories import DeadLetterFactory, MessageFactory, from_now

__all__ = ["DeadLetterFactory", "MessageFactory", "from_now", "worker_row"]


def worker_row(name: str = "worker", *, silent_for: float = 0, **fields: Any) -> Worker:
    """Return the row of a worker with a heartbeat ``silent_for`` seconds ago."""
    then = datetime.now(UTC) - timedelta(seconds=silent_for)
    defaults = {
        "host": "host", "pid": 7, "queues": [], "version": "1.2",
        "started_at": then, "heartbeat_at": then,
    }  # fmt: skip
    return Worker.objects.create(name=name, **{**defaults, **fields})
