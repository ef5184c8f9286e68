"""Running handlers, as the heartbeat reports them."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from delayed_queue.conf import get_settings
from delayed_queue.logs import log
from delayed_queue.messages import Envelope


class RunningHandler(NamedTuple):
    """A message that a handler has started: since when, where, and its timeout in seconds."""

    envelope: Envelope
    began_at: float
    thread: str
    timeout: float | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began_at

    @property
    def is_slow(self) -> bool:
        """True after the handler's own timeout, or HANDLER_SLOW if it has none."""
        limit = get_settings().HANDLER_SLOW
        default = math.inf if limit is None else limit.total_seconds()
        return self.seconds >= (default if self.timeout is None else self.timeout)

    @property
    def rank(self) -> tuple[bool, float]:
        """The sort key: slow handlers last, the longest-running of them at the end."""
        return self.is_slow, self.seconds

    def facts(self) -> dict[str, Any]:
        """Return what the worker's row contains of it."""
        return {
            "queue": self.envelope.queue, "key": self.envelope.key, "thread": self.thread,
            "seconds": round(self.seconds, 3), "is_slow": self.is_slow,
        }  # fmt: skip


class Load(NamedTuple):
    """The running handlers of a process, and the number of its handler threads.

    A thread that was abandoned after a timeout counts as long as it runs.
    """

    in_threads: Sequence[RunningHandler] = ()
    in_tasks: Sequence[RunningHandler] = ()
    threads: int = 0

    @property
    def every(self) -> list[RunningHandler]:
        return [*self.in_threads, *self.in_tasks]

    def columns(self) -> dict[str, Any]:
        """Return what the worker's row contains of it."""
        longest = max(self.every, key=lambda each: each.rank, default=None)
        return {
            "running": {} if longest is None else longest.facts(),
            "slow": sum(each.is_slow for each in self.every),
            "busy": Counter(each.envelope.queue for each in self.in_threads),
            "threads": self.threads,
        }


class SlowLog:
    """Logs each slow handler once."""

    def __init__(self) -> None:
        self._logged: list[Envelope] = []

    def look(self, running: Iterable[RunningHandler]) -> None:
        slow = [each for each in running if each.is_slow]
        for each in slow:
            if not any(each.envelope is logged for logged in self._logged):
                fields = {"queue": each.envelope.queue, "key": each.envelope.key}
                where = {"thread": each.thread, "seconds": f"{each.seconds:.0f}"}
                log(logging.WARNING, "handler_slow", **fields, **where)
        self._logged = [each.envelope for each in slow]
