"""Workers of a queue with limits per group: how fast they drain, how soon a group has its turn.

``python -m benchmarks.turns``: one worker in this process, eight threads. Drained is one backlog
without limits and one with, in turns; behind 100,000 messages of one group one of another is
offered again and again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any, Final

import psycopg

from benchmarks.database import PAYLOAD, benchmark_database, embedded_server, empty

MESSAGES: Final = 20_000
GROUPS: Final = 1_000
BACKLOG: Final = 100_000
ROUNDS: Final = 3
SAMPLES: Final = 200
_FILL: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "group"
)
SELECT 'key-' || n, 'turns|bytes', %(payload)s, n, n, n, 'group-' || n %% %(groups)s::integer
FROM generate_series(1, %(count)s) AS n
"""


def main() -> None:
    """Measure both, and print what was found."""
    with benchmark_database(embedded_server()) as connection:
        for seconds in (0.0, 0.001):
            plain, limited = [], []
            for _ in range(ROUNDS):
                plain.append(_drained(connection, None, seconds))
                limited.append(_drained(connection, 2, seconds))
            without, with_limits = median(plain), median(limited)
            _say(f"handlers of {seconds * 1000:.0f} ms: {without:,.0f}/s without limits, "
                 f"{with_limits:,.0f}/s with: {with_limits / without:.2f}")  # fmt: skip
        delays = _delays(connection)
        _say(f"behind {BACKLOG:,}: p50 {median(delays):.0f} ms, "
             f"p99 {quantiles(delays, n=100)[98]:.0f} ms")  # fmt: skip


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _fill(connection: psycopg.Connection[Any], count: int, groups: int) -> None:
    empty(connection, "delayed_queue")
    connection.execute(_FILL, {"payload": PAYLOAD, "count": count, "groups": groups})
    connection.execute("ANALYZE delayed_queue")


@contextmanager
def _working(handle: Callable[[Any], None], groups: Any, batch_size: int) -> Iterator[None]:
    # Only now: Django's models cannot be imported before there are settings.
    from delayed_queue.codecs import codec_named, kind_of
    from delayed_queue.handlers import Handler, Registry
    from delayed_queue.worker.options import WorkerOptions
    from delayed_queue.worker.worker import Worker

    codec, registry = codec_named("bytes"), Registry()
    registry.add(Handler("turns", handle, codec, kind_of("turns", codec), groups=groups))
    worker = Worker(WorkerOptions(concurrency=8, batch_size=batch_size, cron=False), registry)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def _drained(connection: psycopg.Connection[Any], concurrency: int | None, seconds: float) -> float:
    """Return how many messages a second a worker handles, with so many of a group at a time."""
    from delayed_queue import Groups

    _fill(connection, MESSAGES, GROUPS)
    count, done = iter(range(1, MESSAGES + 1)), threading.Event()

    def handle(_: Any) -> None:
        if seconds:
            time.sleep(seconds)
        if next(count) == MESSAGES:
            done.set()

    groups = None if concurrency is None else Groups(concurrency=concurrency)
    started = time.perf_counter()
    with _working(handle, groups, 500):
        done.wait()
        return MESSAGES / (time.perf_counter() - started)


def _delays(connection: psycopg.Connection[Any]) -> list[float]:
    """Return in milliseconds how soon a message of another group begins."""
    from delayed_queue import DelayedQueue, Groups

    _fill(connection, BACKLOG, 1)
    queue, begun = DelayedQueue("turns", codec="bytes"), threading.Event()

    def handle(envelope: Any) -> None:
        if envelope.group == "other":
            begun.set()
        threading.Event().wait(0.005)

    delays = []
    with _working(handle, Groups(), 100):
        for number in range(SAMPLES):
            threading.Event().wait(0.02)
            begun.clear()
            started = time.perf_counter()
            queue.offer_or_update(f"other-{number}", PAYLOAD, group="other")
            begun.wait()
            delays.append((time.perf_counter() - started) * 1000)
    return delays


if __name__ == "__main__":
    main()
