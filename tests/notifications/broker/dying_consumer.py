"""A consumer killed after its first commit, before it acknowledges."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import django

django.setup()

from delayed_queue.notifications import broker  # noqa: E402

# All messages of the test arrive in one batch, even on a busy machine.
broker.LINGER_SECONDS = 3.0  # type: ignore[misc]


class DyingConsumer(broker.Consumer):
    def _acknowledge(self, messages: list[Any]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _, url, queue = sys.argv
    DyingConsumer(url, queue, "upstream").run()
