"""A producer in a process of its own: so many messages a second, in calls of a few."""

from __future__ import annotations

import sys
import time

import django


def main() -> None:
    """Offer at a rate for some seconds: ``producer RATE SECONDS SIZE PREFIX``."""
    django.setup()
    from delayed_queue import DelayedQueue, ScheduledMessage

    rate, seconds, size = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    queue = DelayedQueue("benchmark")
    started_at = time.monotonic()
    for call in range(int(rate * seconds / size)):
        # By the clock, not by pauses: what one call is late the next ones make up for.
        time.sleep(max(started_at + call * size / rate - time.monotonic(), 0))
        now, first = time.time(), call * size
        queue.offer_batch(
            [ScheduledMessage(f"{sys.argv[4]}-{first + n}", now) for n in range(size)]
        )


if __name__ == "__main__":
    main()
