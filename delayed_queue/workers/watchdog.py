"""The watchdog of a worker without a supervisor."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final

from delayed_queue.conf import get_settings
from delayed_queue.workers.board import Board

logger = logging.getLogger("delayed_queue")

EXIT_STANDS: Final = 70


class Watchdog:
    """Ends the process when its claim loop has not turned for so long that it never will.

    Whoever started it starts it again. The leases run out, so others take the messages.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _watch(self) -> None:
        limit = get_settings().WATCHDOG.total_seconds()
        started_at = time.monotonic()
        pause = threading.Event()
        while not pause.wait(limit / 10):
            stood = time.monotonic() - max(self._board.turned_at, started_at)
            if stood > limit:
                logger.critical("event=loop_stands seconds=%.0f", stood)
                os._exit(EXIT_STANDS)
