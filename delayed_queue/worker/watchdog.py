"""The watchdog of a worker without a supervisor."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final

from delayed_queue.conf import get_settings
from delayed_queue.worker.board import Board

logger = logging.getLogger("delayed_queue")

EXIT_STANDS: Final = 70
# How long a start may take at least, on a machine that is short of everything.
START_SECONDS: Final = 600.0


def limit_of(board: Board) -> float:
    """Return for how many seconds a claim loop may stand: longer before it has first turned."""
    limit = get_settings().WATCHDOG.total_seconds()
    return limit if board.turned_at else max(limit, START_SECONDS)


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
        started_at = time.monotonic()
        pause = threading.Event()
        while not pause.wait(get_settings().WATCHDOG.total_seconds() / 10):
            stood = time.monotonic() - max(self._board.turned_at, started_at)
            if stood > limit_of(self._board):
                logger.critical("event=loop_stands seconds=%.0f", stood)
                os._exit(EXIT_STANDS)
