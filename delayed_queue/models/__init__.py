"""The tables: the hot one that is the queue, and the small ones beside it."""

from __future__ import annotations

from delayed_queue.models.archives import ArchiveManifest, PipelineReport
from delayed_queue.models.callbacks import CallbackAttempt, Endpoint, Host, Slot
from delayed_queue.models.pipeline import OfferLedger, OfferStage
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
    "ArchiveManifest",
    "CallbackAttempt",
    "DeadLetter",
    "Endpoint",
    "Host",
    "IdempotencyKey",
    "LongNamedIndex",
    "Message",
    "OfferLedger",
    "OfferStage",
    "PausedQueue",
    "PipelineReport",
    "Rate",
    "Schedule",
    "Slot",
    "Topic",
    "Worker",
]
