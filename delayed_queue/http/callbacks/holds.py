"""Messages that are held while their callbacks begin, and the leave of each to send."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from delayed_queue.messages import Envelope

# How long messages are held at most: what has not begun to leave by then does not leave.
HOLD_SECONDS: Final = 1.0


class Withdrawn(Exception):
    """The message is no longer there under its lease, or somebody is changing it: do not send."""


class Late(OSError):
    """The message is held no longer, so its first byte must not leave; a transport closes by it."""


class Hold:
    """Messages that a transaction holds; it ends when all of them have begun to leave, or late."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        self._left = 0
        self._is_empty = threading.Event()

    def keep(self, number: int) -> None:
        """Wait for so many; in the loop."""
        self._left = number
        if not number:
            self._is_empty.set()

    def leave(self) -> None:
        """Count one out, sent or not; in the loop."""
        self._left -= 1
        if not self._left:
            self._is_empty.set()

    def send(self, send: Callable[[], int]) -> int:
        """Run a system call that sends; raises Late when the transaction may have ended."""
        with self._lock:
            if self._is_over:
                raise Late
            return send()

    def wait(self) -> None:
        """Return when nothing more will be sent; in the thread of the transaction."""
        self._is_empty.wait(HOLD_SECONDS)
        with self._lock:
            self._is_over = True


class Leave:
    """Permission to send the first bytes of one callback, once."""

    def __init__(self, envelope: Envelope) -> None:
        self.place = (envelope.message_id, envelope.lease_id)
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_late = False
        self.is_ended = False
        self._hold: Hold | None = None

    def give(self, hold: Hold) -> None:
        self._hold = hold
        self.answer.set_result(None)

    def send(self, send: Callable[[], int]) -> int:
        """Send the first bytes, or raise Late; then the message need not be held."""
        assert self._hold is not None  # noqa: S101 - given before it is returned
        try:
            sent = self._hold.send(send)
        except Late:
            self.is_late = True
            raise
        self.end()
        return sent

    def end(self) -> None:
        """Hold the message no longer; what was not sent is not to be sent."""
        if self._hold is not None and not self.is_ended:
            self._hold.leave()
        self.is_ended = True
