"""Refusals: writes and claims of a worker that the database refuses (W19)."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import timedelta
from typing import Any, Final

from delayed_queue.db.resilience import sqlstate_of
from delayed_queue.messages import Envelope
from delayed_queue.observe import signals
from delayed_queue.observe.logs import described, first_line, log

# How long a refusal is shown by the worker's row, and so by queuehealth.
SHOWN_SECONDS: Final = 600.0
# Refusals kept in memory: at most the latest N.
_MOST_KEPT: Final = 1_000
# Pause of a queue whose claim is refused, in seconds. Each claim that is refused is one log line.
CLAIM_PAUSE: Final = timedelta(seconds=5)
# Retry delay where the policy has none, of a dead letter that is refused, for example.
_DEFAULT_WAIT: Final = timedelta(minutes=1)


class WriteRefused(Exception):
    """The failure of a message whose result the database refuses."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"The database refused to write the result (SQLSTATE {state_of(error)}): "
            f"{first_line(error)}"
        )


class Refusals:
    """Reports refused writes: once per attempt in the log, as a signal, and in the worker's row."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._recent: deque[tuple[float, str, str]] = deque(maxlen=_MOST_KEPT)
        self._reported: OrderedDict[tuple[int, int], None] = OrderedDict()

    def report(self, envelope: Envelope, error: BaseException) -> None:
        """Report a write about this message; only the first of an attempt. May be called by any
        thread.
        """
        attempt = (envelope.message_id, envelope.attempt)
        if attempt in self._reported:
            return
        self._reported[attempt] = None
        while len(self._reported) > _MOST_KEPT:
            self._reported.popitem(last=False)
        self._keep(envelope.queue, error)
        signals.announce(
            signals.refused, self._sender, envelope=envelope, error=error, sqlstate=state_of(error)
        )

    def report_claim(self, queue: str, error: BaseException) -> None:
        """Report that the queue cannot be claimed from."""
        self._keep(queue, error)
        fields = {"queue": queue, "sqlstate": state_of(error), "error": described(error)}
        log(logging.ERROR, "claim_refused", **fields, worker=self._sender)

    def shown(self) -> dict[str, dict[str, int]]:
        """Return the numbers of recent refusals, by queue and SQLSTATE."""
        since = time.monotonic() - SHOWN_SECONDS
        counts = Counter((queue, state) for at, queue, state in list(self._recent) if at > since)
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for (queue, state), count in counts.items():
            found[queue][state] = count
        return found

    def _keep(self, queue: str, error: BaseException) -> None:
        self._recent.append((time.monotonic(), queue, state_of(error)))


def state_of(error: BaseException) -> str:
    """Return the SQLSTATE, or the class of an error that the driver raised before sending."""
    return sqlstate_of(error) or type(error).__name__


def wait_after(envelope: Envelope, delays: tuple[timedelta, ...]) -> timedelta:
    """Return the retry delay of a message that could not become a dead letter either."""
    return delays[min(envelope.attempt, len(delays)) - 1] if delays else _DEFAULT_WAIT
