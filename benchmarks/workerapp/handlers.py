"""The handler of the measured workers, and what is put into the engine to measure it."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Final

from benchmarks.workerapp.stamps import Pen
from delayed_queue import Envelope, handler
from delayed_queue.queue.store.claim import NO_FLOOR
from delayed_queue.worker.consumers import Consumer, Poll, PollResult, ScanSchedule

PEN: Final = Pen(os.environ["BENCHMARK_STAMPS"])
_end_poll: Final = Consumer.end_poll


@handler("benchmark")
def stamp(envelope: Envelope) -> None:
    """Note when the message was offered, which it says itself, and when its handler began."""
    PEN.start(envelope.key, envelope.payload, time.time())


def _noted(consumer: Consumer, poll: Poll, result: PollResult) -> None:
    spent = time.monotonic() - poll.began_at
    PEN.looked(time.time(), spent, poll.is_full_scan, result.found)
    _end_poll(consumer, poll, result)


def _from_the_start(schedule: ScanSchedule, limit: int, kinds: tuple[str, ...] = ()) -> Poll:
    was_short = schedule._was_short  # noqa: SLF001
    return Poll(limit, NO_FLOOR, was_short, time.monotonic(), is_rewind=True, kinds=kinds)


def _nothing(envelope: Envelope) -> None:
    """Do nothing."""


if "BENCHMARK_GROUPS" in os.environ:
    for _name in ("limited", "ordered"):
        handler(_name, codec="bytes", lease=timedelta(seconds=5))(_nothing)
if "BENCHMARK_NOTES_LOOKS" in os.environ:
    Consumer.end_poll = _noted  # type: ignore[method-assign,assignment]
if "BENCHMARK_ONLY_FULL_LOOKS" in os.environ:
    ScanSchedule.begin = _from_the_start  # type: ignore[method-assign,assignment]
