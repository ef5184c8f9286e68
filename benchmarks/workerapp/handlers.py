"""The handler of measured workers: it writes down when a message was offered and handled."""

from __future__ import annotations

import os
import time
from typing import Final

from delayed_queue import Envelope, handler

STAMPS: Final = os.open(os.environ["BENCHMARK_STAMPS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@handler("benchmark")
def stamp(envelope: Envelope) -> None:
    """Append a line by a single write, so that lines of several processes do not mix."""
    os.write(STAMPS, f"{envelope.payload} {time.time()}\n".encode())
