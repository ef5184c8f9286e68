"""A handler that prints its message."""

from __future__ import annotations

import sys

from delayed_queue import Envelope, handler


@handler("orders")
def close(envelope: Envelope) -> None:
    sys.stdout.write(f"closed {envelope.key}\n")
