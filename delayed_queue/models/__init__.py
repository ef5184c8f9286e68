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
from delayed_queue.models.rates import Rate
from delayed_queue.models.tokens import ApiToken
from delayed_queue.models.topics import IdempotencyKey, Topic

__all__ = [
    "ApiToken",
    "DeadLetter",
    "IdempotencyKey",
    "LongNamedIndex",
    "Message",
    "PausedQueue",
    "Rate",
    "Schedule",
    "Topic",
    "Worker",
]
