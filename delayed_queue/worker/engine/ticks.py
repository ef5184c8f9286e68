"""Ticks in a worker: when their handlers began and ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from delayed_queue.cron.runs import Run
from delayed_queue.messages import Envelope


class TickTimes:
    """Calls a handler, and keeps the times of each message until it is settled."""

    def __init__(self, call: Callable[[Envelope], Any], *, is_async: bool) -> None:
        self._call = call
        self._times: dict[int, tuple[float, float]] = {}
        self.call = self._acall if is_async else self._call_timed

    def run(self, envelope: Envelope, outcome: str) -> Run:
        """Return what to record; a handler that did not return ends now."""
        now = time.monotonic()
        began, ended = self._times.get(envelope.message_id, (None, now))
        return Run(envelope, outcome, None if began is None else now - began, now - ended)

    def _call_timed(self, envelope: Envelope) -> Any:
        began = time.monotonic()
        try:
            return self._call(envelope)
        finally:
            self._times[envelope.message_id] = began, time.monotonic()

    async def _acall(self, envelope: Envelope) -> Any:
        began = time.monotonic()
        try:
            return await self._call(envelope)
        finally:
            self._times[envelope.message_id] = began, time.monotonic()
