"""The handler of the measured workers, and what is put into the engine to measure it."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from benchmarks.workerapp.stamps import Pen
from delayed_queue import Envelope, handler
from delayed_queue.queue.store.claim import NO_FLOOR
from delayed_queue.worker.lanes import Lane, Look

PEN: Final = Pen(os.environ["BENCHMARK_STAMPS"])
_end_look: Final = Lane.end_look


@handler("benchmark")
def stamp(envelope: Envelope) -> None:
    """Note when the message was offered, which it says itself, and when its handler began."""
    PEN.start(envelope.key, envelope.payload, time.time())


def _noted(lane: Lane, look: Look, found: int, *answers: Any) -> None:
    PEN.looked(time.time(), time.monotonic() - look.began_at, look.is_full, found)
    _end_look(lane, look, found, *answers)


def _from_the_start(lane: Lane, limit: int) -> Look:
    return Look(limit, NO_FLOOR, lane._was_short, time.monotonic(), looks_back=True)  # noqa: SLF001


if "BENCHMARK_NOTES_LOOKS" in os.environ:
    Lane.end_look = _noted  # type: ignore[method-assign]
if "BENCHMARK_ONLY_FULL_LOOKS" in os.environ:
    Lane.begin_look = _from_the_start  # type: ignore[method-assign]
