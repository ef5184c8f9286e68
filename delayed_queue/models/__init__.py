"""The tables: the hot one that is the queue, and the small ones beside it."""

from __future__ import annotations

from delayed_queue.models.archives import ArchiveManifest, PipelineReport
from delayed_queue.models.pipeline import OfferLedger, OfferStage
from delayed_queue.models.queue import (
    DeadLetter,
    LongNamedIndex,
    Message,
    PausedQueue,
    Schedule,
    Worker,
)

__all__ = [
    "ArchiveManifest",
    "DeadLetter",
    "LongNamedIndex",
    "Message",
    "OfferLedger",
    "OfferStage",
    "PausedQueue",
    "PipelineReport",
    "Schedule",
    "Worker",
]
