"""Handlers that Spark's executors run; they import no Django."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from delayed_queue.messages import Envelope

QUICK_SECONDS: Final = 0.005
SLOW_SECONDS: Final = 0.05


def quick(envelope: Envelope) -> None:
    time.sleep(QUICK_SECONDS)


async def slow(envelope: Envelope) -> None:
    await asyncio.sleep(SLOW_SECONDS)
