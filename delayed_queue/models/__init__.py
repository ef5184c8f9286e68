"""The tables: the hot one that is the queue, and the small ones beside it."""

from __future__ import annotations

from delayed_queue.models.queue import (
    DeadLetter,
    LongNamedIndex,
    Message,
    PausedQueue,
    Schedule,
    Worker,
)
from delayed_queue.models.topics import IdempotencyKey, Topic

__all__ = [
    "DeadLetter",
    "IdempotencyKey",
    "LongNamedIndex",
    "Message",
    "PausedQueue",
    "Schedule",
    "Topic",
    "Worker",
]
