"""What the cron service costs: ``python -m benchmarks.cron``.

It works in a database of its own, in transactions that it rolls back.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Final

from benchmarks.database import benchmark_database, embedded_server

ROUNDS: Final = 5
IDLE_ROUNDS: Final = 200


def main() -> None:
    """Print the seconds of each, in a database that is dropped at the end."""
    with benchmark_database(os.environ.get("DATABASE_URL") or embedded_server()):
        for count in (4, 100, 10_000):
            for what, seconds in installing(count):
                _say(f"install_tick of {count} ticks, {what}", seconds)
        for count in (1, 100):
            for what, seconds in checking(count):
                _say(f"{what} check of {count} schedules", seconds)


def installing(count: int) -> Iterator[tuple[str, float]]:
    """Yield the median seconds of a first install_tick, a repeated, and one that replaces."""
    from delayed_queue import CronMessage, DelayedQueue

    queue = DelayedQueue("benchmark-cron")
    start = datetime.now(UTC) + timedelta(days=1)
    messages = [CronMessage(n, start + n * timedelta(seconds=1)) for n in range(count)]

    def round_of() -> list[float]:
        return [
            _seconds(lambda: queue.cron.install_tick("a", "bench", messages)),
            _seconds(lambda: queue.cron.install_tick("a", "bench", messages)),
            _seconds(lambda: queue.cron.install_tick("b", "bench", messages)),
        ]

    rounds = [_rolled_back(round_of) for _ in range(ROUNDS)]
    for what, seconds in zip(("new", "again", "replacing"), zip(*rounds, strict=True), strict=True):
        yield what, median(seconds)


def checking(count: int) -> Iterator[tuple[str, float]]:
    """Yield the seconds of a keeper's first pass, and the median of passes with nothing to do."""
    from delayed_queue import CronEntry
    from delayed_queue.cron.keeper import CronKeeper

    entries = [CronEntry("benchmark-cron", f"idle-{n}", "0 * * * *") for n in range(count)]
    keeper = CronKeeper(entries=entries)
    passes = _rolled_back(lambda: [_seconds(keeper.check) for _ in range(IDLE_ROUNDS)])
    yield "first", passes[0]
    yield "idle", median(passes[1:])


def _rolled_back(call: Callable[[], list[float]]) -> list[float]:
    from django.db import transaction

    with transaction.atomic():
        seconds = call()
        transaction.set_rollback(True)
    return seconds


def _seconds(call: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    call()
    return time.perf_counter() - started_at


def _say(what: str, seconds: float) -> None:
    sys.stdout.write(f"{what:<44} {seconds * 1000:9.2f} ms\n")


if __name__ == "__main__":
    main()
